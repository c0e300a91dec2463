"""Check rsl_rl's training dictionary (the ``train:`` section) without changing it: keys, types and ranges.

Nothing here needs torch or rsl_rl; the classes that the dictionary names are looked at by
:mod:`appo_common.train_classes`. Whoever builds models from the dictionary deep-copies it first, because
rsl_rl pops keys from what it is given.
"""

from __future__ import annotations

import copy
import difflib
import logging
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from appo_common.errors import ConfigError

log = logging.getLogger(__name__)

ABSENT: Any = object()
"""Stands for the value of a key that is not there."""

ALGORITHM_NAMES = tuple(
    [f"{prefix}PPO" for prefix in ("", "rsl_rl.algorithms:", "rsl_rl.algorithms.")]
    + [f"rsl_rl.algorithms.ppo{separator}PPO" for separator in ":."]
    + ["APPO", "appo_learner.appo:APPO", "appo_learner.appo.APPO"]
)
"""Every accepted ``algorithm.class_name``. All train with APPO, which takes exactly PPO's arguments."""

SHORT_NAMES = {"CategoricalDistribution": "appo_common.distributions:CategoricalDistribution"}
"""Classes of our own that may be named as rsl_rl's are, and what rsl_rl can import them by."""

WITHOUT_EFFECT = {
    "class_name": "the learner is the runner",
    "clip_actions": "actions reach the environment as sampled; let the environment clip them",
    "device": "the learner's device is learner.device (--device)",
    "disable_rnd_load": "RND is not supported yet",
    "empirical_normalization": "rsl_rl 5 reads actor.obs_normalization and critic.obs_normalization",
    "load_checkpoint": "a run is continued with --resume PATH",
    "load_run": "a run is continued with --resume PATH",
    "multi_gpu": "rsl_rl's own runner sets it",
    "other_dir": "a run is continued with --resume PATH",
    "resume": "a run is continued with --resume PATH",
}
"""Keys that runners built on rsl_rl read: accepted so that their files load, and why they change nothing."""

TOP_LEVEL_KEYS = frozenset(
    {"actor", "critic", "algorithm", "obs_groups"}
    | {"seed", "num_steps_per_env", "max_iterations", "save_interval", "check_for_nan", "torch_compile_mode"}
    | {"experiment_name", "run_name", "logger", "wandb_project", "wandb_tags"}
    | {"neptune_project", "upload_model"}
    | set(WITHOUT_EFFECT)
)
"""Keys that a training dictionary may have: rsl_rl's, and those of Isaac Lab's and mjlab's runners."""


OBS_SETS = frozenset({"actor", "critic", "policy", "rnd_state", "student", "teacher"})
"""Names of rsl_rl's observation sets. Only ``actor`` and ``critic`` are read here."""


class Problem(NamedTuple):
    """One thing that is wrong: where, what, and what to do about it."""

    key: str
    """Dotted key, e.g. ``algorithm.gamma``."""
    value: object
    """The value found, or :data:`ABSENT`."""
    text: str
    """What is allowed, and the remedy."""
    involves: tuple[str, ...] = ()
    """Other dotted keys whose values take part in the rule that was broken."""

    def under(self, prefix: str) -> Problem:
        """Return this problem with ``prefix`` put before all its keys."""
        start = f"{prefix}." if prefix else ""
        return self._replace(key=start + self.key, involves=tuple(start + key for key in self.involves))


class Problems(ValueError):
    """Carries several problems through a pydantic validator, which would report a single one otherwise."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{problem.key}: {problem.text}" for problem in self.problems))


class Rule(NamedTuple):
    """What a value has to be: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf


def _or_null(rule: Rule) -> Rule:
    return Rule(f"{rule.words}, or null", lambda value: value is None or rule.holds(value))


def _one_of(*names: str) -> Rule:
    return Rule(" or ".join(names), lambda value: value in names)


