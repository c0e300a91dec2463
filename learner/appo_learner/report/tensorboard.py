"""Scalars for TensorBoard under rsl_rl's tag names, and for the other writers that rsl_rl knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appo_common.errors import ConfigError
from appo_learner.metrics import UpdateMetrics

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FLUSH_S = 10
_ALIASES = {"wandb": ("WandbLogWriter", "wandb_project"), "neptune": ("NeptuneLogWriter", "neptune_project")}
"""rsl_rl's old one-word names: the class, and the key of the training section that names its project."""


def scalars(metrics: UpdateMetrics) -> Iterator[tuple[str, float]]:
    """Tag and value of everything that is plotted over iterations.

    ``Perf/collection_time`` and ``Perf/learning_time`` add up to the iteration's time in s, as in rsl_rl:
    here waiting for and staging rollouts is the collection, updating and publishing the learning.
    """
    for name, value in metrics.losses.items():
        yield f"Loss/{name}", value
    yield "Loss/learning_rate", metrics.learning_rate
    yield "Policy/mean_std", metrics.action_std
    yield "Perf/total_fps", metrics.fps
    yield "Perf/collected_fps", metrics.fps_collected
    yield "Perf/collection_time", metrics.wait_s + metrics.stage_s
    yield "Perf/learning_time", metrics.update_s + metrics.publish_s
    if metrics.return_mean is not None:
        yield "Train/mean_reward", metrics.return_mean
    if metrics.length_mean is not None:
        yield "Train/mean_episode_length", metrics.length_mean
    if metrics.timeout_rate is not None:
        yield "Train/timeout_rate", metrics.timeout_rate
    for name, value in metrics.reward_terms.items():
        yield (name if "/" in name else f"Episode/{name}"), value
    yield "Lag/mean", metrics.lag_mean
    yield "Lag/max", metrics.lag_max
    yield "Fleet/collectors", metrics.collectors
    yield "Rollouts/trained", metrics.rollouts_trained
    yield "Rollouts/discarded", metrics.rollouts_discarded
    for name in (
        "wait_s",
        "stage_s",
        "update_s",
        "publish_s",
        "infer_ms",
        "env_step_ms",
        "send_ms",
        "credit_wait_ms",
    ):
        yield f"Timers/{name}", getattr(metrics, name)


class TensorBoard:
    """The event file of the run directory, and the writer that ``train.logger`` names, if any.

    rsl_rl's own writers are TensorBoard writers themselves; then theirs is the event file, or every point
    would be there twice.
    """

    def __init__(self, run_dir: Path, start_iteration: int, train_cfg: dict, env_cfg: dict) -> None:
        """Open the writers.

        Raises:
            ConfigError: ``train.logger`` names a writer that does not exist or whose package is missing.
            OSError: the event file cannot be created.
        """
        from torch.utils.tensorboard import SummaryWriter

        self.path = run_dir
        self.extra: Any = _named_writer(run_dir, train_cfg, env_cfg)
        self._events: SummaryWriter | None = None
        if not isinstance(self.extra, SummaryWriter):
            # A resume repeats iterations; purge_step hides the first try of them.
            purge = start_iteration + 1 if start_iteration > 0 else None
            self._events = SummaryWriter(str(run_dir), flush_secs=_FLUSH_S, purge_step=purge)
        # Steps of W&B must not go back, so rsl_rl does not send it curves over time either.
        self._extra_over_time = type(self.extra).__name__ != "WandbLogWriter"
        self._last_second = -1

    def write(self, metrics: UpdateMetrics) -> None:
        """Add every scalar of one update.

        Raises:
            OSError: the event file cannot be written.
        """
        over_iterations = list(scalars(metrics))
        second, over_time = int(metrics.time_s), list[tuple[str, float]]()
        if second != self._last_second and metrics.return_mean is not None:
            self._last_second = second
            over_time.append(("Train/mean_reward/time", metrics.return_mean))
            if metrics.length_mean is not None:
                over_time.append(("Train/mean_episode_length/time", metrics.length_mean))
        if self._events is not None:
            _add_event(self._events, over_iterations, metrics.iteration)
            _add_event(self._events, over_time, second)
        if self.extra is not None:
            for tag, value in over_iterations:
                self.extra.add_scalar(tag, value, metrics.iteration)
            for tag, value in over_time if self._extra_over_time else ():
                self.extra.add_scalar(tag, value, second)

    def save_model(self, path: str, iteration: int) -> None:
        """Hand a checkpoint to the named writer, as rsl_rl's logger does."""
        if hasattr(self.extra, "save_model"):
            self.extra.save_model(path, iteration)

    def close(self) -> None:
        """Flush and close; idempotent."""
        events, self._events = self._events, None
        extra, self.extra = self.extra, None
        try:
            if events is not None:
                events.close()
        finally:
            if hasattr(extra, "stop"):
                extra.stop()
            if hasattr(extra, "close"):
                extra.close()


def _add_event(writer: SummaryWriter, points: list[tuple[str, float]], step: int) -> None:
    """All points of one step as one event: ``add_scalar`` for each would take eight times as long."""
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

    if points:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in points]
        writer._get_file_writer().add_summary(Summary(value=values), step)


class _EnvSection(dict[str, Any]):
    """rsl_rl's writers ask an environment configuration for ``to_dict``, which a plain dict lacks."""

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


def _named_writer(run_dir: Path, train_cfg: dict, env_cfg: dict) -> Any | None:
    """The writer of ``train.logger``, built as rsl_rl's logger builds it; None for TensorBoard."""
    named = train_cfg.get("logger") or "tensorboard"
    if isinstance(named, str):
        if named == "tensorboard":
            return None
        class_name, project_key = _ALIASES.get(named, (named, None))
        named = {"class_name": class_name}
        if project_key is not None:
            named["project_name"] = train_cfg.get(project_key)
    if not named.get("class_name"):
        raise ConfigError(
            f"train.logger: {named!r} has no class_name; name one of WandbLogWriter, NeptuneLogWriter or "
            "'package.module:Class', or write `logger: tensorboard`"
        )
    return _build(named, run_dir, train_cfg, env_cfg)


def _build(named: dict, run_dir: Path, train_cfg: dict, env_cfg: dict) -> Any:
    from rsl_rl.utils.utils import resolve_class

    try:
        writer_class, writer_cfg = resolve_class(named)
        writer = writer_class(log_dir=str(run_dir), **writer_cfg)
        if hasattr(writer, "store_config"):
            writer.store_config(_EnvSection(env_cfg), train_cfg)
    except ModuleNotFoundError as error:
        package = error.name or {"WandbLogWriter": "wandb", "NeptuneLogWriter": "neptune"}.get(
            named["class_name"], "the one it names"
        )
        raise ConfigError(
            f"train.logger: {named['class_name']} needs a package that is not installed ({error}); "
            f"`pip install {package}`, or write `logger: tensorboard`"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise ConfigError(f"train.logger: {named['class_name']} cannot be built: {error}") from error
    return writer
