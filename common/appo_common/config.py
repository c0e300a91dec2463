"""The validated configuration of a run: what each key means, what is allowed, and what a left-out one is.

::

    RunConfig
    ├── env      EnvConfig       which environments every collector steps
    ├── train    dict            rsl_rl's training dictionary, unchanged
    ├── learner  LearnerConfig   pace, staleness, advantages, limits, checkpoints
    └── network  NetworkConfig   addresses and timeouts

Rules between keys are in :mod:`appo_common.config_rules`; files, presets and ``--set`` are read by
:mod:`appo_common.config_file`. Importing this module needs no torch, so that ``--help`` answers at once.
"""

from __future__ import annotations

import copy
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from appo_common import yaml_text
from appo_common.config_rules import (
    host_and_port,
    learner_problems,
    network_problems,
    run_problems,
    vtrace_problems,
)
from appo_common.spec import ActionScaling
from appo_common.train_config import Problems, structure_problems, with_importable_names

TRAIN_DEFAULTS = {"seed": 1, "max_iterations": 1000, "save_interval": 50}
"""Filled into ``train`` where it does not say."""


def _whole(value: Any) -> Any:
    """Let 5e6 stand for 5000000: YAML reads it as a float, and users write it for env steps."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, Field(gt=0), BeforeValidator(_whole)]
CountOrZero = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Seconds = Annotated[float, Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_section(cls, value: Any) -> Any:
        """Read ``learner:`` with nothing below it, as if all is commented out, as an empty section."""
        return {} if value is None else value


class EnvConfig(_Section):
    """The environments that every collector makes."""

    name: Annotated[str, Field(min_length=1)] = "mujoco:cartpole-swingup"
    """``mujoco:<task>``, ``gymnasium:<id>``, ``envpool:<id>``, ``unilab:<task>`` or ``package.module:factory``.
    Default: the cart-pole swing-up."""
    num_envs: Count = 64
    """Environments stepped together by one collector, unless it asks for its own number. Default 64."""
    overrides: dict[str, Any] = {}
    """Keyword arguments of the environment, e.g. ``{episode_seconds: 10}``. Default none."""
    action_scaling: ActionScaling | None = None
    """How the policy's actions meet the environment's bounds: ``none``, as they are; ``clip`` to the bounds;
    ``rescale``, [-1, 1] is mapped to them and the rest clipped. Default: null, that is ``rescale`` where all
    bounds are finite, else ``none``."""

    @field_validator("overrides")
    @classmethod
    def _own_copy(cls, value: dict[str, Any]) -> dict[str, Any]:
        return copy.deepcopy(value)


class VTraceConfig(_Section):
    """Truncation of V-trace's importance weights (Espeholt et al. 2018, section 4.1)."""

    rho_bar: Annotated[float, Field(gt=0)] = 1.0
    """ρ̄: upper bound of the weight of a temporal difference; sets whose value is learnt. Default 1."""
    c_bar: Annotated[float, Field(gt=0)] = 1.0
    """c̄: upper bound of the weights that carry differences back in time; at most ``rho_bar``. Default 1."""
    lam: Annotated[float, Field(ge=0, le=1)] | None = None
    """λ: decay of those weights per step, 0 to 1. Default: null, that is ``train.algorithm.lam``."""

    @model_validator(mode="after")
    def _ordered(self) -> VTraceConfig:
        if problems := vtrace_problems(self):
            raise Problems(problems)
        return self


class CheckpointConfig(_Section):
    """Which checkpoints stay on disk."""

    keep_last: Count = 5
    """Newest checkpoints kept. Default 5."""
    keep_best: bool = True
    """Whether the checkpoint with the best mean return is kept besides. Default true."""


class LearnerConfig(_Section):
    """How the learner trains on what collectors send."""

    mode: Literal["async", "sync"] = "async"
    """``async`` trains on what has arrived, ``sync`` on one rollout of each collector. Default ``async``."""
    batch_envs: Count | Literal["auto"] = "auto"
    """Environment columns per update, at least. Default ``auto``: those of the whole fleet."""
    max_in_flight: Annotated[int, Field(ge=1, le=16), BeforeValidator(_whole)] = 2
    """Rollouts that a collector may have started and not yet seen trained on, 1 to 16. Default 2."""
    max_policy_lag: CountOrZero = 10
    """Policy versions by which a rollout may be behind before it is discarded. Default 10."""
    advantage: Literal["vtrace", "gae"] = "vtrace"
    """How returns and advantages are computed. Default ``vtrace``."""
    old_log_prob: Literal["target", "behaviour"] = "target"
    """The policy that PPO's ratio is measured against: the learner's before the update (``target``) or
    the one that acted (``behaviour``). Default ``target``."""
    vtrace: VTraceConfig = VTraceConfig()
    """Truncation of V-trace's importance weights."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Which checkpoints stay on disk."""
    local_collectors: CountOrZero = 0
    """Collectors that the learner starts as its own children. Default 0."""
    min_collectors: Count | None = None
    """Collectors admitted before training starts. Default: null, that is ``local_collectors``, at least 1."""
    max_env_steps: Count | None = None
    """Environment steps, all collectors together, after which training ends. Default: null, no limit."""
    device: str = "auto"
    """The learner's device: ``cpu``, ``cuda``, ``cuda:N`` or ``auto`` (CUDA, else CPU). Default ``auto``."""
    threads: Count = 1
    """CPU threads of the learner's torch. Default 1: on cores that collectors use too, OpenMP's threads spin while
    they wait for each other, which was measured to slow small networks down by a factor of ten and more."""
    run_dir: Annotated[str, Field(min_length=1)] | None = None
    """Run directory. Default: null, a new one below ``runs/``."""
    log_interval_s: Seconds = 5.0
    """Seconds between two lines of progress. Default 5."""

    @property
    def required_collectors(self) -> int:
        """How many collectors must be admitted before training starts."""
        return self.min_collectors or max(1, self.local_collectors)

    @property
    def expected_collectors(self) -> int | None:
        """Collectors the user has said will come; None if nothing was said."""
        return max(self.min_collectors or 0, self.local_collectors) or None

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
            raise ValueError("must be auto, cpu, cuda or cuda:N, e.g. cuda:0")
        return value

    @model_validator(mode="after")
    def _possible(self) -> LearnerConfig:
        if problems := learner_problems(self):
            raise Problems(problems)
        return self


