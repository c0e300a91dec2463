"""The directory of a run: where it lies and what is in it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from appo_common.config import RunConfig
from appo_common.errors import AppoError, ConfigError
from appo_common.sockets import Endpoints

CONFIG_NAME = "config.yaml"


@dataclass(frozen=True)
class RunDir:
    """``config.yaml``, ``endpoint.json``, ``checkpoints/``, ``logs/``, ``metrics.jsonl``, ``summary.json``."""

    path: Path

    @classmethod
    def create(cls, config: RunConfig, *, may_exist: bool) -> RunDir:
        """Make the directory and write the resolved configuration.

        Raises:
            ConfigError: it already holds a run, and that is not being resumed.
            AppoError: it cannot be written.
        """
        path = Path(config.learner.run_dir) if config.learner.run_dir else _fresh(config)
        if _holds_a_run(path) and not may_exist:
            raise ConfigError(
                f"learner.run_dir = {path}: already holds a run; continue it with --resume {path}, "
                "or choose another --run-dir"
            )
        try:
            for directory in (path, path / "checkpoints", path / "logs"):
                directory.mkdir(parents=True, exist_ok=True)
            (path / CONFIG_NAME).write_text(config.to_yaml(), encoding="utf-8")
        except OSError as error:
            raise AppoError(f"cannot write the run directory {path}: {error.strerror}") from error
        return cls(path)

    @property
    def checkpoints(self) -> Path:
        """Directory of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Directory of the local collectors' logs."""
        return self.path / "logs"

    def write_endpoints(self, endpoints: Endpoints) -> None:
        """Write ``endpoint.json``: the addresses that were really bound."""
        text = json.dumps({"control": endpoints.control, **asdict(endpoints)}, indent=2)
        (self.path / "endpoint.json").write_text(text + "\n", encoding="utf-8")


def _holds_a_run(path: Path) -> bool:
    """Whether anything was trained there; what a mistyped environment left behind may be written over."""
    metrics = path / "metrics.jsonl"
    trained = metrics.exists() and metrics.stat().st_size > 0
    return trained or any((path / "checkpoints").glob("*.pt"))


def _fresh(config: RunConfig) -> Path:
    """Return a new name below ``runs/``, e.g. ``runs/cartpole-swingup/2026-01-31_12-00-00_trial``."""
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    name = f"{stamp}_{config.run_name}" if config.run_name else stamp
    base = Path("runs") / config.experiment_name
    candidates = [base / name, *(base / f"{name}_{number}" for number in range(2, 100))]
    return next(path for path in candidates if not path.exists())