COUNT = Rule("a whole number above 0", lambda value: _is_int(value) and value > 0)
SEED = Rule("a whole number from 0 to 2^63 - 1", lambda value: _is_int(value) and 0 <= value < 2**63)
POSITIVE = Rule("a number above 0", lambda value: _is_number(value) and value > 0)
NOT_NEGATIVE = Rule("a number, 0 or more", lambda value: _is_number(value) and value >= 0)
FRACTION = Rule("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))
TEXT = Rule("text", lambda value: isinstance(value, str))
LAYERS = Rule(
    "a list of layer widths above 0 (-1 for the input's width)",
    lambda value: isinstance(value, (list, tuple)) and bool(value) and all(map(_is_width, value)),
)
CHOICES = Rule(
    "a list of whole numbers above 0, one per action",
    lambda value: isinstance(value, list) and bool(value) and all(map(COUNT.holds, value)),
)
INTERVAL = Rule(
    "two numbers, the smaller one first",
    lambda value: _are_numbers(value) and len(value) == 2 and value[0] < value[1],
)
LATER = Rule(
    "null: this version does not support it; remove it or use rsl_rl's own runner",
    lambda value: value is None,
)


def _are_numbers(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_number, value))


def _is_width(value: object) -> bool:
    return COUNT.holds(value) or (_is_int(value) and value == -1)


RULES = {
    "num_steps_per_env": COUNT,
    "max_iterations": COUNT,
    "save_interval": COUNT,
    "seed": SEED,
    "experiment_name": _or_null(TEXT),
    "run_name": _or_null(TEXT),
    "check_for_nan": FLAG,
    "torch_compile_mode": _or_null(TEXT),
    "logger": Rule("a writer's name or section", lambda value: isinstance(value, (str, dict))),
    "algorithm.num_learning_epochs": COUNT,
    "algorithm.num_mini_batches": COUNT,
    "algorithm.clip_param": POSITIVE,
    "algorithm.gamma": FRACTION,
    "algorithm.lam": FRACTION,
    "algorithm.value_loss_coef": NOT_NEGATIVE,
    "algorithm.entropy_coef": NOT_NEGATIVE,
    "algorithm.learning_rate": POSITIVE,
    "algorithm.max_grad_norm": POSITIVE,
    "algorithm.desired_kl": _or_null(POSITIVE),
    "algorithm.schedule": _one_of("adaptive", "fixed"),
    "algorithm.optimizer": TEXT,
    "algorithm.use_clipped_value_loss": FLAG,
    "algorithm.normalize_advantage_per_mini_batch": FLAG,
    "algorithm.use_mixed_precision": FLAG,
    "algorithm.share_cnn_encoders": _or_null(FLAG),
    "algorithm.grad_reduce_bucket_mb": POSITIVE,
    "algorithm.rnd_cfg": LATER,
    "algorithm.symmetry_cfg": LATER,
}
RULES |= {
    f"{model}.{key}": rule
    for model in ("actor", "critic")
    for key, rule in {
        "hidden_dims": LAYERS,
        "activation": TEXT,
        "obs_normalization": FLAG,
        "distribution_cfg.init_std": POSITIVE,
        "distribution_cfg.std_type": _one_of("scalar", "log"),
        "distribution_cfg.std_range": INTERVAL,
        "distribution_cfg.learn_std": FLAG,
        "distribution_cfg.action_range": INTERVAL,
        "distribution_cfg.nvec": CHOICES,
    }.items()
}


def structure_problems(train: dict[str, Any]) -> list[Problem]:
    """Return everything wrong with the keys, types and ranges of a training dictionary."""
    unknown = [key for key in train if key not in TOP_LEVEL_KEYS]
    problems = [Problem(key, train[key], _unknown_top_level(key)) for key in unknown]
    if "num_steps_per_env" not in train:
        text = "is missing; add the number of steps in one rollout of an environment, e.g. 24"
        problems.append(Problem("num_steps_per_env", ABSENT, text))
    for section in ("actor", "critic", "algorithm", "actor.distribution_cfg"):
        problems += _section_problems(train, section)
    if lookup(train, "critic.distribution_cfg") not in (ABSENT, None):
        problems += _section_problems(train, "critic.distribution_cfg")
    problems += _obs_group_problems(train.get("obs_groups", ABSENT))
    for key, rule in RULES.items():
        value = lookup(train, key)
        if value is not ABSENT and not rule.holds(value):
            problems.append(Problem(key, value, f"must be {rule.words}"))
    name = lookup(train, "algorithm.class_name")
    if isinstance(name, str) and name not in ALGORITHM_NAMES:
        text = "must be APPO, or PPO in one of rsl_rl's spellings; APPO adds nothing to the dictionary"
        problems.append(Problem("algorithm.class_name", name, text + nearest(name, ALGORITHM_NAMES, "")))
    return problems


