"""Check the classes that rsl_rl's training dictionary names, and their arguments, against the constructors.

Apart from :mod:`appo_common.train_config` because it imports torch, rsl_rl and the user's own modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from appo_common.train_config import ABSENT, SHORT_NAMES, Problem, importable, lookup, nearest

PASSED_BY_THE_PROGRAM = frozenset(
    {"actor", "critic", "storage", "device", "multi_gpu_cfg"}  # to the algorithm
    | {"obs", "obs_groups", "obs_set", "output_dim", "cnns"}  # to models and distributions
)
"""Constructor arguments of algorithms, models and distributions that rsl_rl fills in, so the user cannot."""

CNN_EXAMPLE = "`cnn_cfg: {output_channels: [16, 32], kernel_size: 3, stride: 2, activation: relu}`"
"""Encoder that suits small images, as it would stand in a file."""

FILLED_IN = frozenset({"nvec"})
"""Constructor arguments that the environment's spec fills in where the user does not give them."""


def class_problems(train: dict[str, Any]) -> list[Problem]:
    """Return what is wrong with the classes that a training dictionary names and with their arguments.

    Whatever :func:`appo_common.train_config.structure_problems` refuses already is passed over.
    """
    from rsl_rl.algorithms import PPO
    from rsl_rl.modules.distribution import Distribution
    from rsl_rl.utils import resolve_nn_activation, resolve_optimizer

    # APPO takes PPO's arguments. rsl_rl reads share_cnn_encoders before it calls the constructor.
    problems = _argument_problems(train, "algorithm", {**_arguments(PPO), "share_cnn_encoders": False})
    for model in ("actor", "critic"):
        distribution = f"{model}.distribution_cfg"
        problems += _class_problems(train, model, "model, e.g. MLPModel", lambda cls: hasattr(cls, "is_recurrent"))
        problems += _class_problems(
            train,
            distribution,
            "distribution, e.g. GaussianDistribution",
            lambda cls: issubclass(cls, Distribution),
        )
        problems += _name_problems(train, f"{model}.activation", resolve_nn_activation)
    return problems + _cnn_problems(train) + _name_problems(train, "algorithm.optimizer", resolve_optimizer)


def resolve(class_name: str) -> Any:
    """Import the class of a ``class_name`` as rsl_rl does; raises whatever the import raises."""
    from rsl_rl.utils import resolve_callable

    return resolve_callable(importable(class_name))


def takes_nvec(class_name: str) -> bool:
    """Whether a distribution is one for discrete actions: its constructor wants the number of choices, ``nvec``."""
    return "nvec" in inspect.signature(resolve(class_name)).parameters


def _class_problems(train: dict[str, Any], path: str, kind: str, is_kind: Callable[[type], bool]) -> list[Problem]:
    """Resolve ``path.class_name`` as rsl_rl does; check the kind of class and the arguments given to it."""
    key = f"{path}.class_name"
    name = lookup(train, key)
    if not isinstance(name, str):
        return []
    try:
        cls = resolve(name)
    except Exception as error:  # the user's own module runs here, and may raise anything
        text = f"cannot be imported ({error}); use package.module:Class, importable here and by collectors"
        return [Problem(key, name, text + nearest(name, _rsl_rl_names(), otherwise=""))]
    if not inspect.isclass(cls) or not is_kind(cls):
        return [Problem(key, name, f"must be a {kind}{nearest(name, _rsl_rl_names(), otherwise='')}")]
    if getattr(cls, "is_recurrent", False):
        return [Problem(key, name, "is recurrent, which this version does not support; use MLPModel or CNNModel")]
    return _argument_problems(train, path, _arguments(cls))


def _rsl_rl_names() -> list[str]:
    from rsl_rl import models, modules

    own = (name for name in modules.__all__ if name.endswith("Distribution"))
    return [*models.__all__, *own, *SHORT_NAMES]


