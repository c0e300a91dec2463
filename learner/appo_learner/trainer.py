"""The training thread: take a batch, stage it, update, publish, record."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from appo_common.errors import AppoError
from appo_common.layout import env_steps
from appo_common.models import dump_state, state_layout
from appo_common.process import StopRequest
from appo_common.spec import EnvSpec
from appo_common.train_config import resolved_obs_groups
from appo_common.train_env import check_environment
from appo_learner import checkpoint as checkpoints
from appo_learner.appo import APPO, build_appo
from appo_learner.batch import Stager
from appo_learner.checkpoint import Checkpoint, Progress, SaveFailed
from appo_learner.inbox import Selection, select_async, select_sync
from appo_learner.mailroom import Mailroom
from appo_learner.member import Member, Rollout
from appo_learner.metrics import CollectorView, RunSummary
from appo_learner.recorder import Recorder
from appo_learner.report import Report
from appo_learner.run_dir import RunDir
from appo_learner.terms import Contract, Run, Weights

logger = logging.getLogger(__name__)

WAIT_S = 0.25
"""Longest sleep between two looks at signals, children and the view."""


class Watched(Protocol):
    """Something that can end a run: see :class:`appo_learner.local_collectors.LocalCollectors`."""

    def check(self, fleet: Sequence[CollectorView]) -> None:
        """Raise if the run cannot go on."""


class Stopped(Exception):
    """A signal arrived while the trainer waited."""


class Diverged(AppoError):
    """The parameters are of no use any more: they must not become the newest checkpoint."""


class Trainer:
    """One run, from the first collector's spec to the last checkpoint."""

    def __init__(
        self,
        run: Run,
        mailroom: Mailroom,
        report: Report,
        run_dir: RunDir,
        stop: StopRequest,
        local: Watched,
        device: str,
        resume: Checkpoint | None = None,
    ) -> None:
        """Nothing is built before :meth:`train`: the models depend on the environment's spec."""
        self._run, self._config = run, run.config
        self._mailroom, self._report, self._run_dir = mailroom, report, run_dir
        self._stop, self._local = stop, local
        self._device = device
        self._resume = resume
        self._progress = resume.progress if resume else Progress()
        self._collected_before = self._progress.env_steps_collected
        self._discarded_before = self._progress.rollouts_discarded
        self._recorder = Recorder()
        self._saved: Path | None = None
        self._complete = False
        self._spec: EnvSpec
        self._algorithm: APPO
        self._stager: Stager

    def train(self) -> RunSummary:
        """Train until a limit is reached or a stop is requested; ends with a checkpoint unless training diverged."""
        try:
            self._build(self._wait_for_spec())
            while (reason := self._finished()) is None:
                self._wait_for_fleet()
                rollouts = self._next_batch()
                losses = self._update(rollouts)
                self._publish(rollouts)
                self._record(losses)
                self._save_if_due()
        except Stopped:
            reason = self._stop.reason or "stopped"
        except (Diverged, SaveFailed):
            raise
        except Exception:
            try:
                self._save()
            except SaveFailed as error:
                logger.error("%s", error)  # and then what ended the run, which is the cause to look for
            if self._saved:
                logger.info("the run failed; its last checkpoint: %s", self._saved)
            raise
        self._save()
        self._mailroom.close(reason)
        return self._summary(reason)

    # ---------------------------------------------------------------------------------------- before training

    def _wait_for_spec(self) -> EnvSpec:
        if self._resume is not None:
            return self._resume.spec
        while (spec := self._mailroom.first_spec()) is None:
            self._wait("no collector has joined yet")
        return spec

    def _build(self, spec: EnvSpec) -> None:
        check_environment(self._config, spec, self._run.source)
        groups = resolved_obs_groups(self._config.train, spec.observations)
        self._spec = spec
        torch.manual_seed(self._config.seed)
        algorithm = build_appo(self._config.train, self._config.learner, spec, groups, self._device)
        if self._resume is not None:
            self._resume.restore(algorithm, self._device)
        self._algorithm = algorithm
        self._stager = Stager(spec, groups, self._config.num_steps, self._device)
        self._actor_layout = state_layout(self._algorithm.get_policy())
        contract = Contract(spec, groups, self._actor_layout, self._config.num_steps)
        self._mailroom.open(contract, self._weights())

    def _wait_for_fleet(self) -> None:
        """Wait for the collectors that training may not start without; once it has started, go on with fewer."""
        wanted = self._config.learner.required_collectors
        while not self._complete and (here := len(self._mailroom.collecting())) < wanted:
            self._wait(f"{here} of {wanted} collectors have joined")
        if not self._complete:
            self._complete = True
            self._warn_of_small_batch()

    def _warn_of_small_batch(self) -> None:
        """Say once that rollouts will be old: every update leaves most of the fleet's newest ones waiting."""
        batch_envs = self._config.learner.batch_envs
        fleet_envs = sum(member.num_envs for member in self._mailroom.collecting())
        if batch_envs != "auto" and fleet_envs >= 2 * batch_envs:
            logger.warning(
                "learner.batch_envs = %d is far below the fleet's %d environments: expect a policy lag of about %d; "
                "use auto unless that is what you want",
                *(batch_envs, fleet_envs, round(fleet_envs / batch_envs)),
            )

    # ------------------------------------------------------------------------------------------ one update

    def _next_batch(self) -> list[Rollout]:
        with self._recorder.timed("wait_s"):
            while True:
                selection = self._mailroom.take(self._select)
                self._recorder.note_arrivals([*selection.batch, *selection.stale])
                if selection.batch:
                    return selection.batch
                self._wait(selection.waiting_for)

    def _select(self, waiting: Sequence[Rollout], members: Sequence[Member]) -> Selection:
        learner, version = self._config.learner, self._progress.iteration
        if learner.mode == "sync":
            return select_sync(waiting, version, [member.index for member in members])
        batch_envs = None if learner.batch_envs == "auto" else learner.batch_envs
        fleet_envs = sum(member.num_envs for member in members)
        return select_async(waiting, version, learner.max_policy_lag, batch_envs, fleet_envs)

    def _update(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        with self._recorder.timed("stage_s"):
            batch = self._stager.stage([(rollout.views, rollout.header.final_count) for rollout in rollouts])
        with self._recorder.timed("update_s"):
            try:
                self._algorithm.prepare(batch)
                losses = self._algorithm.update()
            except Exception as error:  # rsl_rl raises whatever torch does on NaN; the models are half updated
                raise self._diverged(f"{type(error).__name__}: {error}") from error
        if not all(math.isfinite(value) for value in losses.values()) or not self._algorithm.is_finite():
            raise self._diverged(f"losses {losses}, or parameters, that are not finite")
        return losses

    def _diverged(self, what: str) -> Diverged:
        good = self._saved or (self._resume.path if self._resume else "none")
        return Diverged(
            f"update {self._progress.iteration + 1} failed: {what}. Last good checkpoint: {good}. Look for NaN or huge "
            "values in observations and rewards, or lower train.algorithm.learning_rate"
        )

    def _publish(self, rollouts: Sequence[Rollout]) -> None:
        progress = self._progress
        self._recorder.note_batch(rollouts, version=progress.iteration)
        progress.iteration += 1
        progress.rollouts_trained += len(rollouts)
        progress.env_steps += sum(env_steps(rollout.views) for rollout in rollouts)
        # Before credits are given back: in sync mode what has arrived by now does not depend on timing.
        progress.env_steps_collected = self._collected_before + self._mailroom.env_steps_received
        with self._recorder.timed("publish_s"):
            self._mailroom.publish(self._weights(), rollouts)

    def _weights(self) -> Weights:
        block = dump_state(self._algorithm.get_policy(), self._actor_layout)
        return Weights(self._run.incarnation, self._progress.iteration, block)

    def _finished(self) -> str | None:
        progress, limit = self._progress, self._config.learner.max_env_steps
        if self._stop.reason is not None:
            return self._stop.reason
        if progress.iteration >= self._config.max_iterations:
            return f"reached max_iterations = {self._config.max_iterations}"
        if limit is not None and progress.env_steps >= limit:
            return f"reached max_env_steps = {limit}"
        return None

    def _wait(self, waiting_for: str) -> None:
        """Sleep until something arrives, with an eye on signals, children and the view."""
        if self._stop.reason is not None:
            raise Stopped
        fleet = self._mailroom.views()
        self._local.check(fleet)
        self._report.tick(fleet, waiting_for=waiting_for)
        self._mailroom.wait(WAIT_S)

    # --------------------------------------------------------------------------------------------- records

    def _record(self, losses: dict[str, float]) -> None:
        fleet = self._mailroom.views()
        self._local.check(fleet)
        discarded = sum(book.discarded.total() for book in self._mailroom.books())
        self._progress.rollouts_discarded = self._discarded_before + discarded
        self._progress.note_return(self._recorder.episodes.return_mean())
        self._report.update(self._recorder.metrics(self._progress, fleet, losses, self._algorithm))

    def _save_if_due(self) -> None:
        if self._progress.iteration % self._config.save_interval == 0:
            self._save()

    def _save(self) -> None:
        """Write ``model_<iteration>.pt``, and ``best.pt`` when the mean return was never higher at a checkpoint."""
        if not hasattr(self, "_algorithm"):
            return  # no collector has ever joined: there is nothing to keep
        path = checkpoints.model_path(self._run_dir.checkpoints, self._progress.iteration)
        if path == self._saved:
            return
        mean_return, best = self._recorder.episodes.return_mean(), self._progress.best_saved
        improved = mean_return is not None and (best is None or mean_return > best)
        if improved:
            self._progress.best_saved = mean_return
        state = checkpoints.snapshot(
            self._algorithm, self._spec, self._progress, _portable(self._config.model_dump()), self._device
        )
        checkpoints.save(state, path)
        if improved and self._config.learner.checkpoint.keep_best:
            checkpoints.save(state, self._run_dir.checkpoints / checkpoints.BEST)
        self._saved = path
        self._report.checkpoint_saved(str(path), self._progress.iteration)
        checkpoints.prune(self._run_dir.checkpoints, self._config.learner.checkpoint.keep_last)

    def _summary(self, reason: str) -> RunSummary:
        progress = self._progress
        books: dict[str, dict[str, int]] = {}
        for book in self._mailroom.books():
            key = f"{book.index} {book.name}"
            same = sum(known == key or known.startswith(f"{key} #") for known in books)
            books[f"{key} #{same + 1}" if same else key] = book.as_dict()  # a restarted process has its own book
        return RunSummary(
            reason=reason,
            iterations=progress.iteration,
            env_steps=progress.env_steps,
            wall_s=self._recorder.elapsed_s,
            best_return=progress.best_return,
            final_return=self._recorder.episodes.return_mean(),
            checkpoint=str(self._saved) if self._saved else None,
            resume_command=self._resume_command() if self._saved else None,
            books=books,
            dropped=dict(self._mailroom.dropped()),
        )

    def _resume_command(self) -> str:
        """Return the command that continues; a run that has reached its limit needs a higher one."""
        command = f"appo-learner --resume {self._run_dir.path}"
        if self._progress.iteration >= self._config.max_iterations:
            command += f" --max-iterations {2 * self._config.max_iterations}"
        limit = self._config.learner.max_env_steps
        if limit is not None and self._progress.env_steps >= limit:
            command += f" --max-env-steps {2 * limit}"
        return command


def _portable(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out what belongs to a host rather than to a run, so that equal runs have equal checkpoints."""
    learner = {key: value for key, value in config["learner"].items() if key not in ("run_dir", "device", "threads")}
    return {"env": config["env"], "train": config["train"], "learner": learner}
