"""Check the classes that rsl_rl's training dictionary names, and their arguments, against the constructors.

Apart from :mod:`appo_common.train_config` because it imports torch, rsl_rl and the user's own modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from appo_common.train_config import ABSENT, Problem, lookup, nearest

PASSED_BY_THE_PROGRAM = frozenset(
    {"actor", "critic", "storage", "device", "multi_gpu_cfg"}  # to the algorithm
    | {"obs", "obs_groups", "obs_set", "output_dim", "cnns"}  # to models and distributions
)
"""Constructor arguments of algorithms, models and distributions that rsl_rl fills in, so the user cannot."""


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
    return problems + _name_problems(train, "algorithm.optimizer", resolve_optimizer)


def _class_problems(train: dict[str, Any], path: str, kind: str, is_kind: Callable[[type], bool]) -> list[Problem]:
    """Resolve ``path.class_name`` as rsl_rl does; check the kind of class and the arguments given to it."""
    from rsl_rl.utils import resolve_callable

    key = f"{path}.class_name"
    name = lookup(train, key)
    if not isinstance(name, str):
        return []
    try:
        cls = resolve_callable(name)
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

    return [*models.__all__, *(name for name in modules.__all__ if name.endswith("Distribution"))]


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


def _argument_problems(train: dict[str, Any], path: str, accepted: dict[str, bool]) -> list[Problem]:
    section = lookup(train, path)
    if not isinstance(section, dict):
        return []
    problems = []
    given = [name for name in section if name != "class_name"]
    for name in given:
        if name in PASSED_BY_THE_PROGRAM:
            text = "is passed by the program and cannot be set here; remove it"
            problems.append(Problem(f"{path}.{name}", section[name], text))
        elif name not in accepted and "" not in accepted:
            text = f"unknown argument of {section.get('class_name')}{nearest(name, accepted)}"
            problems.append(Problem(f"{path}.{name}", section[name], text))
    for name, required in accepted.items():
        if required and name not in given:
            text = f"is missing; {section.get('class_name')} cannot be built without it"
            problems.append(Problem(f"{path}.{name}", ABSENT, text))
    return problems


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