def _arguments(cls: type) -> dict[str, bool]:
    """Return the constructor's arguments that a user may give, each with whether it must be given.

    An empty name stands for ``**kwargs``: any further argument is then the class's own business.
    """
    accepted = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            accepted[""] = False
        elif parameter.kind is not parameter.VAR_POSITIONAL and name not in PASSED_BY_THE_PROGRAM:
            accepted[name] = parameter.default is parameter.empty
    return accepted


def _argument_problems(
    train: dict[str, Any], path: str, accepted: dict[str, bool], owner: str | None = None
) -> list[Problem]:
    """Check a section's keys against the arguments of ``owner``; None: of the class that the section names."""
    section = lookup(train, path)
    if not isinstance(section, dict):
        return []
    owner = owner or str(section.get("class_name"))
    problems = []
    given = [name for name in section if name != "class_name"]
    for name in given:
        if name in PASSED_BY_THE_PROGRAM:
            text = "is passed by the program and cannot be set here; remove it"
            problems.append(Problem(f"{path}.{name}", section[name], text))
        elif name not in accepted and "" not in accepted:
            text = f"unknown argument of {owner}{_remedy(name, accepted)}"
            problems.append(Problem(f"{path}.{name}", section[name], text))
    for name, required in accepted.items():
        if required and name not in given and name not in FILLED_IN:
            text = f"is missing; {owner} cannot be built without it"
            problems.append(Problem(f"{path}.{name}", ABSENT, text))
    return problems


def _remedy(name: str, accepted: Collection[str]) -> str:
    """Say what to do about an argument that a class does not take."""
    from rsl_rl.modules import GaussianDistribution

    if not FILLED_IN.isdisjoint(accepted) and name in inspect.signature(GaussianDistribution).parameters:
        return ", which is for discrete actions and has no standard deviation; remove it"
    return nearest(name, accepted)


def _cnn_problems(train: dict[str, Any]) -> list[Problem]:
    """Check ``cnn_cfg``, one section for all images or one for each, against the constructor of rsl_rl's CNN."""
    from rsl_rl.models import CNNModel
    from rsl_rl.modules import CNN

    accepted = {name: needed for name, needed in _arguments(CNN).items() if name not in ("input_dim", "input_channels")}
    with_cnn = [model for model in ("actor", "critic") if _class_or_none(train, model) is CNNModel]
    shared = lookup(train, "algorithm.share_cnn_encoders") is True
    problems = []
    if shared and len(with_cnn) < 2:
        text = "must be false unless actor and critic are both a CNNModel"
        problems.append(Problem("algorithm.share_cnn_encoders", True, text))
    for model in with_cnn:
        key = f"{model}.cnn_cfg"
        cfg = lookup(train, key)
        if cfg in (ABSENT, None):
            if not shared or model == "actor":
                problems.append(Problem(key, cfg, f"is missing; write, for example, {CNN_EXAMPLE}"))
        elif not isinstance(cfg, dict):
            problems.append(Problem(key, cfg, f"must be a section; write, for example, {CNN_EXAMPLE}"))
        elif cfg and all(isinstance(part, dict) for part in cfg.values()):
            for group in cfg:
                problems += _argument_problems(train, f"{key}.{group}", accepted, "CNN")
        else:
            problems += _argument_problems(train, key, accepted, "CNN")
    return problems


def _class_or_none(train: dict[str, Any], path: str) -> Any:
    try:
        return resolve(lookup(train, f"{path}.class_name"))
    except Exception:  # reported by _class_problems
        return None


def _name_problems(train: dict[str, Any], key: str, resolve: Callable[[str], Any]) -> list[Problem]:
    """Check a name that rsl_rl looks up in a table of its own, e.g. an activation."""
    name = lookup(train, key)
    if not isinstance(name, str):
        return []
    try:
        resolve(name)
    except ValueError as error:
        return [Problem(key, name, str(error).replace("\n", " "))]
    return []
