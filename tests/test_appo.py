"""APPO against a slow reference of its preparation, and against rsl_rl's own PPO where both must agree."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from helpers_unit import GROUPS, env_spec, random_rollout, train_dict
from rsl_rl.algorithms import PPO
from tensordict import TensorDict

from appo_common.config import LearnerConfig
from appo_common.layout import rollout_layout
from appo_common.models import example_observations
from appo_learner.appo import APPO, build_appo
from appo_learner.batch import Batch, Stager

STEPS = 5
SIZES = [3, 1, 4]
COLUMNS = sum(SIZES)
Rollouts = list[tuple[dict[str, np.ndarray], int]]


def algorithm(seed: int = 0, learner: dict[str, Any] | None = None, **changes: Any) -> APPO:
    torch.manual_seed(seed)
    config = LearnerConfig.model_validate(learner or {})
    return build_appo(train_dict(**changes), config, env_spec(1), GROUPS, "cpu")


def random_rollouts(seed: int, ends: float = 0.2) -> Rollouts:
    rng = np.random.default_rng(seed)
    return [random_rollout(rng, env_spec(size), STEPS, ends)[:2] for size in SIZES]


def stage(rollouts: Rollouts) -> Batch:
    return Stager(env_spec(1), GROUPS, STEPS, "cpu").stage(rollouts)


class Slow:
    """Models evaluated one observation at a time, everything else in float64 and in plain loops."""

    def __init__(self, appo: APPO) -> None:
        twin = algorithm()
        self._actor, self._critic = twin.actor, twin.critic
        self._actor.load_state_dict(appo.actor.state_dict())
        self._critic.load_state_dict(appo.critic.state_dict())
        self.std = self._actor.distribution.std_param.detach().double().numpy()

    @torch.no_grad()
    def value(self, policy: np.ndarray, privileged: np.ndarray) -> float:
        rows = {"policy": torch.tensor(policy)[None], "privileged": torch.tensor(privileged)[None]}
        return self._critic(TensorDict(rows, batch_size=[1])).item()

    @torch.no_grad()
    def mean(self, policy: np.ndarray) -> np.ndarray:
        return self._actor(TensorDict({"policy": torch.tensor(policy)[None]}, batch_size=[1]))[0].double().numpy()

    def log_prob(self, policy: np.ndarray, action: np.ndarray) -> float:
        z = (action.astype(float) - self.mean(policy)) / self.std
        return float(np.sum(-0.5 * z**2 - np.log(self.std) - 0.5 * np.log(2 * np.pi)))


class Column(NamedTuple):
    """What the reference finds for one environment, ``[T]`` each."""

    values: np.ndarray
    log_probs: np.ndarray
    rewards: np.ndarray
    targets: np.ndarray
    advantages: np.ndarray
    ratios: np.ndarray


def reference_column(slow: Slow, appo: APPO, views: dict[str, np.ndarray], count: int, env: int) -> Column:
    """Evaluate one environment of one rollout, and add up equation (1) of Espeholt et al. (2018) as it stands."""
    gamma, lam = appo.gamma, appo.vtrace_lam
    obs = [(views["obs/policy"][t, env], views["obs/privileged"][t, env]) for t in range(STEPS)]
    values = [slow.value(*pair) for pair in obs]
    following = [*values[1:], slow.value(views["last_obs/policy"][env], views["last_obs/privileged"][env])]
    log_probs = [slow.log_prob(obs[t][0], views["actions"][t, env]) for t in range(STEPS)]
    ratios = [float(np.exp(log_probs[t] - views["log_probs"][t, env])) for t in range(STEPS)]
    rewards = [float(reward) for reward in views["rewards"][:, env]]
    final = {tuple(views["final_index"][row].tolist()): row for row in range(count)}
    for t in range(STEPS):
        if views["terminated"][t, env]:
            following[t] = 0.0
        elif views["truncated"][t, env]:
            row = final[t, env]
            rewards[t] += gamma * slow.value(views["final_obs/policy"][row], views["final_obs/privileged"][row])
            following[t] = 0.0
    ends = views["terminated"][:, env] | views["truncated"][:, env]

    targets = []
    for s in range(STEPS):
        total, product = values[s], 1.0
        for t in range(s, STEPS):
            rho = min(appo.rho_bar, ratios[t])
            total += gamma ** (t - s) * product * rho * (rewards[t] + gamma * following[t] - values[t])
            product *= lam * min(appo.c_bar, ratios[t])
            if ends[t]:
                break
        targets.append(total)
    advantages = []
    for t in range(STEPS):
        next_target = following[t] if t == STEPS - 1 else targets[t + 1]
        drawn = 0.0 if ends[t] else following[t] + lam * (next_target - following[t])
        advantages.append(rewards[t] + gamma * drawn - values[t])
    return Column(*(np.array(x) for x in (values, log_probs, rewards, targets, advantages, ratios)))


def reference(appo: APPO, rollouts: Rollouts) -> Column:
    slow = Slow(appo)
    columns = [
        reference_column(slow, appo, views, count, env)
        for views, count in rollouts
        for env in range(views["rewards"].shape[1])
    ]
    return Column(*(np.stack(parts, axis=1) for parts in zip(*columns, strict=True)))


@pytest.mark.parametrize("old_log_prob", ["target", "behaviour"])
@pytest.mark.parametrize(
    "vtrace", [{}, {"lam": 1.0}, {"rho_bar": 2.0, "c_bar": 0.8}, {"rho_bar": 1.5, "c_bar": 1.5, "lam": 0.5}]
)
def test_a_batch_is_prepared_as_the_paper_says(old_log_prob: str, vtrace: dict[str, float]) -> None:
    appo = algorithm(1, {"old_log_prob": old_log_prob, "vtrace": vtrace})
    rollouts = random_rollouts(8)
    flags = [views[name] for views, _ in rollouts for name in ("terminated", "truncated")]
    assert all(flag.any() for flag in (flags[0], flags[1], flags[4] & flags[5])), "the data must hold all cases"
    wanted = reference(appo, rollouts)
    assert (wanted.ratios > appo.rho_bar).any()
    assert (wanted.ratios < appo.rho_bar).any()

    appo.prepare(stage(rollouts))
    storage = appo.storage
    advantages = (wanted.advantages - wanted.advantages.mean()) / (wanted.advantages.std(ddof=1) + 1e-8)
    if old_log_prob == "target":
        advantages = advantages * np.minimum(appo.rho_bar, wanted.ratios)
    behaviour = np.concatenate([views["log_probs"] for views, _ in rollouts], axis=1)
    close = {"rtol": 2e-4, "atol": 2e-5}
    np.testing.assert_allclose(storage.values[..., 0], wanted.values, **close)
    np.testing.assert_allclose(storage.rewards[..., 0], wanted.rewards, **close)
    np.testing.assert_allclose(storage.returns[..., 0], wanted.targets, **close)
    np.testing.assert_allclose(storage.advantages[..., 0], advantages, **close)
    old = wanted.log_probs if old_log_prob == "target" else behaviour
    np.testing.assert_allclose(storage.actions_log_prob[..., 0], old, **close)


def test_the_distribution_before_the_update_is_kept_for_the_kl_divergence() -> None:
    appo = algorithm(2)
    rollouts = random_rollouts(9)
    slow = Slow(appo)
    appo.prepare(stage(rollouts))
    mean, std = appo.storage.distribution_params
    assert mean.shape == std.shape == (STEPS, COLUMNS, 2)
    obs = np.concatenate([views["obs/policy"] for views, _ in rollouts], axis=1)
    wanted = [[slow.mean(obs[t, column]) for column in range(COLUMNS)] for t in range(STEPS)]
    np.testing.assert_allclose(mean, np.array(wanted), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(std, np.broadcast_to(slow.std, std.shape), rtol=1e-6)


def test_only_truncated_episodes_are_bootstrapped() -> None:
    appo = algorithm(3)
    rollouts = random_rollouts(10, ends=0.3)
    raw = np.concatenate([views["rewards"] for views, _ in rollouts], axis=1)
    cut = np.concatenate([views["truncated"] & ~views["terminated"] for views, _ in rollouts], axis=1)
    appo.prepare(stage(rollouts))
    prepared = appo.storage.rewards[..., 0].numpy()
    assert cut.sum() > 5
    assert (prepared[~cut] == raw[~cut]).all(), "an episode that also terminated has no future value"
    assert (prepared[cut] != raw[cut]).all()


# -------------------------------------------------------------------------------------- beside rsl_rl's own PPO


class OnPolicy(NamedTuple):
    """A rollout that PPO itself has stored, and the same as two collectors would send it."""

    ppo: PPO
    rollouts: Rollouts


def on_policy(normalize_per_mini_batch: bool = False, truncate: bool = False) -> OnPolicy:
    """Drive PPO through act and process_env_step on noise, with the final-observation bootstrap done by hand."""
    train = train_dict(normalize_advantage_per_mini_batch=normalize_per_mini_batch, class_name=PPO)
    envs = 6
    env = SimpleNamespace(num_envs=envs, num_actions=2)
    torch.manual_seed(0)
    ppo = PPO.construct_algorithm(example_observations(env_spec(1), envs), env, {**train, "multi_gpu": None}, "cpu")
    ppo.train_mode()
    data, _, _ = random_rollout(np.random.default_rng(0), env_spec(envs), STEPS, 0.2)
    if not truncate:
        data["truncated"][...] = False
    index = np.argwhere(data["truncated"] & ~data["terminated"])
    data["final_index"][: len(index)] = index

    torch.manual_seed(1)
    for t in range(STEPS):
        obs = groups(data, "obs/", t)
        with torch.inference_mode():
            data["actions"][t] = ppo.act(obs).numpy()
            data["log_probs"][t] = ppo.transition.actions_log_prob.numpy()
            rewards = torch.from_numpy(data["rewards"][t].copy())
            for row in np.flatnonzero(index[:, 0] == t):
                final = groups(data, "final_obs/", slice(row, row + 1))
                rewards[index[row, 1]] += ppo.gamma * ppo.critic(final)[0, 0]
            dones = torch.from_numpy(data["terminated"][t] | data["truncated"][t])
            ppo.process_env_step(obs, rewards, dones, {})
    with torch.inference_mode():
        ppo.compute_returns(groups(data, "last_obs/", slice(None)))
    return OnPolicy(ppo, [split(data, index, slice(0, 2)), split(data, index, slice(2, 6))])


def groups(data: dict[str, np.ndarray], prefix: str, rows: Any) -> TensorDict:
    found = {name: torch.from_numpy(data[prefix + name][rows].copy()) for name in ("policy", "privileged")}
    return TensorDict(found, batch_size=[len(found["policy"])])


def split(data: dict[str, np.ndarray], index: np.ndarray, columns: slice) -> tuple[dict[str, np.ndarray], int]:
    """What a collector of these environments would have sent."""
    layout = rollout_layout(env_spec(columns.stop - columns.start), STEPS, GROUPS)
    views = layout.views(np.zeros(layout.nbytes, dtype=np.uint8))
    for name in ("actions", "log_probs", "rewards", "terminated", "truncated", "obs/policy", "obs/privileged"):
        views[name][...] = data[name][:, columns]
    rows = np.flatnonzero((index[:, 1] >= columns.start) & (index[:, 1] < columns.stop))
    views["final_index"][: len(rows)] = index[rows] - [0, columns.start]
    for name in ("policy", "privileged"):
        views[f"last_obs/{name}"][...] = data[f"last_obs/{name}"][columns]
        views[f"final_obs/{name}"][: len(rows)] = data[f"final_obs/{name}"][rows]
    return views, len(rows)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("normalize_per_mini_batch", [False, True])
@pytest.mark.parametrize("learner", [{"advantage": "gae", "old_log_prob": "behaviour"}, {"advantage": "gae"}, {}])
def test_at_lag_zero_everything_is_rsl_rls_ppo(
    learner: dict[str, Any], normalize_per_mini_batch: bool, truncate: bool
) -> None:
    """Also with V-trace: on-policy its ratios are 1, and what is left is GAE(λ)."""
    ppo, rollouts = on_policy(normalize_per_mini_batch, truncate)
    appo = algorithm(0, learner, normalize_advantage_per_mini_batch=normalize_per_mini_batch)
    assert sum(count for _, count in rollouts) > 0 or not truncate
    for mine, theirs in zip(parameters(appo), parameters(ppo), strict=True):
        assert torch.equal(mine, theirs), "both must start from the same parameters"

    appo.prepare(stage(rollouts))
    for name in ("values", "rewards", "returns", "advantages", "actions_log_prob"):
        mine, theirs = getattr(appo.storage, name), getattr(ppo.storage, name)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")

    losses = []
    for each in (appo, ppo):
        torch.manual_seed(2)
        losses.append(each.update())
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert appo.learning_rate == ppo.learning_rate
    for mine, theirs in zip(parameters(appo), parameters(ppo), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


def parameters(ppo: PPO) -> list[torch.Tensor]:
    """Parameters and normaliser statistics."""
    return [*ppo.actor.state_dict().values(), *ppo.critic.state_dict().values()]


# ---------------------------------------------------------------------------------------------- the update


@pytest.mark.parametrize("advantage", ["vtrace", "gae"])
def test_the_surrogates_ratio_starts_at_one_whatever_the_lag(advantage: str) -> None:
    appo = algorithm(4, {"advantage": advantage})
    rollouts = random_rollouts(11)
    appo.prepare(stage(rollouts))
    behaviour = np.concatenate([views["log_probs"] for views, _ in rollouts], axis=1).flatten()
    batch = next(appo.storage.mini_batch_generator(num_mini_batches=1, num_epochs=1))
    appo.actor(batch.observations, stochastic_output=True)
    log_probs = appo.actor.get_output_log_prob(batch.actions)
    torch.testing.assert_close(log_probs, batch.old_actions_log_prob.squeeze(-1), rtol=0, atol=1e-6)
    assert np.abs(np.sort(log_probs.detach()) - np.sort(behaviour)).max() > 1, "the data is not off-policy"


def test_the_first_surrogate_loss_is_the_mean_advantage() -> None:
    """The ratio is 1 there, so nothing is clipped: the same through rsl_rl's own update."""
    appo = algorithm(5, num_learning_epochs=1, num_mini_batches=1)
    appo.prepare(stage(random_rollouts(12)))
    wanted = -appo.storage.advantages.mean().item()
    assert abs(wanted) > 1e-3
    assert appo.update()["surrogate"] == pytest.approx(wanted, abs=1e-6)


