"""The categorical distribution against torch's own, component by component."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from helpers_unit import TRAIN, env_spec
from onnx.reference import ReferenceEvaluator
from torch.distributions import Categorical, kl_divergence

from appo_common.distributions import CategoricalDistribution
from appo_common.models import build_actor

NVECS = [[2], [3, 3, 3], [2, 5, 1, 3]]
GROUPS = {"actor": ["policy"]}


def logits(nvec: list[int], *batch: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*batch, sum(nvec), generator=generator)


def torchs(nvec: list[int], joined: torch.Tensor) -> list[Categorical]:
    """One of torch's distributions for each component."""
    return [Categorical(logits=part) for part in joined.split(nvec, dim=-1)]


def updated(nvec: list[int], joined: torch.Tensor) -> CategoricalDistribution:
    distribution = CategoricalDistribution(len(nvec), nvec)
    distribution.update(joined)
    return distribution


def discrete_actor(nvec: list[int]) -> Any:
    actor = {**TRAIN["actor"], "distribution_cfg": {"class_name": "CategoricalDistribution"}}
    return build_actor(env_spec(num_actions=len(nvec), action_nvec=nvec), GROUPS, actor)


@pytest.mark.parametrize("nvec", NVECS, ids=str)
def test_log_prob_and_entropy_are_the_sums_of_torchs_own(nvec: list[int]) -> None:
    joined = logits(nvec, 4, 6)
    distribution, parts = updated(nvec, joined), torchs(nvec, joined)
    actions = distribution.sample()
    expected = sum(part.log_prob(actions[..., a]) for a, part in enumerate(parts))
    torch.testing.assert_close(distribution.log_prob(actions), expected)
    torch.testing.assert_close(distribution.entropy, sum(part.entropy() for part in parts))
    assert distribution.log_prob(actions).shape == distribution.entropy.shape == (4, 6)
    assert distribution.input_dim == sum(nvec)


@pytest.mark.parametrize("nvec", NVECS, ids=str)
def test_all_actions_together_have_probability_one(nvec: list[int]) -> None:
    every = torch.cartesian_prod(*(torch.arange(n) for n in nvec)).view(-1, len(nvec)).float()
    distribution = updated(nvec, logits(nvec, 1).expand(len(every), -1))
    assert distribution.log_prob(every).exp().sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("nvec", NVECS, ids=str)
def test_mean_and_std_are_those_of_the_index(nvec: list[int]) -> None:
    joined = logits(nvec, 5)
    distribution = updated(nvec, joined)
    for row in range(5):
        for a, part in enumerate(torchs(nvec, joined)):
            probabilities = part.probs[row].double().numpy()
            mean = sum(index * p for index, p in enumerate(probabilities))
            square = sum((index - mean) ** 2 * p for index, p in enumerate(probabilities))
            assert float(distribution.mean[row, a]) == pytest.approx(mean, abs=1e-6)
            assert float(distribution.std[row, a]) == pytest.approx(np.sqrt(square), abs=1e-3)


@pytest.mark.parametrize("nvec", NVECS, ids=str)
def test_the_divergence_is_torchs_and_never_negative(nvec: list[int]) -> None:
    old, new = logits(nvec, 50, seed=1), logits(nvec, 50, seed=2)
    distribution = updated(nvec, old)
    old_params = distribution.params
    distribution.update(new)
    divergence = distribution.kl_divergence(old_params, distribution.params)
    pairs = zip(torchs(nvec, old), torchs(nvec, new), strict=True)
    torch.testing.assert_close(divergence, sum(kl_divergence(p, q) for p, q in pairs), rtol=1e-4, atol=1e-5)
    assert (divergence > 0).all()
    same = distribution.kl_divergence(distribution.params, distribution.params)
    assert torch.equal(same, torch.zeros(50))


def test_the_parameters_are_kept_per_transition() -> None:
    """rsl_rl stores them as [steps, envs, ...] tensors and hands back rows of them."""
    nvec = [2, 3]
    joined = logits(nvec, 6)
    (stored,) = updated(nvec, joined).params
    assert stored.shape == (6, 5)
    rows = torch.tensor([4, 1])
    distribution = updated(nvec, joined[rows])
    assert torch.equal(distribution.kl_divergence((stored[rows],), distribution.params), torch.zeros(2))


