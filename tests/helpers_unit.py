"""Small builders that several unit tests share: a spec, a configuration, random rollouts, one end of a wire."""

from __future__ import annotations

import copy
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import torch
import zmq

from appo_common import sockets
from appo_common.config import RunConfig
from appo_common.layout import Layout, rollout_layout
from appo_common.messages import (
    Admit,
    Attached,
    Credit,
    Episodes,
    Heartbeat,
    Hello,
    Message,
    Ready,
    RolloutHeader,
    Welcome,
    pack,
    unpack,
)
from appo_common.models import build_actor, dump_state, state_layout
from appo_common.sockets import Endpoints
from appo_common.spec import EnvSpec
from appo_learner.terms import Contract, Run, Weights

torch.set_num_threads(1)  # for networks this small, OpenMP threads that wait for each other cost more than they do

DEADLINE_S = 10.0
GROUPS = {"actor": ["policy"], "critic": ["policy", "privileged"]}
"""An asymmetric critic."""
NO_EPISODES = Episodes(returns=[], lengths=[], timeouts=[], terms={})

TRAIN: dict[str, Any] = {
    "seed": 7,
    "num_steps_per_env": 5,
    "max_iterations": 10,
    "save_interval": 5,
    "obs_groups": GROUPS,
    "actor": {
        "class_name": "MLPModel",
        "hidden_dims": [16, 16],
        "activation": "elu",
        "obs_normalization": True,
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.7, "std_type": "scalar"},
    },
    "critic": {"class_name": "MLPModel", "hidden_dims": [16, 16], "activation": "elu", "obs_normalization": True},
    "algorithm": {
        "class_name": "PPO",
        "num_learning_epochs": 2,
        "num_mini_batches": 2,
        "learning_rate": 1e-3,
        "schedule": "adaptive",
        "desired_kl": 0.01,
        "gamma": 0.97,
        "lam": 0.9,
        "entropy_coef": 0.005,
    },
}
M = TypeVar("M", bound=Message)


def env_spec(num_envs: int = 4, **changes: Any) -> EnvSpec:
    """Two groups, ``policy`` [3] and ``privileged`` [2], and two actions."""
    observations = {"policy": {"shape": [3]}, "privileged": {"shape": [2]}}
    fields = {"name": "test:small", "observations": observations, "num_actions": 2, "num_envs": num_envs}
    return EnvSpec.model_validate({**fields, **changes})


def train_dict(**algorithm: Any) -> dict[str, Any]:
    train = copy.deepcopy(TRAIN)
    train["algorithm"].update(algorithm)
    return train


