"""pydantic's errors in our words: what is allowed at a key comes from the schema of :class:`RunConfig`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import ValidationError

from appo_common.config import RunConfig
from appo_common.train_config import ABSENT, RULES, TOP_LEVEL_KEYS, Problem, Problems, nearest

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
    "object": "a section of keys",
}


def problems_of(error: ValidationError) -> list[Problem]:
    """Return one problem per key that pydantic refused, also where it has an error per choice of a union."""
    problems: dict[str, Problem] = {}
    for item in error.errors(include_url=False):
        raised = item.get("ctx", {}).get("error")
        if isinstance(raised, Problems):
            prefix = ".".join(_known_path(item["loc"])[0])
            found = [problem.under(prefix) for problem in raised.problems]
        else:
            found = [_problem(item)]
        for problem in found:
            problems.setdefault(problem.key, problem)
    return list(problems.values())


def _problem(item: Any) -> Problem:
    """Translate one entry of ``ValidationError.errors()``."""
    path, schema = _known_path(item["loc"])
    key, kind, value = ".".join(path), item["type"], item["input"]
    if kind == "missing":
        return Problem(key or str(item["loc"][-1]), ABSENT, "is missing; put rsl_rl's training dictionary there")
    if kind == "extra_forbidden":
        unknown = str(item["loc"][-1])
        return Problem(".".join([*path, unknown]), value, "unknown key" + _suggestion(unknown, schema))
    if kind == "invalid_key" or item["loc"][-1] == "[key]":
        return Problem(key or str(item["loc"][0]), value, "a key must be text; put it in quotes")
    if raised := item.get("ctx", {}).get("error"):
        return Problem(key, value, str(raised))
    default = schema.get("default", ABSENT)
    hint = "" if default is ABSENT or isinstance(default, dict) else f"; leave it out for the default, {_yaml(default)}"
    return Problem(key, value, f"must be {_words(schema)}{hint}")


@cache
def _schema() -> dict[str, Any]:
    return RunConfig.model_json_schema()


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference to a section's schema; what stands beside the reference stays."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return {**_schema()["$defs"][name], **schema} if name else schema


def _known_path(loc: tuple[int | str, ...]) -> tuple[list[str], dict[str, Any]]:
    """Follow pydantic's location as far as it names keys (unions add more); also return the schema there."""
    path: list[str] = []
    schema = _schema()
    for part in loc:
        inner = schema.get("properties", {}).get(part)
        if inner is None:
            break
        path.append(str(part))
        schema = _resolved(inner)
    return path, schema


def _words(schema: dict[str, Any]) -> str:
    """Say in words what a schema allows, e.g. ``a whole number from 1 to 16``."""
    schema = _resolved(schema)
    if "anyOf" in schema:
        return " or ".join(_words(choice) for choice in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(_yaml(choice) for choice in schema.get("enum", [schema.get("const")]))
    words = _TYPES.get(schema.get("type", ""), "another value")
    if schema.get("minLength"):
        return f"{words}, not empty"
    low, high, above = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMinimum")
    if low is not None and high is not None:
        return f"{words} from {_yaml(low)} to {_yaml(high)}"
    if above is not None:
        return f"{words} above {_yaml(above)}"
    return words if low is None else f"{words}, {_yaml(low)} or more"


def _yaml(value: Any) -> str:
    """Show a default or limit the way it is written in a file."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _suggestion(unknown: str, section: dict[str, Any]) -> str:
    """Point to the key of that name in another section, else to the nearest key of this one."""
    elsewhere = [key for key in _all_keys(_schema()) if key.rpartition(".")[2] == unknown]
    return f"; did you mean {elsewhere[0]}?" if elsewhere else nearest(unknown, section.get("properties", {}))


def _all_keys(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key there is, those of the training dictionary included."""
    for name, inner in schema.get("properties", {}).items():
        yield prefix + name
        yield from _all_keys(_resolved(inner), f"{prefix}{name}.")
    if not prefix:
        yield from (f"train.{key}" for key in sorted(TOP_LEVEL_KEYS | set(RULES)))