@pytest.mark.parametrize("nvec", NVECS, ids=str)
def test_gradients_are_torchs_own_and_finite_for_certain_choices(nvec: list[int]) -> None:
    mine, theirs = logits(nvec, 7).requires_grad_(), logits(nvec, 7).requires_grad_()
    distribution, parts = updated(nvec, mine), torchs(nvec, theirs)
    actions = distribution.sample()
    (distribution.log_prob(actions) + distribution.entropy).sum().backward()
    sum((part.log_prob(actions[..., a]) + part.entropy()).sum() for a, part in enumerate(parts)).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    certain = (1e4 * logits(nvec, 7)).requires_grad_()
    distribution.update(certain)
    (distribution.log_prob(actions).clamp(min=-10) + distribution.entropy).sum().backward()
    assert torch.isfinite(certain.grad).all()


@pytest.mark.parametrize("nvec", NVECS, ids=str)
def test_samples_have_the_frequencies_of_the_distribution(nvec: list[int]) -> None:
    torch.manual_seed(5)
    count, joined = 20_000, logits(nvec, scale=1.0)
    samples = updated(nvec, joined.expand(count, -1)).sample()
    assert samples.dtype == torch.float32
    assert samples.shape == (count, len(nvec))
    for a, part in enumerate(torchs(nvec, joined)):
        counts = np.bincount(samples[:, a].numpy().astype(int), minlength=nvec[a])
        assert len(counts) == nvec[a]
        expected = count * part.probs.numpy()
        chi_square = float((((counts - expected) ** 2) / expected).sum())
        assert chi_square < 20.0, "beyond the 99.9 % quantile of 5 choices (18.5)"
    joint = np.corrcoef(samples[:, 0], samples[:, 1])[0, 1] if len(nvec) > 1 else 0.0
    assert abs(joint) < 0.03, "components are independent"


def test_a_choice_of_probability_zero_is_never_drawn() -> None:
    joined = torch.tensor([-1e9, 0.0, -1e9, 0.0, -1e9]).expand(10_000, -1)
    samples = updated([5], joined).sample()
    assert samples.unique().tolist() == [1.0, 3.0]


@pytest.mark.parametrize("nvec", NVECS, ids=str)
def test_the_deterministic_output_is_the_likeliest_choice(nvec: list[int]) -> None:
    joined = logits(nvec, 9)
    distribution = CategoricalDistribution(len(nvec), nvec)
    expected = torch.stack([part.probs.argmax(-1) for part in torchs(nvec, joined)], dim=-1).float()
    for output in (distribution.deterministic_output(joined), distribution.as_deterministic_output_module()(joined)):
        assert torch.equal(output, expected)
        assert output.dtype == torch.float32


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch's exporters, by torch
@pytest.mark.parametrize("nvec", NVECS, ids=str)
def test_an_actor_starts_nearly_undecided_and_exports(nvec: list[int]) -> None:
    torch.manual_seed(0)
    actor = discrete_actor(nvec)
    obs = torch.randn(8, 3)
    actor({"policy": obs}, stochastic_output=True)
    undecided = sum(np.log(n) for n in nvec)
    assert actor.output_entropy.min().item() == pytest.approx(undecided, abs=1e-3)

    torch.nn.init.normal_(actor.mlp[-1].weight)  # decided, or every choice would be a tie
    expected = actor({"policy": obs})
    assert len(expected.unique(dim=0)) > 1
    assert torch.equal(torch.jit.script(actor.as_jit())(obs), expected)
    exported = actor.as_onnx(verbose=False).eval()
    buffer = io.BytesIO()
    names = {"input_names": exported.input_names, "output_names": exported.output_names}
    torch.onnx.export(exported, exported.get_dummy_inputs(), buffer, dynamo=True, opset_version=18, **names)
    model = ReferenceEvaluator(onnx.load_from_string(buffer.getvalue()))
    for row, output in zip(obs, expected, strict=True):
        assert np.array_equal(model.run(None, {"obs": row[None].numpy()})[0], output[None].numpy())


def test_only_what_is_learnt_is_in_a_checkpoint() -> None:
    assert list(CategoricalDistribution(2, [2, 3]).state_dict()) == []
    moved = CategoricalDistribution(2, [2, 3]).to("meta")
    moved.update(torch.zeros(1, 5, device="meta"))
    assert moved.log_prob(moved.sample()).device.type == "meta", "its buffers go where the model goes"


@pytest.mark.parametrize("nvec", [[], [2], [2, 0]])
def test_choices_that_do_not_fit_the_actions_are_refused(nvec: list[int]) -> None:
    with pytest.raises(ValueError, match="for each of 2 actions"):
        CategoricalDistribution(2, nvec)
