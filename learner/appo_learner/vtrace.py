"""V-trace targets and advantages (Espeholt et al. 2018, "IMPALA", arXiv:1802.01561), with a λ."""

from __future__ import annotations

import torch


def vtrace(
    values: torch.Tensor,
    last_values: torch.Tensor,
    rewards: torch.Tensor,
    dones: torch.Tensor,
    ratios: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute V-trace value targets and unweighted advantages.

    With ρ_t = min(ρ̄, π/μ), c_t = λ·min(c̄, π/μ), γ_t = γ·(1 - done_t) and
    δ_t = ρ_t·(r_t + γ_t·V(x_{t+1}) - V(x_t)), equation (1) of the paper in its recursive form (remark 1) is

        v_t - V(x_t) = δ_t + γ_t·c_t·(v_{t+1} - V(x_{t+1})).

    The advantage of section 4.2 is q_t - V(x_t) with q_t = r_t + γ_t·v_{t+1}. For λ < 1 we take
    q_t = r_t + γ_t·(V(x_{t+1}) + λ·(v_{t+1} - V(x_{t+1}))), so that on-policy data gives exactly GAE(λ); for
    λ = 1 it is the paper's. The factor ρ_t of the paper's policy gradient is left to the caller, because it
    depends on what the surrogate's own ratio is measured against.

    Args:
        values: V(x_t), ``[T, K]``.
        last_values: V(x_T), ``[K]``.
        rewards: ``[T, K]``; time-outs already hold γ·V(final observation).
        dones: 1 where the episode ended at step t in either way, ``[T, K]``, any dtype.
        ratios: π(a_t|x_t) / μ(a_t|x_t), target over behaviour policy, ``[T, K]``.
        gamma: Discount.
        lam: λ.
        rho_bar: ρ̄, truncation of the temporal-difference weights; fixes which policy is evaluated.
        c_bar: c̄ ≤ ρ̄, truncation of the trace; fixes how fast it converges.

    Returns:
        Targets v_t and advantages q_t - V(x_t), ``[T, K]`` each.
    """
    discounts = gamma * (1.0 - dones.to(values.dtype))
    next_values = torch.cat((values[1:], last_values.unsqueeze(0)))
    deltas = ratios.clamp(max=rho_bar) * (rewards + discounts * next_values - values)
    traces = discounts * lam * ratios.clamp(max=c_bar)

    corrections = torch.empty_like(values)  # v_t - V(x_t)
    following = torch.zeros_like(last_values)
    for step in reversed(range(values.shape[0])):
        following = deltas[step] + traces[step] * following
        corrections[step] = following

    next_corrections = torch.cat((corrections[1:], torch.zeros_like(last_values).unsqueeze(0)))
    q_values = rewards + discounts * (next_values + lam * next_corrections)
    return values + corrections, q_values - values
