"""The hot loop with a real session and a real mailroom; what it writes is compared with a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers_collector import KINDS, CountingEnv, observation, reward
from helpers_unit import GROUPS, TRAIN, contract, learner_run, until

from appo_collector.envs.contract import VectorEnv
from appo_collector.policy import Policy
from appo_collector.rollout import RolloutLoop, Timers
from appo_collector.session import Identity, Session
from appo_common import sockets
from appo_common.errors import EnvironmentFault
from appo_common.layout import rollout_layout
from appo_common.models import build_actor, dump_state, load_state, state_layout
from appo_common.process import StopRequest
from appo_common.spec import EnvSpec
from appo_learner.inbox import Selection
from appo_learner.mailroom import Mailroom
from appo_learner.member import Rollout
from appo_learner.terms import Contract, Weights

STEPS = TRAIN["num_steps_per_env"]
SCRIPT = [
    line.replace(" ", "")
    for line in (
        "TTTTT TUTTT .....",  # one-step episodes, one of them truncated
        "..U.. ..U.U .U...",  # truncated on the last step of a rollout
        "....T ..B.. U...B",  # terminated on the last step; terminated and truncated at once
    )
]
FINAL_INDEX = [[[2, 1]], [[1, 0], [2, 1], [4, 1]], [[0, 2], [1, 1]]]
Join = Callable[..., tuple[Session, RolloutLoop, Policy]]


@pytest.fixture
def mailroom(tmp_path: Path) -> Iterator[Mailroom]:
    made = Mailroom(learner_run(tmp_path, learner={"mode": "sync"}), "127.0.0.1", 0)  # one credit at a time
    made.start()
    yield made
    made.close("the test is over")


@pytest.fixture
def join(mailroom: Mailroom) -> Iterator[Join]:
    """Join a collector of ``env`` and build its loop; say goodbye at the end."""
    ctx = sockets.context()
    sessions: list[Session] = []

    def joined(env: VectorEnv, transport: str = "tcp") -> tuple[Session, RolloutLoop, Policy]:
        mailroom.open(*terms(env.spec))
        session = Session(ctx, mailroom.endpoints.control, Identity("me", None, transport), StopRequest())
        sessions.append(session)
        welcome = session.hello()
        policy = Policy(env.spec, GROUPS, welcome.train["actor"])
        session.subscribe(policy.layout)
        session.ready(env.spec, rollout_layout(env.spec, STEPS, GROUPS))
        return session, RolloutLoop(session, env, policy, STEPS, seed=5), policy

    yield joined
    for session in sessions:
        session.bye("the test is over")
        session.close()
    ctx.term()


def terms(spec: EnvSpec) -> tuple[Contract, Weights]:
    """The same actor every time."""
    torch.manual_seed(0)
    return contract(spec)


def take(mailroom: Mailroom) -> Rollout:
    oldest = lambda waiting, _: Selection(list(waiting)[:1])  # noqa: E731
    return until(lambda: mailroom.take(oldest).batch, lambda: mailroom.wait(0.1), "a rollout")[0]


def table(start: int) -> dict[str, Any]:
    """Work out one rollout of the script, one environment and one step at a time."""
    fields: dict[str, Any] = {name: np.zeros((STEPS, 3)) for name in ("rewards", "terminated", "truncated")}
    fields |= {"obs/policy": np.zeros((STEPS, 3, 3)), "obs/privileged": np.zeros((STEPS, 3, 2))}
    fields |= {"last_obs/policy": np.zeros((3, 3)), "last_obs/privileged": np.zeros((3, 2))}
    final: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    for env, line in enumerate(SCRIPT):
        episode = age = 0
        for step in range(start + STEPS):
            terminated, truncated = KINDS[line[step]]
            if step >= start:
                row = step - start
                fields["obs/policy"][row, env], fields["obs/privileged"][row, env] = observation(
                    env, episode, age, step
                )
                fields["rewards"][row, env] = reward(env, episode, age)
                fields["terminated"][row, env], fields["truncated"][row, env] = terminated, truncated
                if truncated and not terminated:
                    final[row, env] = observation(env, episode, age + 1, step + 1)
            episode, age = (episode + 1, 0) if terminated or truncated else (episode, age + 1)
        last = observation(env, episode, age, start + STEPS)
        fields["last_obs/policy"][env], fields["last_obs/privileged"][env] = last
    order = sorted(final)
    fields["final_index"] = np.array(order)
    fields["final_obs/policy"] = np.array([final[place][0] for place in order])
    fields["final_obs/privileged"] = np.array([final[place][1] for place in order])
    return fields


def log_probs(block: np.ndarray, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The Gaussian's logarithm, by hand, under the actor whose state is ``block``."""
    actor = build_actor(CountingEnv(SCRIPT).spec, GROUPS, TRAIN["actor"])
    load_state(actor, state_layout(actor), block)
    with torch.no_grad():
        means = actor({"policy": torch.from_numpy(obs.reshape(-1, 3).copy())}).double().numpy()
    std = actor.distribution.std_param.detach().double().numpy()
    z = (actions.reshape(-1, 2) - means) / std
    return (-0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=1).reshape(actions.shape[:2])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_rollout_holds_what_happened_where_the_layout_says(mailroom: Mailroom, join: Join, transport: str) -> None:
    env = CountingEnv(SCRIPT)
    session, loop, policy = join(env, transport)
    assert env.seed == 5
    block = terms(env.spec)[1].block
    episodes: list[tuple[float, int]] = []
    for number in range(3):
        loop.collect_one()
        rollout = take(mailroom)
        views, header, wanted = rollout.views, rollout.header, table(number * STEPS)
        assert session.path == transport
        assert (header.seq, header.policy_version) == (number, number)
        assert views["final_index"][: header.final_count].tolist() == FINAL_INDEX[number]
        for name, values in wanted.items():
            rows = header.final_count if name.startswith("final_") else None
            assert views[name][:rows].tolist() == values.tolist(), (number, name)
        acted = np.stack(env.actions[number * STEPS :])
        assert views["actions"].tolist() == acted.tolist()
        np.testing.assert_allclose(views["log_probs"], log_probs(block, views["obs/policy"], acted), atol=1e-5)
        episodes += zip(header.episodes.returns, header.episodes.lengths, strict=True)
        block = new_version(policy, number + 1)
        mailroom.publish(Weights("now", number + 1, block), [rollout])
    assert session.env_steps == 3 * STEPS * 3
    assert episodes == list(zip(env.returns, env.lengths, strict=True))
    assert len(episodes) == 18