def test_the_normaliser_counts_every_rollout_once_and_after_the_log_probabilities() -> None:
    appo = algorithm(6)
    seen = []
    stager = Stager(env_spec(1), GROUPS, STEPS, "cpu")
    for seed in (13, 14, 15):
        rollouts = random_rollouts(seed)
        slow = Slow(appo)  # with the statistics of the batches before this one
        appo.prepare(stager.stage(rollouts))
        views = rollouts[0][0]
        first = slow.log_prob(views["obs/policy"][0, 0], views["actions"][0, 0])
        assert appo.storage.actions_log_prob[0, 0, 0].item() == pytest.approx(first, rel=1e-4)
        appo.update()
        seen.append(np.concatenate([views["obs/policy"] for views, _ in rollouts], axis=1).reshape(-1, 3))
        statistics, data = appo.actor.obs_normalizer, np.concatenate(seen).astype(float)
        assert int(statistics.count) == int(appo.critic.obs_normalizer.count) == len(data)
        np.testing.assert_allclose(statistics.mean, data.mean(axis=0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(statistics.std, data.std(axis=0), rtol=1e-4)


def test_preparing_changes_no_parameter_and_leaves_no_gradient() -> None:
    appo = algorithm(7)
    before = [tensor.clone() for tensor in parameters(appo)]
    appo.prepare(stage(random_rollouts(16)))
    assert all(torch.equal(*pair) for pair in zip(parameters(appo), before, strict=True))
    assert all(parameter.grad is None for parameter in appo.actor.parameters())
    assert not appo.storage.returns.requires_grad


def test_building_leaves_the_callers_dictionaries_alone() -> None:
    train, groups = train_dict(class_name="APPO"), copy.deepcopy(GROUPS)
    before = copy.deepcopy(train)
    build_appo(train, LearnerConfig(), env_spec(1), groups, "cpu")
    assert train == before
    assert groups == GROUPS


def test_the_options_of_the_configuration_arrive() -> None:
    vtrace = {"rho_bar": 1.5, "c_bar": 0.5, "lam": 0.25}
    appo = algorithm(0, {"advantage": "gae", "old_log_prob": "behaviour", "vtrace": vtrace}, gamma=0.5, lam=0.75)
    assert (appo.advantage, appo.old_log_prob) == ("gae", "behaviour")
    assert (appo.rho_bar, appo.c_bar, appo.vtrace_lam) == (1.5, 0.5, 0.25)
    assert (appo.gamma, appo.lam) == (0.5, 0.75)
    assert algorithm(0, lam=0.75).vtrace_lam == 0.75, "without one of its own V-trace takes PPO's λ"
