"""Play a twin, then Gymnasium's own environment with the same states and actions, and compare every number."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np

from appo_collector.envs.native.mujoco_warnings import warnings_kept
from appo_collector.envs.native.twins import TWINS
from appo_collector.envs.native.twins.twin import Twin


class Played(NamedTuple):
    """One step of all environments, before the ones that ended were reset; float64, as computed."""

    obs: np.ndarray  # [N, size]
    qpos: np.ndarray  # [N, nq]
    qvel: np.ndarray  # [N, nv]
    terms: dict[str, np.ndarray]  # [N] each


@dataclass
class Differences:
    """The largest absolute ones over all steps."""

    obs: float = 0.0
    state: float = 0.0
    reward: float = 0.0
    steps: int = 0
    terminated: int = 0
    truncated: int = 0
    both: int = 0


def twin_class(name: str) -> type[Twin]:
    module, attribute, _ = TWINS[name]
    kind: type[Twin] = getattr(importlib.import_module(module), attribute)
    return kind


def recording(name: str, num_envs: int, **options: Any) -> Twin:
    """Make a twin that keeps what it computed in a step as ``played``, before it is rounded and reset."""

    class Recording(twin_class(name)):  # type: ignore[misc]
        played: Played
        terms_of_step: dict[str, np.ndarray]

        def _rewards(self, actions: np.ndarray) -> dict[str, np.ndarray]:
            self.terms_of_step = super()._rewards(actions)
            return self.terms_of_step

        def _advance(self, actions: np.ndarray, rng: np.random.Generator) -> None:
            obs = np.concatenate(self._parts(slice(None)), axis=1)
            self.played = Played(obs, self.qpos.copy(), self.qvel.copy(), self.terms_of_step)

    return Recording(num_envs, **options)


def gymnasium_env(name: str, **options: Any) -> gymnasium.Env[np.ndarray, np.ndarray]:
    with warnings.catch_warnings(), warnings_kept():
        warnings.simplefilter("ignore", DeprecationWarning)  # Ant-v4 is an old version
        return gymnasium.make(name.partition(":")[2], disable_env_checker=True, **options)


def start_at(env: gymnasium.Env[Any, Any], qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    """Reset Gymnasium's environment, but to this state; return its observation."""
    env.reset(seed=0)
    base: Any = env.unwrapped
    mujoco.mj_resetData(base.model, base.data)  # a reset computes the accelerations once, with a cold solver
    base.set_state(qpos, qvel)
    obs: np.ndarray = base._get_obs()
    return obs


def compare(name: str, num_envs: int, steps: int, **options: Any) -> Differences:
    """Return the differences in float64; what the contract returned (float32) must be Gymnasium's, cast.

    Actions reach beyond the bounds.
    """
    twin = recording(name, num_envs, **options)
    first = twin.reset(seed=1)["policy"]
    starts = [(twin.qpos.copy(), twin.qvel.copy(), first)]  # after step t - 1: where the ended begin
    low, high = np.array(twin.spec.action_low), np.array(twin.spec.action_high)
    rng = np.random.default_rng(2)
    actions = rng.uniform(1.3 * low, 1.3 * high, (steps, num_envs, low.size)).astype(np.float32)
    results, played = [], []
    for action in actions:
        results.append(twin.step(action))
        played.append(twin.played)
        starts.append((twin.qpos.copy(), twin.qvel.copy(), results[-1].obs["policy"]))
    twin.close()
    found = Differences(steps=num_envs * steps)
    env = gymnasium_env(name, **options)
    for row in range(num_envs):
        begin = True
        for t in range(steps):
            if begin:
                qpos, qvel, obs = starts[t]
                reset_obs = start_at(env, qpos[row], qvel[row])
                np.testing.assert_array_equal(obs[row], reset_obs.astype(np.float32), err_msg="after a reset")
            begin = compare_step(env, actions[t, row], row, results[t], played[t], found)
    env.close()
    return found


def compare_step(
    env: gymnasium.Env[Any, Any], action: np.ndarray, row: int, ours: Any, played: Played, found: Differences
) -> bool:
    """Step Gymnasium's environment, compare with row ``row``; return whether the episode ended."""
    obs, reward, terminated, truncated, info = env.step(action)
    base: Any = env.unwrapped
    assert (ours.terminated[row], ours.truncated[row]) == (terminated, truncated)
    ended = bool(terminated or truncated)
    which = np.flatnonzero(ours.terminated | ours.truncated).searchsorted(row)
    shown = ours.final_obs["policy"][which] if ended else ours.obs["policy"][row]
    np.testing.assert_array_equal(shown, obs.astype(np.float32))
    assert ours.reward[row] == np.float32(reward)
    terms = {term: values[row] for term, values in played.terms.items()}
    for term, value in terms.items():
        theirs = info.get(f"reward_{term}", info.get(term))
        assert abs(value - theirs) <= 1e-9, term
    found.obs = max(found.obs, np.abs(played.obs[row] - obs).max())
    found.state = max(found.state, np.abs(played.qpos[row] - base.data.qpos).max())
    found.state = max(found.state, np.abs(played.qvel[row] - base.data.qvel).max())
    found.reward = max(found.reward, abs(sum(float(value) for value in terms.values()) - float(reward)))
    found.terminated += terminated
    found.truncated += truncated
    found.both += terminated and truncated
    return ended
