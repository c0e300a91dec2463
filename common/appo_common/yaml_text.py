"""YAML without its traps: ``1e-3`` is a number, a date is text, a key given twice is noticed.

What :func:`dump` writes, :func:`parse` reads back to equal values.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml


class Duplicate(NamedTuple):
    """A key that stands a second time in the same section."""

    key: str
    line: int
    column: int
    """Where it stands again, both from 1."""
    first_line: int


def parse(text: str) -> tuple[Any, list[Duplicate]]:
    """Return the value of a YAML text and the keys that stand in it twice. Raises ``yaml.YAMLError``."""
    loader = _Loader(text)
    try:
        return _unshared(loader.get_single_data()), loader.duplicates
    finally:
        loader.dispose()


def _unshared(value: Any) -> Any:
    """Give every alias its own copy, so that a change to one place stays in one place."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    return [_unshared(item) for item in value] if isinstance(value, list) else value


def dump(value: Any) -> str:
    """Return plain data as YAML, mappings in their own order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def reason(error: yaml.YAMLError) -> str:
    """Say on one line where a text stops being YAML, lines and columns from 1, and why."""
    mark = getattr(error, "problem_mark", None)
    words = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {words}" if mark else words


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[Duplicate] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse an alias inside its own anchor: it would make a value that contains itself."""
        node = super().compose_node(parent, index)
        if node is not None and node.end_mark is None:  # an ancestor, not composed to its end yet
            raise yaml.MarkedYAMLError(problem="a value cannot contain itself", problem_mark=node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Notice repeated keys in the text itself; merge keys (``<<``), resolved later, may repeat some."""
        node = super().compose_mapping_node(anchor)
        first_lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line, column = key.start_mark.line + 1, key.start_mark.column + 1
            if key.value in first_lines:
                self.duplicates.append(Duplicate(key.value, line, column, first_lines[key.value]))
            first_lines.setdefault(key.value, line)
        return node


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write shared lists out each time: anchors such as ``&id001`` do not help a reader."""
        return True


def _resolvers(inherited: dict[str, list[tuple[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    """Return YAML 1.1's rules for plain scalars without dates, and with YAML 1.2's floats.

    YAML 1.1 demands ``1.0e-3``, with point and sign, and reads ``1e-3`` and ``5e6`` as text.
    """
    rules = {
        first: [rule for rule in inherited.get(first, []) if not rule[0].endswith(":timestamp")] for first in inherited
    }
    exponent = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
    for first in "-+.0123456789":
        rules.setdefault(first, []).append(("tag:yaml.org,2002:float", exponent))
    return rules


_Loader.yaml_implicit_resolvers = _resolvers(yaml.SafeLoader.yaml_implicit_resolvers)
_Dumper.yaml_implicit_resolvers = _resolvers(yaml.SafeDumper.yaml_implicit_resolvers)