def resolved_obs_groups(train: dict[str, Any], groups: Collection[str]) -> dict[str, list[str]]:
    """Return the observation groups that the actor and the critic read, from those the environment offers.

    A set missing from ``train.obs_groups`` falls back as in rsl_rl: to the group of the set's own name,
    else to ``policy``; the log says so each time. Raises :class:`ConfigError` for a group that is not offered.
    """
    resolved = {}
    given = train.get("obs_groups") or {}
    for set_name in ("actor", "critic"):
        if set_name in given:
            resolved[set_name] = list(given[set_name])
            if missing := [name for name in resolved[set_name] if name not in groups]:
                known = ", ".join(sorted(groups))
                raise ConfigError(f"train.obs_groups.{set_name} names {missing}; the environment offers {known}")
            continue
        fallback = next((name for name in (set_name, "policy") if name in groups), None)
        if fallback is None:
            raise ConfigError(
                f"train.obs_groups.{set_name} is missing, and the environment has neither group {set_name!r} "
                f"nor 'policy' to fall back on; list some of its groups there: {', '.join(sorted(groups))}"
            )
        log.info("train.obs_groups has no %r: the %s reads group %r", set_name, set_name, fallback)
        resolved[set_name] = [fallback]
    return resolved


def importable(name: Any) -> Any:
    """Return a ``class_name`` as rsl_rl can resolve it; only :data:`SHORT_NAMES` change."""
    return SHORT_NAMES.get(name, name) if isinstance(name, str) else name


def with_importable_names(train: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy of a training dictionary without :data:`SHORT_NAMES`, so that rsl_rl itself can read it."""
    train = copy.deepcopy(train)
    for model in ("actor", "critic"):
        distribution = lookup(train, f"{model}.distribution_cfg")
        if isinstance(distribution, dict) and "class_name" in distribution:
            distribution["class_name"] = importable(distribution["class_name"])
    return train


def keys_without_effect(train: dict[str, Any]) -> dict[str, str]:
    """Return the keys that are set here but change nothing, each with the reason, for one line in the log."""
    return {key: reason for key, reason in WITHOUT_EFFECT.items() if train.get(key) not in (None, False, "")}


def lookup(tree: Any, key: str) -> Any:
    """Return the value at a dotted key, or :data:`ABSENT`."""
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return ABSENT
        tree = tree[part]
    return tree


def nearest(name: object, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, else the list of known names."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here: {', '.join(known)}" if otherwise is None else otherwise


def _unknown_top_level(key: object) -> str:
    if key == "policy":
        return "is the old form; rsl_rl 5 reads one model under actor and one under critic instead"
    return "unknown key" + nearest(key, TOP_LEVEL_KEYS)


def _section_problems(train: dict[str, Any], path: str) -> list[Problem]:
    section_words = "a section with class_name and the arguments of that class"
    section = lookup(train, path)
    parent = path.rpartition(".")[0]
    if parent and not isinstance(lookup(train, parent), dict):
        return []  # already reported for the parent
    if section is ABSENT:
        return [Problem(path, ABSENT, f"is missing; add {section_words}")]
    if not isinstance(section, dict):
        return [Problem(path, section, f"must be {section_words}")]
    name = section.get("class_name", ABSENT)
    if name is ABSENT:
        text = "is missing; name the class, e.g. APPO, MLPModel, GaussianDistribution"
        return [Problem(f"{path}.class_name", ABSENT, text)]
    if not isinstance(name, str):
        return [Problem(f"{path}.class_name", name, "must be a class's name or package.module:Class")]
    return []


def _obs_group_problems(groups: Any) -> list[Problem]:
    if groups is ABSENT:
        return []
    if not isinstance(groups, dict):
        return [Problem("obs_groups", groups, "must map actor and critic to lists of observation groups")]
    problems = []
    for name, names in groups.items():
        if name not in OBS_SETS:
            text = f"unknown observation set{nearest(name, OBS_SETS)}"
            problems.append(Problem(f"obs_groups.{name}", names, text))
        elif not (isinstance(names, (list, tuple)) and names and all(map(TEXT.holds, names))):
            text = "must be a list of at least one of the environment's observation groups, e.g. [policy]"
            problems.append(Problem(f"obs_groups.{name}", names, text))
    return problems
