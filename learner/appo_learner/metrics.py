"""The records that travel from the training loop to everything that shows them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CollectorView:
    """One collector as the learner sees it now."""

    index: int
    name: str
    host: str
    path: str
    """``shm`` or ``tcp``."""
    state: str
    """``joining``, ``collecting``, ``waiting`` (for credit) or ``silent`` (heartbeats missing)."""
    num_envs: int
    policy_version: int
    env_steps: int
    """Environment steps collected by it so far."""
    steps_per_s: float
    rollouts_sent: int
    rollouts_trained: int
    rollouts_discarded: int
    rollouts_in_flight: int
    timers_ms: dict[str, float] = field(default_factory=dict)
    """Mean per env step, except ``send`` and ``credit_wait`` (per rollout): infer, env_step, send, credit_wait."""
    cpu_percent: float = 0.0
    memory_mb: float = 0.0


@dataclass(frozen=True)
class UpdateMetrics:
    """One update of the policy. Everything except ``reward_terms`` and ``fleet`` is one number or a small map."""

    iteration: int
    time_s: float
    """Wall time since this process began to train."""
    env_steps: int
    """Environment steps trained on, over the whole run (resumes included)."""
    env_steps_collected: int
    """Environment steps that arrived from collectors, trained on or not."""
    fps: float
    """Environment steps trained per second, over the last few seconds."""
    fps_collected: float
    return_mean: float | None
    """Mean undiscounted return of the last 100 episodes over all collectors; None before the first ended."""
    length_mean: float | None
    timeout_rate: float | None
    """Share of those episodes that were truncated rather than terminated."""
    reward_terms: dict[str, float]
    """Mean per-episode sum of each reward term over the same episodes."""
    lag_mean: float
    lag_max: int
    """Policy versions between the learner and the rollouts of this batch."""
    rollouts_trained: int
    rollouts_discarded: int
    """Both since the run began."""
    collectors: int
    learning_rate: float
    losses: dict[str, float]
    action_std: float
    wait_s: float
    stage_s: float
    update_s: float
    publish_s: float
    infer_ms: float
    env_step_ms: float
    send_ms: float
    credit_wait_ms: float
    """Means over the collectors, see :class:`CollectorView`."""
    fleet: tuple[CollectorView, ...] = ()


@dataclass(frozen=True)
class RunPlan:
    """What the run is going to do; the views need it for progress and ETA."""

    name: str
    run_dir: str
    max_iterations: int | None
    max_env_steps: int | None
    start_iteration: int = 0
    start_env_steps: int = 0


@dataclass(frozen=True)
class RunSummary:
    """What the run has done, for the closing lines and ``summary.json``."""

    reason: str
    """Why it ended, e.g. ``max_iterations reached`` or ``stopped by SIGTERM``."""
    iterations: int
    env_steps: int
    wall_s: float
    best_return: float | None
    final_return: float | None
    checkpoint: str | None
    resume_command: str | None
    books: dict[str, dict[str, int]]
    """Per collector (``"<index> <name>"``): sent, trained, discarded, in_flight, lost."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Messages that could not be used, by reason."""