def run_config(shm_dir: Path | str, train: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    network = {"shm_dir": str(shm_dir), **sections.pop("network", {})}
    return RunConfig.model_validate({"train": train or train_dict(), "network": network, **sections})


def learner_run(shm_dir: Path | str, **sections: Any) -> Run:
    return Run(run_config(shm_dir, **sections), run_id="run", incarnation="now")


def contract(spec: EnvSpec, train: dict[str, Any] | None = None) -> tuple[Contract, Weights]:
    """The terms of a run with a freshly built actor, and its version 0."""
    train = train or TRAIN
    actor = build_actor(spec, GROUPS, train["actor"])
    layout = state_layout(actor)
    terms = Contract(spec, GROUPS, layout, train["num_steps_per_env"])
    return terms, Weights("now", 0, dump_state(actor, layout))


def weights(version: int, like: Weights) -> Weights:
    """Another version: every byte of its block is the version's number."""
    return Weights("now", version, np.full_like(like.block, version))


ENDPOINTS = Endpoints("127.0.0.1", 5555, 5556, 5557)


def random_rollout(
    rng: np.random.Generator, spec: EnvSpec, num_steps: int = 5, ends: float = 0.15
) -> tuple[dict[str, np.ndarray], int, np.ndarray]:
    """Fill a rollout with noise; ``ends`` is the probability of each flag, so that some episodes carry both.

    Returns the views, ``final_count`` and the block.
    """
    layout = rollout_layout(spec, num_steps, GROUPS)
    block = np.zeros(layout.nbytes, dtype=np.uint8)
    views = layout.views(block)
    for view in views.values():
        if view.dtype == np.float32:
            view[...] = rng.normal(size=view.shape)
    views["log_probs"][...] = rng.normal(-2.0, 0.5, size=views["log_probs"].shape)
    views["terminated"][...] = rng.random(views["terminated"].shape) < ends
    views["truncated"][...] = rng.random(views["truncated"].shape) < ends
    cut_short = np.argwhere(views["truncated"] & ~views["terminated"])
    views["final_index"][: len(cut_short)] = cut_short
    views["final_index"][len(cut_short) :] = -1  # poison: rows that are not in use must not be read
    for name in GROUPS["critic"]:
        views[f"final_obs/{name}"][len(cut_short) :] = np.nan
    return views, len(cut_short), block


def rollout_header(**changes: Any) -> RolloutHeader:
    fields: dict[str, Any] = {
        "incarnation": "now",
        "collector": 0,
        "session": "s",
        "seq": 0,
        "policy_version": 0,
        "slot": 0,
        "final_count": 0,
        "episodes": NO_EPISODES,
        "timers_ms": {},
    }
    return RolloutHeader(**{**fields, **changes})


def hello(uid: str = "uid-a", num_envs: int | None = 4) -> Hello:
    return Hello(uid=uid, name=f"name of {uid}", host="host", pid=1, software={}, num_envs=num_envs)


def heartbeat(rollouts_sent: int = 0, **changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {
        "policy_version": 0,
        "rollouts_sent": rollouts_sent,
        "env_steps": 0,
        "state": "collecting",
        "timers_ms": {},
        "cpu_percent": 0.0,
        "memory_mb": 0.0,
    }
    return Heartbeat(**{**fields, **changes})


def until(condition: Callable[[], Any], pause: Callable[[], object], what: str) -> Any:
    """Poll until ``condition`` gives something true, and return that; fail after a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still waiting for {what}"
        pause()
    return value


@contextmanager
def small_tmpfs(directory: Path, size: str = "1m") -> Iterator[Path]:
    """Mount a file system that is full soon. Needs root, as CI has it; anything else fails here."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


class WirePeer:
    """A collector's end of the three sockets, driven by the test's thread."""

    def __init__(self, endpoints: Endpoints, uid: str = "uid-a", spec: EnvSpec | None = None) -> None:
        self.spec = spec or env_spec()
        self.layout: Layout = rollout_layout(self.spec, TRAIN["num_steps_per_env"], GROUPS)
        self._ctx = sockets.context()
        base = f"tcp://{endpoints.host}:"
        self.control = sockets.connect_control(self._ctx, endpoints.control, uid.encode())
        self.rollouts = sockets.connect_rollouts(self._ctx, f"{base}{endpoints.rollout_port}")
        self.uid = uid
        self._weights_address = f"{base}{endpoints.weights_port}"
        self._subscriptions: list[zmq.Socket[bytes]] = []
        self._heard: list[tuple[Message, list[bytes]]] = []
        self.index, self.session = -1, ""

    def __enter__(self) -> WirePeer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ctx.destroy(linger=0)

    def subscribe(self, topic: bytes = sockets.TCP_TOPIC) -> zmq.Socket[bytes]:
        self._subscriptions.append(sockets.connect_weights(self._ctx, self._weights_address, topic))
        return self._subscriptions[-1]

    def say(self, message: Message) -> None:
        self.control.send(pack(message))

    def hear(self, kind: type[M]) -> tuple[M, list[bytes]]:
        """Return the next message of ``kind``; others before it stay in :attr:`unread`."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for place, (message, frames) in enumerate(self._heard):
                if isinstance(message, kind):
                    del self._heard[place]
                    return message, frames
            left = deadline - time.monotonic()
            assert left > 0, f"no {kind.kind}; unread: {self.unread}"
            if self.control.poll(int(left * 1000)):
                first, *frames = self.control.recv_multipart()
                self._heard.append((unpack(first), frames))

    @property
    def unread(self) -> list[str]:
        return [message.kind for message, _ in self._heard]

    def join(self) -> Credit:
        """Join over TCP and return the first credit."""
        self.say(hello(self.uid, self.spec.num_envs))
        welcome = self.hear(Welcome)[0]
        self.index, self.session = welcome.collector, welcome.session
        self.say(Ready(spec=self.spec))
        assert self.hear(Admit)[0].fingerprint == self.layout.fingerprint
        self.say(Attached(nonce=None, reason="told to use TCP"))
        return self.hear(Credit)[0]

    def send_rollout(self, block: np.ndarray, **header: Any) -> None:
        head = rollout_header(collector=self.index, session=self.session, **header)
        self.rollouts.send_multipart([pack(head), *self.layout.frames(block, head.final_count)])


def receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Receive one message of any number of frames, within the deadline."""
    assert socket.poll(int(DEADLINE_S * 1000)), "nothing arrived"
    return socket.recv_multipart()
