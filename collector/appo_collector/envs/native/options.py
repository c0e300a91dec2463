"""Options of a task: a frozen dataclass per task, filled from the configuration's ``env.overrides``."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from appo_common.errors import ConfigError

Options = TypeVar("Options", bound="CommonOptions")


def option(default: Any, *, low: float = 0.0, high: float = math.inf) -> Any:
    """Declare a field whose value, or both ends of its range, must lie in ``[low, high]``.

    The type of ``default`` decides what the configuration may hold: a bool, an int, a number, or a list of
    two numbers (lowest, highest) for a range. An end of a range may be infinite where the bound is.
    """
    return dataclasses.field(default=default, metadata={"low": low, "high": high})


@dataclasses.dataclass(frozen=True)
class CommonOptions:
    """Options that every native task has."""

    stagger: bool = option(False)
    """Start the first episode after ``reset`` at a random age in every environment, so that the time-outs of
    a batch are spread. Those first episodes are shorter than the limit; leave it off for evaluation."""


@dataclasses.dataclass(frozen=True)
class TaskOptions(CommonOptions):
    """Options of a task that measures its episodes in seconds."""

    episode_seconds: float = option(10.0, low=1e-3)
    """Simulated seconds after which an episode is truncated; rounded to whole environment steps, at
    least one."""


def read_options(kind: type[Options], overrides: Mapping[str, Any]) -> Options:
    """Return the task's options with ``overrides`` applied.

    Raises ConfigError that lists every unknown key and every value of the wrong type or out of bounds.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    errors = []
    values = {}
    for key, value in overrides.items():
        if key not in fields:
            errors.append(f"env.overrides.{key}: unknown option (value {value!r}); {_suggest(key, fields)}")
            continue
        values[key], wanted = _checked(value, fields[key])
        if wanted:
            errors.append(f"env.overrides.{key}: {value!r} is not allowed; it must be {wanted}")
    if errors:
        raise ConfigError("\n".join(errors))
    return kind(**values)


def _suggest(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(key), list(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}Allowed: {', '.join(sorted(known))}"


def _checked(value: Any, field: dataclasses.Field[Any]) -> tuple[Any, str]:
    """Return the value in the field's type, and what was wanted where it does not fit."""
    default, low, high = field.default, field.metadata["low"], field.metadata["high"]
    if isinstance(default, bool):
        return value, "" if isinstance(value, bool) else "true or false"
    if isinstance(default, tuple):
        pair = list(value) if isinstance(value, (list, tuple)) else []
        fits = len(pair) == 2 and all(_is_number(end) and low <= end <= high for end in pair) and pair[0] <= pair[1]
        return tuple(pair), "" if fits else f"a list [lowest, highest] of numbers {_bounds(low, high)}"
    if isinstance(default, int):
        fits = isinstance(value, int) and _number_in(value, low, high)
        return value, "" if fits else f"a whole number {_bounds(low, high)}"
    if not _number_in(value, low, high):
        return value, f"a number {_bounds(low, high)}"
    return float(value), ""


def _number_in(value: Any, low: float, high: float) -> bool:
    return _is_number(value) and math.isfinite(value) and low <= value <= high


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _bounds(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return "of any size"
    return f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
