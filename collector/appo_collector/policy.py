"""The collector's copy of the actor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from appo_collector.envs.contract import Observations
from appo_common.layout import Layout
from appo_common.models import build_actor, load_state, state_layout
from appo_common.spec import EnvSpec


class Policy:
    """Samples actions with an rsl_rl actor. Its parameters are only ever those of one published version."""

    def __init__(
        self, spec: EnvSpec, obs_groups: dict[str, list[str]], actor_cfg: dict[str, Any], device: str = "cpu"
    ) -> None:
        """Build the actor; it must not act before :meth:`load`."""
        self._groups = obs_groups["actor"]
        self._num_envs = spec.num_envs
        self._device = device
        self._actor = build_actor(spec, obs_groups, actor_cfg).to(device)
        self._actor.eval()
        self.layout: Layout = state_layout(self._actor)
        self._noise = torch.get_rng_state()

    def seed(self, seed: int) -> None:
        """Seed the noise of the actions on the CPU; on another device torch's generator there."""
        self._noise = torch.Generator().manual_seed(seed).get_state()
        if self._device != "cpu":
            torch.manual_seed(seed)

    def load(self, block: np.ndarray) -> None:
        """Take over one version's parameters and buffers (``[layout.nbytes]`` uint8)."""
        load_state(self._actor, self.layout, block)

    @torch.inference_mode()
    def act(self, obs: Observations) -> tuple[np.ndarray, np.ndarray]:
        """Sample actions ``[N, A]`` float32 and their log-probabilities ``[N]`` float32."""
        # rsl_rl draws from torch's global generator, which an environment may seed at every reset: two collectors
        # of it would explore alike. The exchange takes 3 µs.
        environments = torch.get_rng_state()
        torch.set_rng_state(self._noise)
        groups = {name: torch.from_numpy(obs[name]) for name in self._groups}
        batch = TensorDict(groups, batch_size=[self._num_envs]).to(self._device)
        actions = self._actor(batch, stochastic_output=True)
        log_probs = self._actor.get_output_log_prob(actions)
        self._noise = torch.get_rng_state()
        torch.set_rng_state(environments)
        return actions.cpu().numpy(), log_probs.cpu().numpy()
