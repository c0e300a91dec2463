"""What the contract allows an environment to return: one list of rules for the running collector and the checker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from appo_collector.envs.contract import Step
from appo_common.spec import EnvSpec

ARRAYS, FINITE, TERMS, EPISODES = "shapes and dtypes", "finite numbers", "reward terms", "ends of episodes"
_SHOWN = 5
"""Environments that a message names one by one."""


class Fault(NamedTuple):
    """One thing that the contract does not allow."""

    rule: str
    """Name of the rule that is broken, one of the constants above."""
    text: str
    """Which array, in which environments, what it is and what was expected."""
    remedy: str
    """What to do about it."""


def reset_faults(spec: EnvSpec, obs: object) -> Iterator[Fault]:
    """Yield what is wrong with the observations ``[N, *group]`` that ``reset`` returned."""
    return _observation_faults(spec, "obs", obs, np.arange(spec.num_envs))


def ages_faults(spec: EnvSpec, ages: object) -> Iterator[Fault]:
    """Yield what is wrong with ``[N]`` ages."""
    if not isinstance(ages, np.ndarray) or ages.shape != (spec.num_envs,) or ages.dtype.kind not in "iu":
        yield Fault(ARRAYS, f"returned {_kind(ages)}, expected ({spec.num_envs},) of whole numbers", "np.int64 will do")
    elif (ages < 0).any():
        yield Fault(
            EPISODES, f"is {ages.min()} in {_places(ages < 0)}", "count the steps of the episode so far, from 0"
        )


def step_faults(spec: EnvSpec, step: object) -> Iterator[Fault]:
    """Yield what is wrong with the result of one ``step``; where arrays are none, nothing is said of their content."""
    if not isinstance(step, Step):
        remedy = "return appo_collector.envs.contract.Step(obs, reward, terminated, truncated, final_obs, info)"
        yield Fault(ARRAYS, f"returned a {type(step).__name__}, expected a Step", remedy)
        return
    rows = (spec.num_envs,)
    yield from _observation_faults(spec, "obs", step.obs, np.arange(spec.num_envs))
    yield from _array_faults("'reward'", step.reward, rows, "float32")
    flags = [
        *_array_faults("'terminated'", step.terminated, rows, "bool"),
        *_array_faults("'truncated'", step.truncated, rows, "bool"),
    ]
    yield from flags
    if not flags and (ended := np.flatnonzero(step.terminated | step.truncated)).size:
        yield from _observation_faults(spec, "final_obs", step.final_obs, ended)
    yield from _valid_faults(spec, step, not flags)
    yield from _info_faults(spec, step.info)


def _observation_faults(spec: EnvSpec, where: str, obs: object, envs: np.ndarray) -> Iterator[Fault]:
    """Check the rows of ``envs`` (``[E]`` indices), group by group."""
    if not isinstance(obs, dict):
        groups = ", ".join(spec.observations)
        yield Fault(ARRAYS, f"{where} is {_kind(obs)}, expected a dict of groups", f"return a dict with {groups}")
        return
    for name, group in spec.observations.items():
        yield from _array_faults(
            f"{where} {name!r}", obs.get(name), (len(envs), *group.shape), group.dtype, envs, "or correct the spec"
        )


def _array_faults(
    what: str, array: Any, shape: tuple[int, ...], dtype: str, envs: np.ndarray | None = None, otherwise: str = ""
) -> Iterator[Fault]:
    """Check type, shape and dtype, and where these are right, that all numbers are finite."""
    if not isinstance(array, np.ndarray):
        yield Fault(ARRAYS, f"{what} is {_kind(array)}, expected an array {shape} {dtype}", _array_remedy(what, array))
    elif array.shape != shape:
        remedy = "one row for each environment that ended" if what.startswith("final_obs") else "return that shape"
        wrong = f"{what} is {array.shape} {array.dtype}, expected {shape} {dtype}"
        yield Fault(ARRAYS, wrong, f"{remedy} {otherwise}".rstrip())
    elif array.dtype != dtype:
        wrong = f"{what} is {array.shape} {array.dtype}, expected {shape} {dtype}"
        yield Fault(ARRAYS, wrong, f"convert it: .astype(np.{dtype.replace('bool', 'bool_')}) {otherwise}".rstrip())
    elif min(array.strides, default=0) < 0:
        yield Fault(ARRAYS, f"{what} has negative strides, which torch cannot read", "np.ascontiguousarray(...)")
    elif array.dtype.kind == "f" and not np.isfinite(array).all():
        yield _not_finite(what, array, envs)


def _not_finite(what: str, array: np.ndarray, envs: np.ndarray | None) -> Fault:
    wrong = ~np.isfinite(array)
    rows = wrong.reshape(len(array), -1).any(axis=1)
    value = array[wrong][0]
    where = np.argwhere(wrong)[0][1:].tolist()
    place = f" (the first is entry {where})" if where else ""
    remedy = "find the division, root or blown-up state it comes from; end such an episode as terminated"
    if envs is not None:
        rows = np.isin(np.arange(envs.max() + 1), envs[rows])
    return Fault(FINITE, f"{what} is {value} in {_places(rows)}{place}", remedy)


def _valid_faults(spec: EnvSpec, step: Step, flags_are_right: bool) -> Iterator[Fault]:
    valid = step.valid
    if valid is None:
        if spec.skips_steps:
            yield Fault(ARRAYS, "'valid' is missing, which the spec's skips_steps promises", "mark every step's rows")
        return
    wrong = list(_array_faults("'valid'", valid, (spec.num_envs,), "bool"))
    yield from wrong
    if wrong or valid.all():
        return
    if not spec.skips_steps:
        yield Fault(EPISODES, f"'valid' is False in {_places(~valid)}", "set skips_steps=True in the spec")
    elif flags_are_right and (both := (step.terminated | step.truncated) & ~valid).any():
        yield Fault(EPISODES, f"a step that is not valid ended {_places(both)}", "a step that only resets has no end")


def _info_faults(spec: EnvSpec, info: object) -> Iterator[Fault]:
    if not isinstance(info, dict):
        yield Fault(ARRAYS, f"'info' is {_kind(info)}, expected a dict", "return {} where there is nothing to say")
        return
    terms = info.get("terms", {})
    if not isinstance(terms, dict):
        yield Fault(TERMS, f"info['terms'] is {_kind(terms)}, expected a dict of arrays", "name → [N] floats")
        return
    for name in spec.reward_terms:
        if name not in terms:
            wrong = f"info['terms'] lacks {name!r}, which the spec's reward_terms promise"
            yield Fault(TERMS, wrong, "return every term at every step, or take the name out of the spec")
        elif np.shape(terms[name]) != (spec.num_envs,):
            wrong = f"info['terms'][{name!r}] has shape {np.shape(terms[name])}, expected ({spec.num_envs},)"
            yield Fault(TERMS, wrong, "one number for each environment")


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.dtype}"
    return "missing" if value is None else f"a {type(value).__name__}"


def _array_remedy(what: str, value: object) -> str:
    if value is None and what.startswith("final_obs"):
        return "return the last observation, taken before the reset, of every environment that ended"
    if type(value).__module__.partition(".")[0] == "torch":
        return "convert it: .cpu().numpy()"
    return "return a NumPy array"


def _places(rows: np.ndarray) -> str:
    """Name the environments that are True in ``[N]`` bool ``rows``."""
    places = np.flatnonzero(rows)
    shown = ", ".join(str(place) for place in places[:_SHOWN])
    more = f" and {places.size - _SHOWN} more" if places.size > _SHOWN else ""
    return f"environment{'s' if places.size > 1 else ''} {shown}{more}"
