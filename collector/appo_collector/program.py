"""The collector from its first HELLO to its last BYE, over as many sessions as that takes."""

from __future__ import annotations

import logging
import select
import time
from dataclasses import dataclass

import torch

from appo_collector.control import RunEnded, SessionLost
from appo_collector.envs.contract import VectorEnv
from appo_collector.envs.registry import make_env
from appo_collector.envs.watchdog import CLOSE_WITHIN_S, Watchdog
from appo_collector.policy import Policy
from appo_collector.rollout import RolloutLoop
from appo_collector.seeds import seeds_of
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
        self._watchdog = Watchdog()

    def run(self) -> str:
        """Collect until the run ends; return the reason."""
        ctx = sockets.context()
        with self._watchdog:
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
                self._close_env()
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
            groups, policy = _policy(session, welcome, env.spec, self._options.device)
            session.subscribe(policy.layout)
            num_steps = int(welcome.train["num_steps_per_env"])
            env_seed, policy_seed = seeds_of(welcome.seed)
            policy.seed(policy_seed)
            torch.manual_seed(env_seed)  # for environments that draw from torch's global generator
            # Its reset may take long: before READY.
            loop = RolloutLoop(session, env, policy, num_steps, env_seed, self._watchdog)
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
        name, overrides, scaling = (welcome.env[key] for key in ("name", "overrides", "action_scaling"))
        config = (name, num_envs, overrides, scaling)
        if config != self._env_config:
            self._close_env()
        if self._env is None:
            started = time.monotonic()
            with self._watchdog.watching(name, "building it"):
                self._env = make_env(name, num_envs, overrides, self._options.threads, scaling)
            self._env_config = config
            logger.info("built %d × %s in %.1f s", num_envs, name, time.monotonic() - started)
        return self._env

    def _close_env(self) -> None:
        env, self._env = self._env, None
        if env is None:
            return
        name = env.spec.name
        try:
            with self._watchdog.watching(name, "close()", CLOSE_WITHIN_S):
                env.close()
        except (Exception, SystemExit) as error:  # what was collected is sent, and what ended the run is known
            words = " ".join(str(error).split())
            logger.warning("%s: close() raised %s: %s", name, type(error).__name__, words, exc_info=error)


def _policy(session: Session, welcome: Welcome, spec: EnvSpec, device: str) -> tuple[dict[str, list[str]], Policy]:
    """Return the groups that actor and critic read, and the actor."""
    try:
        groups = resolved_obs_groups(welcome.train, spec.observations)
        return groups, Policy(spec, groups, welcome.train["actor"], device)
    except ConfigError:
        session.offer(spec)  # the learner can name the file to change: it answers with REJECT, or ends the run
        raise
