"""Steps that only reset an environment (Gymnasium's NEXT_STEP): what is learnt is what is learnt without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers_unit import GROUPS, env_spec, random_rollout, train_dict

from appo_collector.envs.contract import Step
from appo_collector.episodes import EpisodeTracker
from appo_common.config import LearnerConfig
from appo_common.layout import env_steps, rollout_layout
from appo_learner.appo import APPO, build_appo
from appo_learner.batch import Batch, Stager

ENVS, STEPS = 4, 6
ENDS = [1, 0, 3, 4]
"""The step at which each environment's episode ends; the step after it is the one that is skipped."""
PLAIN, SKIPPING = env_spec(ENVS), env_spec(ENVS, skips_steps=True)
Views = dict[str, np.ndarray]


def algorithm(learner: dict[str, Any], **changes: Any) -> APPO:
    torch.manual_seed(5)
    return build_appo(train_dict(**changes), LearnerConfig.model_validate(learner), PLAIN, GROUPS, "cpu")


def plain_rollout() -> tuple[Views, int]:
    """A rollout in which every environment ends once, at its step of ``ENDS``; the even ones are truncated."""
    views, _, _ = random_rollout(np.random.default_rng(3), PLAIN, STEPS, ends=0.0)
    for env, step in enumerate(ENDS):
        views["terminated" if env % 2 else "truncated"][step, env] = True
    views["final_index"][:2] = [[ENDS[0], 0], [ENDS[2], 2]]
    for name in ("policy", "privileged"):
        views[f"final_obs/{name}"][:2] = views[f"obs/{name}"][:2, 0] + 1.0
    return views, 2


def with_skipped_steps(plain: Views) -> Views:
    """The same transitions with one step more, and with noise at the step after each end."""
    layout = rollout_layout(SKIPPING, STEPS + 1, GROUPS)
    views = layout.views(bytearray(layout.nbytes))
    rng = np.random.default_rng(4)
    for env, end in enumerate(ENDS):
        kept = [step for step in range(STEPS + 1) if step != end + 1]
        for name in views:
            if name in plain and len(plain[name]) == STEPS and not name.startswith(("final", "last")):
                views[name][kept, env] = plain[name][:, env]
        for name in ("obs/policy", "obs/privileged", "actions", "log_probs"):
            views[name][end + 1, env] = rng.normal(size=views[name].shape[2:])
        views["valid"][kept, env] = True
    for name in ("last_obs/policy", "last_obs/privileged", "final_index"):
        views[name][: len(plain[name])] = plain[name][: len(views[name])]
    for name in ("final_obs/policy", "final_obs/privileged"):
        views[name][:2] = plain[name][:2]
    return views


def batches() -> tuple[Batch, Batch]:
    plain, count = plain_rollout()
    skipping = with_skipped_steps(plain)
    return (
        Stager(PLAIN, GROUPS, STEPS, "cpu").stage([(plain, count)]),
        Stager(SKIPPING, GROUPS, STEPS + 1, "cpu").stage([(skipping, count)]),
    )


def in_column_order(appo: APPO, steps: int) -> dict[str, torch.Tensor]:
    """The prepared steps, one after the other: by step for a rollout, as kept where steps were skipped."""
    storage = appo.storage
    names = ("actions", "values", "returns", "advantages", "actions_log_prob")
    arrays = {name: getattr(storage, name).flatten(0, 1) for name in names}
    order = torch.argsort(arrays["actions"][:, 0])  # the actions are noise, and name their step
    return {name: array[order] for name, array in arrays.items()}


@pytest.mark.parametrize("per_mini_batch", [False, True])
@pytest.mark.parametrize("old_log_prob", ["target", "behaviour"])
@pytest.mark.parametrize("advantage", ["vtrace", "gae"])
def test_a_skipped_step_leaves_no_trace(advantage: str, old_log_prob: str, per_mini_batch: bool) -> None:
    plain_batch, skipping_batch = batches()
    found = []
    for batch, steps in ((plain_batch, STEPS), (skipping_batch, STEPS + 1)):
        learner = {"advantage": advantage, "old_log_prob": old_log_prob}
        appo = algorithm(learner, normalize_advantage_per_mini_batch=per_mini_batch)
        appo.prepare(batch)
        found.append(in_column_order(appo, steps))
    plain, skipping = found
    assert len(skipping["actions"]) == ENVS * STEPS
    for name in plain:
        torch.testing.assert_close(skipping[name], plain[name], rtol=1e-5, atol=1e-6, msg=name)


def test_the_update_and_the_normaliser_see_valid_steps_only() -> None:
    after = []
    for batch in batches():
        appo = algorithm({}, num_mini_batches=1, num_learning_epochs=1)  # one batch: its order is of no account
        appo.prepare(batch)
        appo.update()
        after.append(appo)
    plain, skipping = after
    assert skipping.actor.obs_normalizer.count == ENVS * STEPS
    for name, value in plain.actor.state_dict().items():
        torch.testing.assert_close(skipping.actor.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_a_skipped_step_counts_for_no_episode() -> None:
    tracker = EpisodeTracker(2, [])
    flags = np.array([[False, True], [False, False], [True, False]])
    for ended, valid in zip(flags, [[True, True], [True, False], [True, True]], strict=True):
        reward = np.ones(2, dtype=np.float32) * valid
        tracker.step(Step({}, reward.astype(np.float32), ended, np.zeros(2, dtype=bool), {}, {}, np.array(valid)))
    tracker.step(Step({}, np.ones(2, dtype=np.float32), ~flags[0], np.zeros(2, dtype=bool), {}, {}, np.ones(2, bool)))
    episodes = tracker.drain()
    assert (episodes.lengths, episodes.returns) == ([1, 3, 1], [1.0, 3.0, 1.0])


def test_a_batch_of_resets_alone_says_so() -> None:
    _, batch = batches()
    assert batch.valid is not None
    batch.valid[:] = False
    batch.valid[0, 0] = True
    with pytest.raises(ValueError, match=r"1 steps to train on.*num_mini_batches = 2"):
        algorithm({}).prepare(batch)


def test_env_steps_are_those_that_were_taken() -> None:
    plain, _ = plain_rollout()
    assert env_steps(with_skipped_steps(plain)) == env_steps(plain) == ENVS * STEPS
