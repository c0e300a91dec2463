"""From a YAML file or preset, ``--set`` and options to one :class:`RunConfig`, or to every error at once.

Later sources win: the model's default, the file, ``--set KEY=VALUE``, command-line options. The draft knows
who set which key, so that an error names the place where the user has to change something::

    a.yaml: learner.max_in_flight = 20: must be a whole number from 1 to 16; leave it out for the default, 2
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from appo_common import yaml_text
from appo_common.config import RunConfig
from appo_common.config_errors import problems_of
from appo_common.errors import ConfigError
from appo_common.train_config import ABSENT, Problem, lookup, nearest

log = logging.getLogger(__name__)

DEFAULT_PRESET = "cartpole-swingup"
PRESET_DIR = Path(__file__).parent / "presets"

_STAND_IN: dict[str, Any] = {
    "num_steps_per_env": 1,
    "actor": {"class_name": "MLPModel", "distribution_cfg": {"class_name": "GaussianDistribution"}},
    "critic": {"class_name": "MLPModel"},
    "algorithm": {"class_name": "PPO", "num_mini_batches": 1},
}
"""A training dictionary with nothing missing, to go on checking the other sections beside a refused one."""


class Preset(NamedTuple):
    """A configuration that comes with the program."""

    name: str
    description: str
    """The comment on its first line."""
    path: Path


def list_presets() -> list[Preset]:
    """Return the bundled presets by name."""
    presets = []
    for path in sorted(PRESET_DIR.glob("*.yaml")):
        with path.open(encoding="utf-8") as lines:
            presets.append(Preset(path.stem, lines.readline().lstrip("# ").strip(), path))
    return presets


def load_config(
    source: str | None = None, sets: Sequence[str] = (), options: Mapping[str, tuple[str, Any]] | None = None
) -> RunConfig:
    """Return the configuration of a run, or raise one :class:`ConfigError` with a line for every problem.

    Args:
        source: path of a YAML file, or a preset's name; None is the preset ``cartpole-swingup``.
        sets: ``KEY=VALUE`` with a dotted key; the value is read as YAML.
        options: for each dotted key the option's name and value, e.g. ``{"train.seed": ("--seed", 3)}``; the
            value None means that the option was not given.
    """
    draft = _read(DEFAULT_PRESET if source is None else source)
    named = lookup(draft.tree, "env.name")
    for assignment in sets:
        draft.set_from_text(assignment)
    for key, (option, value) in (options or {}).items():
        if value is not None:
            draft.set(key, value, option)
    _drop_overrides_of_another(draft, named)
    config, problems = _validate(draft.tree)
    lines = draft.lines + [draft.line(problem) for problem in problems]
    if lines or config is None:
        raise ConfigError("\n".join(lines))
    return config


def _drop_overrides_of_another(draft: _Draft, named: Any) -> None:
    """Leave out the file's ``env.overrides`` where ``--set`` names another environment than ``named``, the file's."""
    env = draft.tree.get("env")
    overrides = env.get("overrides") if isinstance(env, dict) else None
    if "env.name" not in draft.setters or lookup(draft.tree, "env.name") == named or not isinstance(overrides, dict):
        return
    set_here = [key.split(".")[2:3] for key in draft.setters if key.startswith("env.overrides")]
    dropped = {} if [] in set_here else {key: value for key, value in overrides.items() if [key] not in set_here}
    for key in dropped:
        del overrides[key]
    if dropped:
        log.info("env.overrides %s of %s are left out: they belong to %s", dropped, draft.place, named)


@dataclass
class _Draft:
    """The values so far, before they are checked, and where each came from."""

    place: str
    """The file, as the user named it."""
    tree: dict[str, Any] = field(default_factory=dict)
    setters: dict[str, str] = field(default_factory=dict)
    """Dotted key to ``--set`` or the option that set it; whatever is not here came from the file."""
    lines: list[str] = field(default_factory=list)
    """Problems found on the way, ready to print."""

    def set_from_text(self, assignment: str) -> None:
        """Apply one ``KEY=VALUE``."""
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            example = "--set train.algorithm.learning_rate=1e-3"
            self.lines.append(f"--set {assignment}: must be KEY=VALUE with a dotted key, e.g. {example}")
            return
        try:
            value, duplicates = yaml_text.parse(text)
        except yaml.YAMLError as error:
            self.lines.append(f"--set {assignment}: the value is not YAML ({yaml_text.reason(error)}); quote it")
            return
        for twice in duplicates:
            self.lines.append(f"--set {assignment}: key {twice.key!r} appears twice; keep one of them")
        self.set(key, value, "--set")

    def set(self, key: str, value: Any, setter: str) -> None:
        """Put ``value`` at a dotted key, making the sections on the way."""
        *sections, last = key.split(".")
        node = self.tree
        for depth, name in enumerate(sections, start=1):
            if node.get(name) is None:
                node[name] = {}
            if not isinstance(node[name], dict):
                holder = ".".join(sections[:depth])
                text = f"{holder} is {_shown(node[name])}, not a section with keys; set {holder} itself"
                self.lines.append(f"{setter}: {key} = {_shown(value)}: {text}")
                return
            node = node[name]
        node[last] = value
        self.setters[key] = setter

    def line(self, problem: Problem) -> str:
        """Return the line that tells the user of a problem."""
        place = self._setter(problem.key)
        if place is None and lookup(self.tree, problem.key) is ABSENT:  # a default, broken by another key
            place = next(filter(None, map(self._setter, problem.involves)), None)
        place = place or self.place
        if problem.value is ABSENT:
            return f"{place}: {problem.key} {problem.text}"
        return f"{place}: {problem.key} = {_shown(problem.value)}: {problem.text}"

    def _setter(self, key: str) -> str | None:
        """Return what set a key, a section around it or a key inside it; None if only the file can have."""
        parts = key.split(".")
        around = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        inside = (other for other in self.setters if other.startswith(f"{key}."))
        return next((self.setters[other] for other in (*around, *inside) if other in self.setters), None)


def _shown(value: object) -> str:
    """Return a value as YAML would show it, on one line and not too long."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except ValueError:
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _read(source: str) -> _Draft:
    """Read a preset or file; syntax errors end here, because nothing after them can be trusted."""
    presets = {preset.name: preset.path for preset in list_presets()}
    path, place = (presets[source], f"preset {source}") if source in presets else (Path(source), source)
    try:
        tree, duplicates = yaml_text.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{source}: no such file or preset{nearest(source, presets)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place}: cannot be read ({error}); give a YAML file in UTF-8") from None
    except yaml.YAMLError as error:
        text = f"{yaml_text.reason(error)}; check indentation, colons and quotes there"
        raise ConfigError(f"{place}: {text}") from None
    if tree is not None and not isinstance(tree, dict):
        raise ConfigError(f"{place} = {_shown(tree)}: must hold sections: env, train, learner, network")
    draft = _Draft(place, tree or {})
    for twice in duplicates:
        where = f"line {twice.line}, column {twice.column}"
        text = f"key {twice.key!r} appears twice, first on line {twice.first_line}; keep one of them"
        draft.lines.append(f"{place}: {where}: {text}")
    return draft


