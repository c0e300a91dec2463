"""What UniLab knows of a task: its name in the registry, and what its configuration files declare."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appo_collector.envs.extras import require
from appo_common.errors import ConfigError

SOURCES = "src/unilab/"
"""Where UniLab's own configuration files look for robots: in a clone of it, seen from its root."""


@dataclass(frozen=True)
class Declaration:
    """A task, ready for ``unilab.base.registry.make``."""

    registered: str
    """Its name in the registry, e.g. ``Go2JoystickFlat``."""
    backend: str
    """``sim_backend``: which simulator."""
    options: dict[str, Any]
    """``env_cfg_override``: the declaration with the user's overrides."""


def declaration(registry: Any, task: str, overrides: Mapping[str, Any]) -> Declaration:
    """Find ``task`` in UniLab's configuration files or in its ``registry``, and merge ``overrides`` into it.

    ``sim_backend`` (mujoco) and ``algo`` (ppo: whose files declare the task) are taken out of the overrides.
    Raises ConfigError for a task, a simulator or an algorithm that UniLab does not have.
    """
    root = Path(require("unilab", "unilab", f"unilab:{task}").__file__ or "").parent
    options = dict(overrides)
    backend, algo = str(options.pop("sim_backend", "mujoco")), str(options.pop("algo", "ppo"))
    algos = sorted(path.name for path in (root / "conf").iterdir() if (path / "task").is_dir())
    if algo not in algos:
        raise ConfigError(f"env.overrides.algo: {algo!r} has no configuration in UniLab; known: {', '.join(algos)}")
    files = root / "conf" / algo / "task"
    tasks = sorted(path.name for path in files.iterdir() if path.is_dir())
    registered = registry.list_registered_envs()
    file = re.sub("(?<=.)(?=[A-Z])", "_", task).lower()  # Go2JoystickFlat is declared as go2_joystick_flat
    if file in tasks:
        _check_backend(task, backend, sorted(path.stem for path in (files / file).glob("*.yaml")))
        name, declared = _composed(root, algo, file, backend)
        return Declaration(name, backend, located(merged(declared, options), root))
    if task in registered:
        _check_backend(task, backend, registered[task]["available_backends"])
        return Declaration(task, backend, located(options, root))
    known = [*tasks, *registered]
    near = difflib.get_close_matches(task, known, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(near)}." if near else "nothing is near to it."
    raise ConfigError(f"env.name: 'unilab:{task}' is unknown to UniLab; {hint} Known: {', '.join(known)}")


def _check_backend(task: str, backend: str, known: list[str]) -> None:
    if backend not in known or backend == "base":  # base.yaml holds what the simulators share
        others = ", ".join(name for name in known if name != "base")
        raise ConfigError(f"env.overrides.sim_backend: unilab:{task} has no {backend!r}; known: {others}")


def _composed(root: Path, algo: str, task: str, backend: str) -> tuple[str, dict[str, Any]]:
    """Read the task's YAML files as UniLab's own training scripts do."""
    hydra, adapter = (require(module, "unilab", f"unilab:{task}") for module in ("hydra", "unilab.base.config_adapter"))
    with hydra.initialize_config_dir(config_dir=str(root / "conf" / algo), version_base="1.3"):
        cfg = hydra.compose("config", overrides=[f"task={task}/{backend}"])
    return str(cfg.training.task_name), adapter.EnvConfigAdapter(cfg, root_dir=root).build_task_env_cfg_override()


def merged(declared: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``declared`` with ``overrides``, mapping by mapping."""
    result = dict(declared)
    for key, value in overrides.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def located(options: Any, root: Path) -> Any:
    """Return ``options`` with paths into a clone of UniLab turned to the installed package at ``root``.

    A path that leads to a file from the working directory stays as it is.
    """
    if isinstance(options, Mapping):
        return {key: located(value, root) for key, value in options.items()}
    if isinstance(options, list):
        return [located(value, root) for value in options]
    if isinstance(options, str) and options.startswith(SOURCES) and not Path(options).exists():
        return str(root / options.removeprefix(SOURCES))
    return options