class NetworkConfig(_Section):
    """Where learner and collectors meet."""

    bind: str = "tcp://127.0.0.1:5555"
    """The learner's base address; it binds this port and the next two. Port 0: three free ports.
    Default ``tcp://127.0.0.1:5555``."""
    insecure: bool = False
    """Allow a bind that other hosts can reach, neither encrypted nor authenticated. Default false."""
    transport: Literal["auto", "tcp"] = "auto"
    """``tcp`` offers no collector shared memory, not even one on this host. Default ``auto``."""
    shm_dir: Annotated[str, Field(min_length=1)] = "/dev/shm"
    """Directory for shared memory on the learner's host. Default ``/dev/shm``."""
    heartbeat_interval_s: Seconds = 1.0
    """Seconds between two heartbeats. Default 1."""
    heartbeat_timeout_s: Seconds = 10.0
    """Silence, in seconds, after which a peer counts as gone; above twice the interval. Default 10."""
    max_collectors: Count = 256
    """Collectors admitted at most. Default 256."""

    @field_validator("bind")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        host_and_port(value)
        return value

    @model_validator(mode="after")
    def _sound(self) -> NetworkConfig:
        if problems := network_problems(self):
            raise Problems(problems)
        return self


class RunConfig(_Section):
    """Everything that defines a run. Read-only; equal configurations compare equal."""

    env: EnvConfig = EnvConfig()
    """The environments."""
    train: dict[str, Any]
    """rsl_rl's training dictionary. Filled in where it does not say: seed 1, max_iterations 1000 (updates;
    rsl_rl itself has no default) and save_interval 50 (updates)."""
    learner: LearnerConfig = LearnerConfig()
    """How the learner trains."""
    network: NetworkConfig = NetworkConfig()
    """Where learner and collectors meet."""

    @field_validator("train")
    @classmethod
    def _sound_dictionary(cls, value: dict[str, Any]) -> dict[str, Any]:
        if problems := structure_problems(value):
            raise Problems(problems)
        missing = {key: TRAIN_DEFAULTS[key] for key in TRAIN_DEFAULTS if key not in value}
        return with_importable_names(value) | missing

    @model_validator(mode="after")
    def _can_train(self) -> RunConfig:
        if problems := run_problems(self):
            raise Problems(problems)
        return self

    @property
    def seed(self) -> int:
        """Seed of the run: collectors' and learner's random streams derive from it."""
        return self.train["seed"]

    @property
    def max_iterations(self) -> int:
        """Policy updates after which training ends."""
        return self.train["max_iterations"]

    @property
    def num_steps(self) -> int:
        """T: environment steps per rollout."""
        return self.train["num_steps_per_env"]

    @property
    def save_interval(self) -> int:
        """Policy updates between two checkpoints."""
        return self.train["save_interval"]

    @property
    def experiment_name(self) -> str:
        """Name of the experiment; without one, the environment's, e.g. ``cartpole-swingup``."""
        return self.train.get("experiment_name") or self.env.name.rpartition(":")[2]

    @property
    def run_name(self) -> str:
        """What the user calls this run; may be empty."""
        return self.train.get("run_name") or ""

    @property
    def gamma(self) -> float:
        """Discount per environment step; rsl_rl's default where the dictionary does not say."""
        return float(self.train["algorithm"].get("gamma", 0.99))

    @property
    def lam(self) -> float:
        """λ of GAE; rsl_rl's default where the dictionary does not say."""
        return float(self.train["algorithm"].get("lam", 0.95))

    @property
    def vtrace_lam(self) -> float:
        """λ of V-trace: ``learner.vtrace.lam``, or that of the training dictionary."""
        return self.lam if self.learner.vtrace.lam is None else self.learner.vtrace.lam

    def training_dictionary(self) -> dict[str, Any]:
        """Return a deep copy of ``train`` for rsl_rl, which pops keys from what it is given."""
        return copy.deepcopy(self.train)

    def to_yaml(self) -> str:
        """Return the resolved configuration as YAML; loading it gives an equal RunConfig."""
        head = "# Resolved configuration of a run: every default filled in outside train.\n"
        return head + yaml_text.dump(self.model_dump())