def _validate(tree: dict[str, Any]) -> tuple[RunConfig | None, list[Problem]]:
    """Return the configuration and all problems.

    Rules between keys are only reached once the single keys are right. So wrong values are taken out and the
    rest is checked again until it passes. Rules about such a value stay out: they would judge its default.
    """
    problems: dict[str, Problem] = {}
    rest, removed = copy.deepcopy(tree), list[str]()
    config = None
    while config is None:
        try:
            config = RunConfig.model_validate(rest)
        except ValidationError as error:
            found = problems_of(error)
            for problem in found:
                if not _touches(problem, removed):
                    problems.setdefault(problem.key, problem)
            gone = [problem.key for problem in found if _remove(rest, problem.key)]
            removed += gone
            if not gone and "train" in removed:
                break
            if not gone:  # what train lacks cannot be taken out
                rest["train"] = copy.deepcopy(_STAND_IN)
                removed.append("train")
    if isinstance(tree.get("train"), dict):
        from appo_common.train_classes import class_problems

        for problem in class_problems(tree["train"]):  # imports torch, which takes seconds
            inner = problem.under("train")
            problems.setdefault(inner.key, inner)
    return config, list(problems.values())


def _touches(problem: Problem, removed: list[str]) -> bool:
    keys = (problem.key, *problem.involves)
    return any(key == gone or key.startswith(f"{gone}.") for key in keys for gone in removed)


def _remove(tree: Any, key: str) -> bool:
    """Take the value at a dotted key out of a nested dict; say whether there was one."""
    *sections, last = key.split(".")
    for name in sections:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return isinstance(tree, dict) and tree.pop(last, ABSENT) is not ABSENT
