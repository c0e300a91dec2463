"""The counting environments as one rsl_rl ``VecEnv``, which reuses every buffer that it returns."""

from __future__ import annotations

from typing import Any

import torch
from helpers_counting import SCRIPT, counters
from rsl_rl.env import VecEnv
from tensordict import TensorDict


class CountingTorch(VecEnv):
    """``final``: what ``extras`` says of final observations; ``time_outs``: of an end both ways, or None for no key."""

    def __init__(
        self,
        final: str = "",
        time_outs: str | None = "exact",
        script: tuple[str, ...] = SCRIPT,
        device: str = "cpu",
    ) -> None:
        rows = self.num_envs = len(script)
        self.num_actions, self.max_episode_length = 1, 100
        self.device, self.cfg = torch.device(device), {}
        self._counters = counters(script)
        self._final, self._kind = final, time_outs
        self._obs = TensorDict({"policy": torch.zeros(rows, 2, device=device)}, batch_size=[rows])
        self._rewards, self._last = torch.zeros(rows, device=device), torch.zeros(rows, 2, device=device)
        self._dones = torch.zeros(rows, dtype=torch.long, device=device)
        self._time_outs = torch.zeros(rows, dtype=torch.bool, device=device)
        self.seeds: list[int] = []
        self.actions = torch.zeros(0)
        self.reset()

    def seed(self, seed: int) -> int:
        self.seeds.append(seed)
        return seed

    def reset(self) -> tuple[TensorDict, dict[str, Any]]:
        for env, counter in enumerate(self._counters):
            counter.restart()
            self._obs["policy"][env] = torch.tensor(counter.reset())
        return self._obs, {}

    def get_observations(self) -> TensorDict:
        return self._obs

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        self.actions = actions
        for env, counter in enumerate(self._counters):
            seen, self._rewards[env], terminated, truncated = counter.step()
            self._last[env] = torch.tensor(seen)
            self._dones[env] = terminated or truncated
            self._time_outs[env] = truncated and not (terminated and self._kind == "exact")
            self._obs["policy"][env] = torch.tensor(counter.reset()) if self._dones[env] else self._last[env]
        extras: dict[str, Any] = {"log": {"/mean": 1.0}}
        if self._kind is not None:
            extras["time_outs"] = self._time_outs
        return self._obs, self._rewards, self._dones, extras | self._offer()

    def _offer(self) -> dict[str, Any]:
        key, _, form = self._final.partition(":")
        done = self._dones.bool()
        if not key or not done.any():
            return {}
        forms: dict[str, Any] = {
            "": {"policy": self._last},
            "rows": {"policy": self._last[done]},
            "tensor": self._last,
            "entries": [{"policy": row} if ended else None for row, ended in zip(self._last, done, strict=True)],
            "other": {"motion": self._last},
            "short": {"policy": self._last[:, :1]},
        }
        return {"observations": {"final": forms[form]}} if key == "nested" else {key: forms[form]}


def make(num_envs: int) -> CountingTorch:
    """A factory, for ``env.name: helpers_rsl_rl:make``."""
    return CountingTorch("final_obs", script=(SCRIPT * num_envs)[:num_envs])
