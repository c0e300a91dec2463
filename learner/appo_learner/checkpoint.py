"""Checkpoints: rsl_rl's keys, so that its runner and every play script read them, and one key of our own."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from appo_common.errors import AppoError, ConfigError
from appo_common.spec import EnvSpec
from appo_learner.appo import APPO

KEY = "appo"
"""Under which everything that rsl_rl does not know is kept."""
BEST = "best.pt"


class SaveFailed(AppoError):
    """A checkpoint could not be written."""


@dataclass
class Progress:
    """The counters of a run. They continue over a resume."""

    iteration: int = 0
    """Updates done; also the version of the policy."""
    env_steps: int = 0
    """Trained on."""
    env_steps_collected: int = 0
    rollouts_trained: int = 0
    rollouts_discarded: int = 0
    best_return: float | None = None
    """Highest mean return after any update."""
    best_saved: float | None = None
    """Mean return of ``best.pt``."""

    def note_return(self, mean_return: float | None) -> None:
        """Keep the highest mean return."""
        if mean_return is None or not math.isfinite(mean_return):
            return
        if self.best_return is None or mean_return > self.best_return:
            self.best_return = mean_return


@dataclass(frozen=True)
class Checkpoint:
    """What was read from a file."""

    path: Path
    state: dict[str, Any]
    spec: EnvSpec
    progress: Progress

    def restore(self, algorithm: APPO, device: str) -> None:
        """Put models, optimiser, learning rate, normaliser and random streams back.

        Raises:
            ConfigError: the models of the configuration are not those of the checkpoint.
        """
        try:
            algorithm.load(self.state, None, strict=True)
        except (RuntimeError, ValueError, KeyError) as error:
            raise ConfigError(
                f"--resume {self.path}: the models do not fit train.actor / train.critic: {str(error).splitlines()[0]}"
            ) from None
        rng = self.state[KEY]["rng"]
        torch.set_rng_state(rng["cpu"])
        if torch.device(device).type == "cuda" and "cuda" in rng:
            torch.cuda.set_rng_state(rng["cuda"], device)


def snapshot(algorithm: APPO, spec: EnvSpec, progress: Progress, config: dict[str, Any], device: str) -> dict[str, Any]:
    """Return the state of a run. It holds no time, host or path: equal runs have equal checkpoints."""
    rng = {"cpu": torch.get_rng_state()}
    if torch.device(device).type == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state(device)
    return {
        **algorithm.save(),
        "iter": progress.iteration,
        "infos": {"env_steps": progress.env_steps},
        KEY: {
            "spec": spec.model_dump(),
            "progress": asdict(progress),
            "learning_rate": algorithm.learning_rate,
            "rng": rng,
            "config": config,
        },
    }


def save(state: dict[str, Any], path: Path) -> None:
    """Write ``state`` whole or not at all: to a temporary name, to the disk, and only then to its name.

    Raises:
        SaveFailed: the disk is full or the directory cannot be written; what was there before stays as it was.
    """
    memory = io.BytesIO()  # a stream, not a path: torch writes a file's own name into the archive
    torch.save(state, memory)
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(memory.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise SaveFailed(f"cannot write the checkpoint {path}: {error.strerror}") from error


def load(path: Path) -> Checkpoint:
    """Read a checkpoint file on the CPU; nothing in it is executed.

    Raises:
        ConfigError: it cannot be read, is cut off, or was not written by this program.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        own = state[KEY]
        return Checkpoint(path, state, EnvSpec.model_validate(own["spec"]), Progress(**own["progress"]))
    except Exception as error:  # torch raises anything from EOFError to UnpicklingError on a damaged file
        raise ConfigError(f"--resume {path}: not a readable checkpoint of appo-learner ({error})") from None


def model_path(directory: Path, iteration: int) -> Path:
    """Return the name of the checkpoint after ``iteration`` updates."""
    return directory / f"model_{iteration}.pt"


def saved(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory, oldest first, without the best one."""
    numbered = [(_iteration(path), path) for path in directory.glob("model_*.pt")]
    return [path for number, path in sorted((n, p) for n, p in numbered if n is not None)]


def prune(directory: Path, keep_last: int) -> None:
    """Delete all but the newest ``keep_last``."""
    for path in saved(directory)[:-keep_last]:
        path.unlink(missing_ok=True)


def set_aside(directory: Path, iteration: int) -> None:
    """Rename checkpoints newer than ``iteration``, from which a run is continued: they belong to a branch given up."""
    for path in saved(directory):
        if (_iteration(path) or 0) > iteration:
            path.replace(path.with_suffix(".pt.old"))


def find(place: Path) -> Path:
    """Return the checkpoint that ``--resume`` names: a file, or the newest of a run directory.

    Raises:
        ConfigError: there is none.
    """
    if place.is_file():
        return place
    candidates: Iterable[Path] = saved(place / "checkpoints") or saved(place)
    for path in reversed(list(candidates)):
        return path
    raise ConfigError(f"--resume {place}: no checkpoint model_<iteration>.pt there or in its checkpoints/")


def _iteration(path: Path) -> int | None:
    text = path.stem.removeprefix("model_")
    return int(text) if text.isdigit() else None
