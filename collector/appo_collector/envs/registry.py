"""Names of environments in the configuration, and what they stand for."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any

from appo_collector.envs.contract import VectorEnv
from appo_common.errors import AppoError, ConfigError, EnvironmentFault
from appo_common.spec import EnvSpec

TASKS = {
    "mujoco:cartpole-swingup": "swing a pole up and balance it by pushing its cart; learnt within a minute",
    "mujoco:quadruped-velocity": "a 12 kg robot dog follows commands for its velocity; walks within minutes",
}
"""The native tasks by name, each with a one-line description."""
_CLASSES = {
    "mujoco:cartpole-swingup": ("appo_collector.envs.cartpole_swingup", "CartpoleSwingup"),
    "mujoco:quadruped-velocity": ("appo_collector.envs.quadruped_velocity", "QuadrupedVelocity"),
}


def make_env(name: str, num_envs: int, overrides: dict[str, Any], threads: int) -> VectorEnv:
    """Build the environment that the configuration calls ``name``.

    ``name`` is one of :data:`TASKS`, or ``package.module:factory``: a callable that is called as
    ``factory(num_envs=..., threads=..., **overrides)`` and returns a :class:`VectorEnv`.
    Raises ConfigError for a name or an override that is unknown, and EnvironmentFault for a factory that
    raises or returns something else.
    """
    factory = _factory(name)
    for key in ("num_envs", "threads"):
        if key in overrides:
            raise ConfigError(f"env.overrides.{key}: {overrides[key]!r} belongs to env.{key}, not to overrides")
    try:
        env = factory(num_envs=num_envs, threads=threads, **overrides)
    except AppoError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())  # one line: the learner repeats it
        raise EnvironmentFault(f"{name} could not be made: {type(error).__name__}: {words}") from error
    _check(name, env, num_envs)
    return env


def _factory(name: str) -> Callable[..., Any]:
    if name in _CLASSES:
        module, attribute = _CLASSES[name]
        # MuJoCo takes a while to import; a collector of another environment need not have it at all.
        return getattr(importlib.import_module(module), attribute)
    module, _, attribute = name.partition(":")
    if module == "mujoco" or not module or not attribute:
        raise ConfigError(_unknown(name))
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{_unknown(name)}. As package.module:factory it cannot be had: {error}") from error
    if not callable(factory):
        raise ConfigError(f"env.name: {name!r} is a {type(factory).__name__}, which cannot be called")
    return factory


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"env.name: {name!r} is unknown.{hint} Known: {', '.join(TASKS)}, or package.module:factory"


def _check(name: str, env: Any, num_envs: int) -> None:
    """Refuse what a factory returned unless it is our contract, with the number of environments asked for."""
    if not isinstance(env, VectorEnv):
        raise EnvironmentFault(
            f"{name} returned a {type(env).__name__}; a factory must return a subclass of "
            "appo_collector.envs.contract.VectorEnv"
        )
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        raise EnvironmentFault(f"{name}: its spec is a {type(spec).__name__}, not an EnvSpec")
    if spec.num_envs != num_envs:
        raise EnvironmentFault(f"{name}: asked for {num_envs} environments, its spec says {spec.num_envs}")
