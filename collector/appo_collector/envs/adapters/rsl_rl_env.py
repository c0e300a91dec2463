"""Environments written for rsl_rl (Isaac Lab, mjlab, Genesis and others) in the contract."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from appo_collector.envs.adapters.torch_arrays import as_array, as_groups, describe
from appo_collector.envs.contract import Observations, Step, VectorEnv
from appo_common.errors import EnvironmentFault
from appo_common.spec import EnvSpec

FINAL_KEYS = (
    *("final_obs", "final_observation", "final_observations"),
    *("terminal_obs", "terminal_observation", "terminal_observations"),
)
"""Keys of ``extras`` under which final observations are looked for; ``extras["observations"]["final"]`` comes last."""
SINGLE = "policy"
"""The group that a bare tensor of observations becomes, as before rsl_rl 3."""
_MEMBERS = ("num_envs", "num_actions", "device", "get_observations", "step")

logger = logging.getLogger(__name__)


def is_vec_env(product: object) -> bool:
    """Say whether ``product`` is an rsl_rl ``VecEnv``, or has what the adapter needs of one."""
    module = sys.modules.get("rsl_rl.env")  # nobody can have subclassed what was never imported
    if module is not None and isinstance(product, module.VecEnv):
        return True
    return all(hasattr(product, member) for member in _MEMBERS)


def seed_globally(seed: int) -> None:
    """Seed the generators of torch, NumPy and Python that belong to nobody."""
    torch.manual_seed(seed)
    np.random.seed(_short(seed))
    random.seed(seed)


class RslRlEnv(VectorEnv):
    """N environments of an ``rsl_rl.env.VecEnv``, on any device.

    Its ends of episodes are read as rsl_rl reads them: an end that ``extras["time_outs"]`` marks was cut short, any
    other is terminated, and an environment that ended both ways is what ``time_outs`` says. Final observations are
    taken from ``extras`` (see :data:`FINAL_KEYS`), for all N environments or for those that ended. A group that is
    not offered there keeps the observation before the last action, so that the learner adds the γ·V(s_t) that rsl_rl
    would have added; the log says so once.
    """

    def __init__(self, vec: Any, name: str) -> None:
        """Adopt ``vec``, which this object closes from now on. Raises EnvironmentFault for what it lacks."""
        for member in _MEMBERS:
            if not hasattr(vec, member):
                raise EnvironmentFault(f"{name}: it has no {member!r}, which rsl_rl's VecEnv promises")
        self._vec = vec
        self._name = name
        self._said: set[str] = set()
        self._obs = self._read(vec.get_observations(), {})
        self.spec = EnvSpec(
            name=name,
            observations=describe(self._obs),
            num_actions=int(vec.num_actions),
            num_envs=int(vec.num_envs),
            # max_episode_length may change while it runs, and time-outs of other kinds may come earlier.
            episode_limit=None,
            step_dt=_step_dt(vec),
        )

    def reset(self, seed: int) -> Observations:
        """Seed the environment and start new episodes, as far as it offers to do so.

        It is seeded through its own ``seed``, or its inner environment's. Only where there is none are the global
        generators of torch, NumPy and Python seeded. Where there is no ``reset``, the episodes go on.
        """
        self._seed(_short(seed))
        with torch.no_grad():
            offered = self._vec.reset() if callable(getattr(self._vec, "reset", None)) else None
            self._obs = self._read(self._vec.get_observations() if offered is None else offered, {})
        return self._obs

    def step(self, actions: np.ndarray) -> Step:
        """Apply ``[N, A]`` float32 actions; see :class:`VectorEnv`."""
        with torch.no_grad():  # an actuator network among its parts would grow a graph for ever
            acted = torch.tensor(actions, dtype=torch.float32, device=self._vec.device)
            batch, rewards, dones, extras = self._vec.step(acted)
        before, self._obs = self._obs, self._read(batch, extras)
        done = self._row("dones", dones, "bool")
        timed_out = self._time_outs(extras, done)
        ended = np.flatnonzero(done)
        final = {key: array[ended] for key, array in before.items()}
        if ended.size:
            final |= self._final(extras, ended, bool(timed_out.any()))
        reward = self._row("rewards", rewards, "float32")
        return Step(self._obs, reward, done & ~timed_out, timed_out, final, {})

    def ages(self) -> np.ndarray:
        """Return ``[N]`` int: what ``episode_length_buf`` holds, for an environment that starts at random ages."""
        ages = getattr(self._vec, "episode_length_buf", None)
        return super().ages() if ages is None else self._row("episode_length_buf", ages, "int64")

    def close(self) -> None:
        """Close it, if it has a ``close``."""
        if callable(getattr(self._vec, "close", None)):
            self._vec.close()

    def _seed(self, seed: int) -> None:
        for env in (self._vec, getattr(self._vec, "unwrapped", None)):
            seed_it = getattr(env, "seed", None)
            if callable(seed_it):
                seed_it(seed)
                return
        seed_globally(seed)

    def _read(self, batch: Any, extras: Mapping[str, Any]) -> Observations:
        """Return the groups ``[N, *group]`` of a TensorDict, a dict, or a tensor as before rsl_rl 3."""
        if isinstance(batch, tuple):  # get_observations() and reset() return (observations, extras) there
            batch, extras = batch
        if isinstance(batch, torch.Tensor):
            others = extras.get("observations", {})
            batch = {SINGLE: batch} | {key: value for key, value in others.items() if isinstance(value, torch.Tensor)}
        if not hasattr(batch, "items"):
            raise EnvironmentFault(f"{self._name}: its observations are a {type(batch).__name__}, not a TensorDict")
        return as_groups(batch, self._name)

    def _row(self, what: str, tensor: Any, dtype: str) -> np.ndarray:
        """Return ``[N]`` of a tensor ``[N]`` or ``[N, 1]``."""
        array = as_array(tensor, dtype)
        if array.shape not in ((self.spec.num_envs,), (self.spec.num_envs, 1)):
            raise EnvironmentFault(f"{self._name}: {what} have the shape {array.shape}, expected [num_envs]")
        return array.reshape(-1)

    def _time_outs(self, extras: Mapping[str, Any], done: np.ndarray) -> np.ndarray:
        """Return ``[N]`` bool: which of those that are ``done`` were cut short."""
        if extras.get("time_outs") is not None:
            return self._row("time_outs", extras["time_outs"], "bool") & done
        if done.any():
            self._say_once(
                "it ends episodes without extras['time_outs']; such ends count as terminated, with no value after them"
            )
        return np.zeros_like(done)

    def _final(self, extras: Mapping[str, Any], ended: np.ndarray, matters: bool) -> Observations:
        """Return the groups ``[E, *group]`` that ``extras`` offers of the environments that ``ended``."""
        key, offered = _offered(extras)
        if isinstance(offered, np.ndarray) and offered.dtype != object:
            offered = torch.as_tensor(offered)
        elif isinstance(offered, (list, np.ndarray)):  # one entry per environment, None where the episode goes on
            offered = _stacked([offered[env] for env in ended])
        if isinstance(offered, Mapping):
            offered = {key: torch.as_tensor(value) for key, value in offered.items()}
        if isinstance(offered, torch.Tensor):
            offered = {next(iter(self._obs)): offered} if len(self._obs) == 1 else {SINGLE: offered}
        groups = as_groups({} if offered is None else offered, f"{self._name}: extras[{key!r}]")
        missing = [name for name in self._obs if name not in groups]
        if missing and matters:
            which = f"of the groups {', '.join(missing)} " if groups else ""
            self._say_once(
                f"it offers no final observations {which}in extras; time-outs are bootstrapped from the last "
                "observation before the end, as rsl_rl does"
            )
        return {name: self._rows(key, name, groups[name], ended) for name in self._obs if name in groups}

    def _rows(self, key: str, group: str, array: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Pick the rows that ``ended`` where ``array`` holds all N."""
        rows = array[ended] if len(array) == self.spec.num_envs else array
        shape = (ended.size, *self._obs[group].shape[1:])
        if rows.shape != shape:
            raise EnvironmentFault(
                f"{self._name}: extras[{key!r}][{group!r}] has the shape {array.shape}; expected a row for each of the "
                f"{self.spec.num_envs} environments, or of the {ended.size} that ended, each {shape[1:]}"
            )
        return rows

    def _say_once(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            logger.info("%s: %s", self._name, words)


def _short(seed: int) -> int:
    """Return a seed of 31 bits: ``np.random.seed``, which environments call, takes no more than 32."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 1)


def _offered(extras: Mapping[str, Any]) -> tuple[str, Any]:
    """Return key and value of the final observations, None where there are none."""
    for key in FINAL_KEYS:
        if extras.get(key) is not None:
            return key, extras[key]
    observations: Any = extras.get("observations")
    return "observations.final", observations.get("final") if hasattr(observations, "get") else None


def _stacked(entries: list[Any]) -> Any:
    """Return one batch of separate environments' observations: tensors, or dicts of tensors."""
    if any(entry is None for entry in entries):
        return None
    if isinstance(entries[0], Mapping):
        return {key: torch.stack([torch.as_tensor(entry[key]) for entry in entries]) for key in entries[0]}
    return torch.stack([torch.as_tensor(entry) for entry in entries])


def _step_dt(vec: Any) -> float:
    """Return seconds per step where the environment or its inner one tells; 1.0 where not."""
    for env in (vec, getattr(vec, "unwrapped", None)):
        step_dt = getattr(env, "step_dt", None)
        if isinstance(step_dt, (int, float)) and step_dt > 0:
            return float(step_dt)
    return 1.0
