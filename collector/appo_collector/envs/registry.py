"""Names of environments in the configuration, and what they stand for."""

from __future__ import annotations

import difflib
import importlib
import os
import traceback
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from appo_collector.envs.action_scaling import scale_actions
from appo_collector.envs.adopt import make_from
from appo_collector.envs.contract import VectorEnv
from appo_collector.envs.native.twins import TWINS
from appo_common.errors import AppoError, ConfigError, EnvironmentFault
from appo_common.spec import ActionScaling, EnvSpec

_NATIVE = {
    "mujoco:cartpole-swingup": (
        "appo_collector.envs.native.cartpole_swingup",
        "CartpoleSwingup",
        "swing a pole up and balance it by pushing its cart; learnt within a minute",
    ),
    "mujoco:quadruped-velocity": (
        "appo_collector.envs.native.quadruped_velocity",
        "QuadrupedVelocity",
        "a 12 kg robot dog follows commands for its velocity; walks within minutes",
    ),
    **TWINS,
}
TASKS = {name: description for name, (_, _, description) in _NATIVE.items()}
"""The native tasks by name, each with a one-line description."""
_ADAPTERS = {
    "gymnasium": ("appo_collector.envs.adapters.gymnasium_env", "from_id"),
    "envpool": ("appo_collector.envs.adapters.envpool_env", "from_id"),
    "unilab": ("appo_collector.envs.adapters.unilab_env", "from_task"),
}
"""Schemes of names that belong to another library, and the function that makes its environments."""
_KINDS = "gymnasium:<id>, envpool:<id>, unilab:<task>, or package.module:factory"


class SpecFault(EnvironmentFault):
    """The environment was made, but its spec is wrong."""


def make_env(
    name: str,
    num_envs: int,
    overrides: dict[str, Any],
    threads: int,
    action_scaling: ActionScaling | None = None,
) -> VectorEnv:
    """Build the environment that the configuration calls ``name``.

    ``name`` is one of :data:`TASKS`, ``gymnasium:<id>``, ``envpool:<id>``, ``unilab:<task>``, or
    ``package.module:factory``; see :func:`appo_collector.envs.adopt.make_from` for what a factory may return.
    Raises ConfigError for a name or an override that is unknown and for a package that is missing, and
    EnvironmentFault for an environment that cannot be made or that breaks the contract.
    """
    for key in ("num_envs", "threads", "action_scaling"):
        if key in overrides:
            raise ConfigError(f"env.overrides.{key}: {overrides[key]!r} belongs to {_OWNERS[key]}, not to overrides")
    make = _maker(name)
    try:
        env = make(num_envs, threads, overrides)
    except AppoError:
        raise
    except Exception as error:
        raise EnvironmentFault(f"{name} could not be made: {type(error).__name__}: {_words(error)}") from error
    _check(name, env, num_envs)
    return scale_actions(env, action_scaling)


_OWNERS = {"num_envs": "env.num_envs", "threads": "--threads", "action_scaling": "env.action_scaling"}


def _maker(name: str) -> Callable[[int, int, dict[str, Any]], VectorEnv]:
    """Return a function of ``num_envs``, ``threads`` and ``overrides`` that makes the environment."""
    scheme, _, rest = name.partition(":")
    if name in _NATIVE:
        # MuJoCo takes a while to import; a collector of another environment need not have it at all.
        module, attribute, _ = _NATIVE[name]
        task = _attribute(module, attribute)
        return lambda num_envs, threads, overrides: task(num_envs=num_envs, threads=threads, **overrides)
    if scheme in _ADAPTERS and rest:
        adapter = _attribute(*_ADAPTERS[scheme])
        return lambda num_envs, threads, overrides: adapter(rest, num_envs, threads, overrides)
    if scheme in ("mujoco", "") or not rest:
        raise ConfigError(_unknown(name))
    factory = _users_own(name, scheme, rest)
    return lambda num_envs, threads, overrides: make_from(factory, name, num_envs, threads, overrides)


def _attribute(module: str, attribute: str) -> Any:
    return getattr(importlib.import_module(module), attribute)


def _users_own(name: str, module: str, attribute: str) -> Callable[..., Any]:
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # the user's module runs here, and may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(_not_found(name, module)) from None
        raise ConfigError(
            f"env.name: {name!r}: importing {module} raised {type(error).__name__}: {error}{_place(error)}"
            f"{_install(error)}"
        ) from error
    factory = getattr(imported, attribute, None)
    if factory is None:
        near = difflib.get_close_matches(attribute, vars(imported), n=1)
        hint = f"; did you mean {module}:{near[0]}?" if near else ""
        raise ConfigError(f"env.name: {name!r}: the module {module} ({imported.__file__}) has no {attribute!r}{hint}")
    if not callable(factory):
        raise ConfigError(f"env.name: {name!r} is a {type(factory).__name__}, which cannot be called")
    return factory


def _words(error: Exception) -> str:
    """Return what ``error`` says in one line, since the learner repeats it; of pydantic's, without its address."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}".lstrip(": ") for each in error.errors())
    return " ".join(str(error).split())


def _place(error: Exception) -> str:
    """Say in which line of which file an import failed."""
    if isinstance(error, SyntaxError):
        return ""  # its own words name them
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" ({last.filename}, line {last.lineno})"


def _install(error: Exception) -> str:
    """Say how to get the package that an import lacks, where it is one of our extras."""
    extra = error.name if isinstance(error, ModuleNotFoundError) else None
    return f"; pip install 'appo[{extra}]' (in a clone: pip install -e '.[{extra}]')" if extra in _ADAPTERS else ""


def _not_found(name: str, module: str) -> str:
    return (
        f"{_unknown(name)}. For package.module:factory, no module {module!r} is in {os.getcwd()} or installed: start "
        "in the directory that holds it, with PYTHONPATH=. for a collector of your own, or install it"
    )


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if name.startswith("mujoco:"):
        return f"env.name: {name!r} is unknown.{hint} Known: {', '.join(TASKS)}"
    return f"env.name: {name!r} is unknown.{hint} Known: mujoco:<task>, {_KINDS}"


def _check(name: str, env: VectorEnv, num_envs: int) -> None:
    """Refuse an environment whose spec is none, or is for another number of environments than asked for."""
    spec = getattr(env, "spec", None)
    if not isinstance(spec, EnvSpec):
        raise SpecFault(f"{name}: its spec is a {type(spec).__name__}, not an EnvSpec")
    try:
        EnvSpec.model_validate(spec.model_dump())  # it may have been made without validation
    except ValueError as error:
        raise SpecFault(f"{name}: its spec is wrong: {_words(error)}") from error
    if spec.num_envs != num_envs:
        raise EnvironmentFault(f"{name}: asked for {num_envs} environments, its spec says {spec.num_envs}")
