"""The learner from its configuration to its exit: everything is opened here, and closed in the reverse order."""

from __future__ import annotations

import logging
import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from appo_common import log
from appo_common.config import RunConfig
from appo_common.errors import ConfigError
from appo_common.process import StopRequest
from appo_common.sockets import Endpoints, split_address
from appo_common.train_config import keys_without_effect
from appo_learner import checkpoint
from appo_learner.checkpoint import Checkpoint
from appo_learner.local_collectors import LocalCollectors
from appo_learner.mailroom import Mailroom
from appo_learner.metrics import RunPlan
from appo_learner.report import Report
from appo_learner.run_dir import RunDir
from appo_learner.terms import Run
from appo_learner.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """How a run begins."""

    checkpoint: Path | None = None
    """Where to continue from; None begins anew."""
    may_exist: bool = False
    """Whether the run directory may hold a run already."""
    source: str = "configuration"
    """The file or preset that the configuration was read from."""


def run_learner(config: RunConfig, start: Start, *, plain: bool, log_level: str, stop: StopRequest) -> None:
    """Train as ``config`` says and say how it ended."""
    device = _device(config.learner.device)
    torch.set_num_threads(config.learner.threads)
    resumed = checkpoint.load(start.checkpoint) if start.checkpoint else None
    host, port = split_address(config.network.bind, "network.bind")
    with ExitStack() as open_things:
        start_iteration = resumed.progress.iteration if resumed else 0
        run = Run(config, secrets.token_hex(4), secrets.token_hex(8), start_iteration, start.source)
        mailroom = Mailroom(run, host, port)
        open_things.callback(mailroom.close, "the learner failed")
        run_dir = RunDir.create(config, may_exist=start.may_exist)
        if resumed:
            checkpoint.set_aside(run_dir.checkpoints, resumed.progress.iteration)
        run_dir.write_endpoints(mailroom.endpoints)
        report = open_things.enter_context(_report(config, run_dir, resumed, plain))
        log.set_up(log_level, report.log_handler)
        _introduce(config, run_dir, mailroom.endpoints, device, start.checkpoint)
        mailroom.start()
        local = open_things.enter_context(
            LocalCollectors(config.learner.local_collectors, _local_address(mailroom.endpoints), run_dir.logs)
        )
        # The children leave after the mailroom's STOP, whichever way this block ends.
        open_things.callback(mailroom.close, "the learner failed")
        summary = Trainer(run, mailroom, report, run_dir, stop, local, device, resumed).train()
        local.close()
        report.finish(summary)


def _report(config: RunConfig, run_dir: RunDir, resumed: Checkpoint | None, plain: bool) -> Report:
    plan = RunPlan(
        name=f"{config.experiment_name} {config.run_name}".strip(),
        run_dir=str(run_dir.path),
        max_iterations=config.max_iterations,
        max_env_steps=config.learner.max_env_steps,
        start_iteration=resumed.progress.iteration if resumed else 0,
        start_env_steps=resumed.progress.env_steps if resumed else 0,
    )
    return Report(
        plan,
        plain=plain,
        log_interval_s=config.learner.log_interval_s,
        train_cfg=config.training_dictionary(),
        env_cfg=config.env.model_dump(),
    )


def _introduce(config: RunConfig, run_dir: RunDir, endpoints: Endpoints, device: str, resume: Path | None) -> None:
    logger.info("run directory %s", run_dir.path)
    if resume:
        logger.info("continuing from %s", resume)
    logger.info(
        "listening on %s (rollouts :%d, weights :%d); training on %s with %d threads",
        *(endpoints.control, endpoints.rollout_port, endpoints.weights_port, device, torch.get_num_threads()),
    )
    for key, why in keys_without_effect(config.train).items():
        logger.info("train.%s has no effect here: %s", key, why)


def _local_address(endpoints: Endpoints) -> str:
    """Return the address for this host's own collectors."""
    wildcard = endpoints.host in ("*", "0.0.0.0", "[::]")
    return f"tcp://{'127.0.0.1' if wildcard else endpoints.host}:{endpoints.control_port}"


def _device(wish: str) -> str:
    """Resolve ``auto``, and refuse a CUDA device that is not there."""
    available = torch.cuda.is_available()
    if wish == "auto":
        return "cuda:0" if available else "cpu"
    device = torch.device(wish)
    if device.type == "cuda" and not (available and (device.index or 0) < torch.cuda.device_count()):
        count = torch.cuda.device_count() if available else 0
        raise ConfigError(f"learner.device = {wish!r}: torch sees {count} CUDA devices; use auto or cpu")
    return wish
