"""What a user's factory made, turned into the contract: ours, a Gymnasium environment, or an rsl_rl one."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from appo_collector.envs.contract import VectorEnv
from appo_common.errors import ConfigError, EnvironmentFault

Factory = Callable[..., Any]


def make_from(factory: Factory, name: str, num_envs: int, threads: int, overrides: dict[str, Any]) -> VectorEnv:
    """Call ``factory`` and adopt what it returns.

    ``num_envs`` and ``threads`` are passed where its signature takes them. A single Gymnasium environment is
    vectorised: the factory is called once for each of the ``num_envs``.
    Raises EnvironmentFault for a product that is no environment, and ConfigError for an override that the factory does
    not take; the factory's own exceptions pass through.
    """
    arguments = _accepted(factory, overrides, {"num_envs": num_envs, "threads": threads})
    product = factory(**arguments)
    if isinstance(product, VectorEnv):
        return product
    # A product of Gymnasium's exists only where Gymnasium was imported; nobody else has to have it.
    if gymnasium := sys.modules.get("gymnasium"):
        from appo_collector.envs.adapters.gymnasium_env import GymnasiumEnv, vectorise

        if isinstance(product, gymnasium.vector.VectorEnv):
            return GymnasiumEnv(product, name)
        if isinstance(product, gymnasium.Env):
            makers = [lambda: product, *[lambda: factory(**arguments)] * (num_envs - 1)]
            return vectorise(makers, name)
    from appo_collector.envs.adapters.rsl_rl_env import RslRlEnv, is_vec_env

    if is_vec_env(product):
        return RslRlEnv(product, name)
    raise EnvironmentFault(
        f"{name} returned a {type(product).__name__}; a factory must return a subclass of "
        "appo_collector.envs.contract.VectorEnv, a Gymnasium VectorEnv or Env, or an rsl_rl VecEnv"
    )


def _accepted(factory: Factory, overrides: dict[str, Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Return the ``overrides`` and those of the ``offered`` arguments that ``factory`` takes.

    Raises ConfigError for an override that it does not take.
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some callables written in C have no signature
        return overrides | offered
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return overrides | offered
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY]
    if unknown := [key for key in overrides if key not in names]:
        known = [name for name in names if name not in offered]
        near = difflib.get_close_matches(str(unknown[0]), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"env.overrides.{unknown[0]}: the factory does not take it; {hint}It takes: {', '.join(known) or 'nothing'}"
        )
    return overrides | {key: value for key, value in offered.items() if key in names}