def new_version(policy: Policy, version: int) -> np.ndarray:
    torch.manual_seed(version)
    actor = build_actor(CountingEnv(SCRIPT).spec, GROUPS, TRAIN["actor"])
    return dump_state(actor, policy.layout)


def test_more_truncations_than_the_limit_allows_are_the_environments_fault(join: Join) -> None:
    env = CountingEnv(["UUUUU", "....."], episode_limit=5)  # room for one row per environment
    _, loop, _ = join(env)
    with pytest.raises(EnvironmentFault, match=r"test:small: more episodes were truncated .* episode_limit = 5"):
        loop.collect_one()


def test_as_many_truncations_as_the_limit_allows_fit(mailroom: Mailroom, join: Join) -> None:
    env = CountingEnv(["U..U.", "..U..", ".U..U"], episode_limit=3)
    _, loop, _ = join(env)
    loop.collect_one()
    rollout = take(mailroom)
    assert len(rollout.views["final_index"]) == 3 * 2
    assert rollout.header.final_count == 5


def test_timers_are_per_step_or_per_rollout_and_start_again() -> None:
    timers = Timers()
    with timers("infer"), timers("send"):
        pass
    timers._seconds = {"infer": 2.0, "env_step": 4.0, "send": 0.5, "credit_wait": 0.25}
    assert timers.read_ms(10) == {"infer": 200.0, "env_step": 400.0, "send": 500.0, "credit_wait": 250.0}
    assert timers.read_ms(10) == {}
