"""V-trace against a slow reference: the sum of equation (1), step by step and environment by environment."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from appo_learner.vtrace import vtrace

GAMMA = 0.95


class Data(NamedTuple):
    """Everything ``[T, K]``, ``last_values`` ``[K]``, all float64."""

    values: np.ndarray
    last_values: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray
    ratios: np.ndarray


def random_data(seed: int, steps: int = 9, columns: int = 6, off_policy: float = 0.8) -> Data:
    rng = np.random.default_rng(seed)
    dones = rng.random((steps, columns)) < 0.2
    dones[-1, 0], dones[-1, 1], dones[:, 2], dones[:, 3] = True, False, False, True
    return Data(
        values=rng.normal(size=(steps, columns)),
        last_values=rng.normal(size=columns),
        rewards=rng.normal(size=(steps, columns)),
        dones=dones,
        ratios=np.exp(rng.normal(0.0, off_policy, size=(steps, columns))),
    )


def reference(data: Data, lam: float, rho_bar: float, c_bar: float) -> tuple[np.ndarray, np.ndarray]:
    """Write equation (1) of Espeholt et al. (2018) down as it stands: v_s is a sum over t with a product of c_i.

    c_i = λ·min(c̄, π/μ) (remark 2). Episodes end the sum, and what follows an end has the value 0.
    The advantage is that of section 4.2 with v_{s+1} drawn towards V(x_{s+1}) by λ.
    """
    steps, columns = data.rewards.shape
    targets, advantages = np.zeros((steps, columns)), np.zeros((steps, columns))
    for k in range(columns):
        value = [*data.values[:, k], data.last_values[k]]

        def value_after(t: int, value: list[float] = value, k: int = k) -> float:
            return 0.0 if data.dones[t, k] else value[t + 1]

        for s in range(steps):
            ends = [t for t in range(s, steps) if data.dones[t, k]]
            n = (ends[0] + 1 if ends else steps) - s
            total = value[s]
            for t in range(s, s + n):
                product = 1.0
                for i in range(s, t):
                    product *= lam * min(c_bar, data.ratios[i, k])
                rho = min(rho_bar, data.ratios[t, k])
                delta = rho * (data.rewards[t, k] + GAMMA * value_after(t) - value[t])
                total += GAMMA ** (t - s) * product * delta
            targets[s, k] = total
        for s in range(steps):
            following = data.last_values[k] if s == steps - 1 else targets[s + 1, k]
            drawn = 0.0 if data.dones[s, k] else (1 - lam) * value_after(s) + lam * following
            advantages[s, k] = data.rewards[s, k] + GAMMA * drawn - value[s]
    return targets, advantages


def compute(data: Data, lam: float = 1.0, rho_bar: float = 1.0, c_bar: float = 1.0, **changes: Any) -> list[np.ndarray]:
    arguments = [torch.from_numpy(array) for array in data._replace(**changes)]
    result = vtrace(*arguments, gamma=GAMMA, lam=lam, rho_bar=rho_bar, c_bar=c_bar)
    return [tensor.numpy() for tensor in result]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("lam", "rho_bar", "c_bar"), [(1, 1, 1), (0.9, 1, 1), (1, 3, 0.7), (0.5, 1.5, 1.2)])
def test_targets_and_advantages_are_those_of_the_paper(seed: int, lam: float, rho_bar: float, c_bar: float) -> None:
    data = random_data(seed)
    for got, wanted in zip(compute(data, lam, rho_bar, c_bar), reference(data, lam, rho_bar, c_bar), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_with_lambda_one_the_advantage_is_the_papers_q_minus_v() -> None:
    data = random_data(11)
    targets, advantages = compute(data)
    following = np.vstack([targets[1:], data.last_values])
    q = data.rewards + GAMMA * np.where(data.dones, 0.0, following)
    np.testing.assert_allclose(advantages, q - data.values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.4, 0.95, 1.0])
def test_on_policy_it_is_gae(lam: float) -> None:
    data = random_data(3)
    data = data._replace(ratios=np.ones_like(data.ratios))
    next_values = np.vstack([data.values[1:], data.last_values])
    deltas = data.rewards + GAMMA * np.where(data.dones, 0.0, next_values) - data.values
    # A_s = Σ_t (γλ)^(t-s) δ_t up to the episode's end (Schulman et al. 2016, equation 16).
    wanted = np.zeros_like(deltas)
    for s, k in np.ndindex(deltas.shape):
        for t in range(s, len(deltas)):
            wanted[s, k] += (GAMMA * lam) ** (t - s) * deltas[t, k]
            if data.dones[t, k]:
                break
    targets, advantages = compute(data, lam)
    np.testing.assert_allclose(advantages, wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(targets, wanted + data.values, rtol=1e-12, atol=1e-12)


def test_on_policy_with_lambda_one_targets_are_discounted_returns() -> None:
    data = random_data(4)
    data = data._replace(ratios=np.ones_like(data.ratios))
    returns = np.zeros_like(data.rewards)
    following = data.last_values
    for t in reversed(range(len(returns))):
        following = data.rewards[t] + GAMMA * np.where(data.dones[t], 0.0, following)
        returns[t] = following
    np.testing.assert_allclose(compute(data)[0], returns, rtol=1e-12, atol=1e-12)


def test_two_steps_by_hand() -> None:
    lists = ([[1], [2]], [4], [[10], [20]], [[0], [0]], [[0.5], [3]])
    data = Data(*(np.array(values, dtype=float) for values in lists))
    targets, advantages = compute(data)
    delta_1 = 1.0 * (20.0 + 0.95 * 4.0 - 2.0)  # ρ = min(1, 3)
    delta_0 = 0.5 * (10.0 + 0.95 * 2.0 - 1.0)
    assert targets[1, 0] == pytest.approx(2.0 + delta_1)
    assert targets[0, 0] == pytest.approx(1.0 + delta_0 + 0.95 * 0.5 * delta_1)
    assert advantages[1, 0] == pytest.approx(20.0 + 0.95 * 4.0 - 2.0)
    assert advantages[0, 0] == pytest.approx(10.0 + 0.95 * targets[1, 0] - 1.0)


def test_rho_bar_and_c_bar_truncate_each_its_own_weight() -> None:
    data = random_data(5)._replace(dones=np.zeros((9, 6), dtype=bool))
    twos, threes = np.full_like(data.ratios, 2.0), np.full_like(data.ratios, 3.0)
    assert np.array_equal(compute(data, ratios=twos), compute(data, ratios=threes)), "both are cut to 1"
    assert not np.allclose(compute(data, rho_bar=9.0, ratios=twos), compute(data, rho_bar=9.0, ratios=threes))
    loose = compute(data, rho_bar=9.0, c_bar=9.0, ratios=twos)
    assert not np.allclose(loose, compute(data, rho_bar=9.0, c_bar=1.0, ratios=twos))
    last_row = [compute(data, rho_bar=9.0, c_bar=c, ratios=twos)[0][-1] for c in (0.1, 9.0)]
    np.testing.assert_array_equal(*last_row)  # no step follows the last one: c̄ has nothing to carry


def test_nothing_crosses_the_end_of_an_episode() -> None:
    data = random_data(6)
    data.dones[4, :] = True
    noise = np.random.default_rng(0).normal(size=(4, 6))
    changed = data._replace(rewards=data.rewards.copy(), values=data.values.copy(), last_values=data.last_values + 1.0)
    changed.rewards[5:] += noise
    changed.values[5:] += noise
    for before, after in zip(compute(data), compute(changed), strict=True):
        np.testing.assert_array_equal(before[:5], after[:5])
        assert not np.allclose(before[5:], after[5:])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_dones_may_have_any_dtype(dtype: torch.dtype) -> None:
    data = random_data(7)
    arguments = [torch.from_numpy(array).float() for array in data]
    arguments[3] = torch.from_numpy(data.dones).to(dtype)
    targets, advantages = vtrace(*arguments, gamma=GAMMA, lam=0.9, rho_bar=1.0, c_bar=1.0)
    wanted = reference(data, 0.9, 1.0, 1.0)
    np.testing.assert_allclose(targets, wanted[0], atol=1e-5)
    np.testing.assert_allclose(advantages, wanted[1], atol=1e-5)
