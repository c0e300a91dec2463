"""Asynchronous PPO: rsl_rl's PPO, fed by rollouts of older policies instead of its own."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.storage import RolloutStorage

from appo_common.config import LearnerConfig
from appo_common.models import complete_actor, example_model_input, feed_images
from appo_common.spec import EnvSpec
from appo_learner.batch import Batch, keep_valid
from appo_learner.vtrace import vtrace

logger = logging.getLogger(__name__)


class APPO(PPO):
    """PPO whose returns come from V-trace (or GAE) over rollouts that a behaviour policy μ has made.

    rsl_rl owns the models, the mini-batches, the clipped surrogate and the adaptive learning rate. What is
    added here happens once per batch, before :meth:`update`: values and log-probabilities under the current
    (target) policy π, the time-out bootstrap, and the off-policy correction.
    """

    def __init__(
        self,
        *args: Any,
        advantage: str = "vtrace",
        old_log_prob: str = "target",
        rho_bar: float = 1.0,
        c_bar: float = 1.0,
        vtrace_lam: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Take PPO's arguments and those of the correction (see ``docs/algorithm.md``).

        Args:
            args: PPO's.
            advantage: ``vtrace`` or ``gae``.
            old_log_prob: What the surrogate's ratio is measured against: ``target``, the policy at the start of
                the update, with V-trace's ρ as weight (decoupled PPO, Hilton et al. 2022, arXiv:2110.00641);
                or ``behaviour``, the policy that acted.
            rho_bar: V-trace's ρ̄.
            c_bar: V-trace's c̄.
            vtrace_lam: V-trace's λ; None takes PPO's ``lam``.
            kwargs: PPO's.
        """
        super().__init__(*args, **kwargs)
        self.advantage = advantage
        self.old_log_prob = old_log_prob
        self.rho_bar = rho_bar
        self.c_bar = c_bar
        self.vtrace_lam = self.lam if vtrace_lam is None else vtrace_lam

    @torch.no_grad()
    def prepare(self, batch: Batch) -> None:
        """Evaluate ``batch`` under the current policy and compute its returns and advantages.

        The normaliser is still the one that belongs to the current parameters: rsl_rl updates it at the end of
        :meth:`update`, after these log-probabilities, once per rollout.
        Raises ValueError where too few valid steps are left for the mini-batches.
        """
        if batch.valid is not None and int(batch.valid.sum()) < self.num_mini_batches:
            raise ValueError(
                f"{int(batch.valid.sum())} steps to train on, as all others only reset an environment; fewer than "
                f"num_mini_batches = {self.num_mini_batches}"
            )
        self.storage = storage = batch.storage
        steps, columns = storage.actions.shape[:2]
        obs = storage.observations.flatten(0, 1)
        self.actor(obs, stochastic_output=True)
        target_log_prob = self.actor.get_output_log_prob(storage.actions.flatten(0, 1)).view(steps, columns)
        storage.distribution_params = tuple(
            parameter.unflatten(0, (steps, columns)) for parameter in self.actor.output_distribution_params
        )
        storage.values = self.critic(obs).view(steps, columns, 1)
        self._bootstrap_time_outs(batch)
        if self.advantage == "gae":
            self.compute_returns(batch.last_obs)
        else:
            self._compute_vtrace(batch, target_log_prob)
        if self.old_log_prob == "target":
            storage.actions_log_prob = target_log_prob.unsqueeze(-1)
        if batch.valid is not None:
            self.storage = self._valid_steps(storage, batch.valid)

    def is_finite(self) -> bool:
        """Whether every parameter is a number."""
        parameters = chain(self.actor.parameters(), self.critic.parameters())
        return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)

    def _bootstrap_time_outs(self, batch: Batch) -> None:
        """Add γ·V(final observation) to the reward of every step at which an episode was cut short."""
        if len(batch.final_index):
            step, column = batch.final_index.unbind(1)
            batch.storage.rewards[step, column] += self.gamma * self.critic(batch.final_obs)

    def _valid_steps(self, storage: RolloutStorage, valid: torch.Tensor) -> RolloutStorage:
        """Return the steps to train on; steps that only reset an environment are left out (``valid`` is [T, K]).

        They have taken no part in the returns of others: the step before each of them ended its episode.
        """
        kept = keep_valid(storage, valid)
        if self.advantage == "gae" and not self.normalize_advantage_per_mini_batch:
            kept.advantages = _normalised(kept.advantages, kept.advantages)  # rsl_rl's took all steps in
        return kept

    def _compute_vtrace(self, batch: Batch, target_log_prob: torch.Tensor) -> None:
        storage = batch.storage
        ratios = torch.exp(target_log_prob - storage.actions_log_prob.squeeze(-1))
        targets, advantages = vtrace(
            storage.values.squeeze(-1),
            self.critic(batch.last_obs).squeeze(-1),
            storage.rewards.squeeze(-1),
            storage.dones.squeeze(-1),
            ratios,
            gamma=self.gamma,
            lam=self.vtrace_lam,
            rho_bar=self.rho_bar,
            c_bar=self.c_bar,
        )
        if not self.normalize_advantage_per_mini_batch:
            advantages = _normalised(advantages, advantages if batch.valid is None else advantages[batch.valid])
        if self.old_log_prob == "target":
            # The surrogate's own ratio starts at 1, so ρ has to be a weight. It comes after the normalisation:
            # a constant baseline drops out of the gradient only when it is weighted too. (With
            # normalize_advantage_per_mini_batch rsl_rl normalises the weighted ones, later.)
            advantages = advantages * ratios.clamp(max=self.rho_bar)
        storage.returns = targets.unsqueeze(-1)
        storage.advantages = advantages.unsqueeze(-1)


def _normalised(advantages: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    """Shift and scale ``advantages`` so that those of ``sample`` have mean 0 and standard deviation 1."""
    return (advantages - sample.mean()) / (sample.std() + 1e-8)


def build_appo(
    train: Mapping[str, Any],
    learner: LearnerConfig,
    spec: EnvSpec,
    obs_groups: Mapping[str, Sequence[str]],
    device: str,
) -> APPO:
    """Build models, optimiser and algorithm from rsl_rl's training dictionary, which is not changed."""
    cfg = copy.deepcopy(dict(train))
    cfg["obs_groups"] = {key: list(groups) for key, groups in obs_groups.items()}
    cfg["multi_gpu"] = None
    cfg["actor"] = complete_actor(cfg["actor"], spec)
    cfg["algorithm"].update(
        class_name=APPO,
        advantage=learner.advantage,
        old_log_prob=learner.old_log_prob,
        rho_bar=learner.vtrace.rho_bar,
        c_bar=learner.vtrace.c_bar,
        vtrace_lam=learner.vtrace.lam,
    )
    env = SimpleNamespace(num_envs=1, num_actions=spec.num_actions, unwrapped=SimpleNamespace(step_dt=spec.step_dt))
    said = io.StringIO()
    with redirect_stdout(said):  # rsl_rl prints the models
        algorithm: APPO = APPO.construct_algorithm(example_model_input(spec, device), env, cfg, device)
    logger.debug("%s", said.getvalue())
    feed_images(algorithm._raw_actor, spec, cfg["obs_groups"]["actor"])
    feed_images(algorithm._raw_critic, spec, cfg["obs_groups"]["critic"])
    algorithm.train_mode()
    return algorithm
