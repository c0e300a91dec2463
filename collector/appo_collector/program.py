"""The collector from its first HELLO to its last BYE, over as many sessions as that takes."""

from __future__ import annotations

import logging
import select
import time
from dataclasses import dataclass

import numpy as np
import torch

from appo_collector.control import RunEnded, SessionLost
from appo_collector.envs.contract import VectorEnv
from appo_collector.envs.registry import make_env
from appo_collector.policy import Policy
from appo_collector.rollout import RolloutLoop
from appo_collector.session import Identity, Session
from appo_common import sockets
from appo_common.errors import ConfigError
from appo_common.layout import rollout_layout
from appo_common.messages import Welcome
from appo_common.process import StopRequest
from appo_common.spec import EnvSpec
from appo_common.train_config import resolved_obs_groups

logger = logging.getLogger(__name__)

REJOIN_PAUSE_S = 0.5
"""Between a lost session and the next: whatever ended it may take a moment to pass."""


@dataclass(frozen=True)
class CollectorOptions:
    """What the command line decides."""

    connect: str
    identity: Identity
    threads: int
    device: str


class Collector:
    """Joins a learner, collects, and joins again when the learner was lost."""

    def __init__(self, options: CollectorOptions, stop: StopRequest) -> None:
        """Nothing is connected before :meth:`run`."""
        self._options = options
        self._stop = stop
        self._env: VectorEnv | None = None
        self._env_config: object = None

    def run(self) -> str:
        """Collect until the run ends; return the reason."""
        torch.set_num_threads(self._options.threads)
        ctx = sockets.context()
        try:
            while True:
                try:
                    self._run_session(Session(ctx, self._options.connect, self._options.identity, self._stop))
                except RunEnded as ended:
                    return str(ended)
                except SessionLost as lost:
                    logger.warning("%s; joining again", lost)
                    self._pause(REJOIN_PAUSE_S)
        finally:
            if self._env is not None:
                self._env.close()
            ctx.destroy(linger=0)  # every session has closed its own sockets, with its own linger

    def _pause(self, seconds: float) -> None:
        """Let ``seconds`` pass, or less if this process is asked to stop."""
        until = time.monotonic() + seconds
        while self._stop.reason is None and (left := until - time.monotonic()) > 0:
            select.select([], [], [], min(left, 0.1))

    def _run_session(self, session: Session) -> None:
        try:
            welcome = session.hello()
            env = self._environment(welcome)
            groups = _groups(session, welcome, env.spec)
            policy = Policy(env.spec, groups, welcome.train["actor"], self._options.device)
            session.subscribe(policy.layout)
            num_steps = int(welcome.train["num_steps_per_env"])
            env_seed, policy_seed = _seeds(welcome.seed)
            torch.manual_seed(policy_seed)
            loop = RolloutLoop(session, env, policy, num_steps, env_seed)  # its reset may take long: before READY
            session.ready(env.spec, rollout_layout(env.spec, num_steps, groups))
            loop.run()
        except SessionLost:
            session.close(linger_ms=0)  # what the lost learner has not read, nobody will
            raise
        except Exception as ending:
            session.bye(str(ending) or type(ending).__name__)
            raise
        finally:
            session.close()

    def _environment(self, welcome: Welcome) -> VectorEnv:
        """Build the environment of the run, or keep the one at hand if it is the same."""
        num_envs = self._options.identity.num_envs or int(welcome.env["num_envs"])
        config = (welcome.env["name"], num_envs, welcome.env["overrides"])
        if self._env is not None and config != self._env_config:
            self._env.close()
            self._env = None
        if self._env is None:
            started = time.monotonic()
            self._env = make_env(*config, threads=self._options.threads)
            self._env_config = config
            logger.info("built %d × %s in %.1f s", num_envs, config[0], time.monotonic() - started)
        return self._env


def _groups(session: Session, welcome: Welcome, spec: EnvSpec) -> dict[str, list[str]]:
    """Return the groups that actor and critic read."""
    try:
        return resolved_obs_groups(welcome.train, spec.observations)
    except ConfigError:
        session.offer(spec)  # the learner can name the file to change: it answers with REJECT, or ends the run
        raise


def _seeds(entropy: list[int]) -> tuple[int, int]:
    """Derive the seeds of the environment and of the policy's noise; ``entropy`` is WELCOME's ``seed``."""
    sequence = np.random.SeedSequence(entropy[0], spawn_key=tuple(entropy[1:]))
    env_seed, policy_seed = sequence.generate_state(2, np.uint64)
    return int(env_seed >> np.uint64(1)), int(policy_seed >> np.uint64(1))
