"""Appendix "Thalamic router"."""

from __future__ import annotations

import torch
from torch import Tensor

from trc2.reference import Weights
from trc2.reference.column import rms_norm, silu


def strictly_past_mean(z0: Tensor) -> Tensor:
    """(T, R): row t is the mean of rows 0 … t−1, and 0 for the first."""
    means = [torch.zeros_like(z0[0])]
    for t in range(1, z0.shape[0]):
        total = torch.zeros_like(z0[0])
        for j in range(t):
            total = total + z0[j]
        means.append(total / t)
    return torch.stack(means)


def compete(gate: Tensor, groups: int, inhibition: float) -> Tensor:
    """One token's gate (R,), divided by 1 + η · mean of its group."""
    size = gate.shape[0] // groups
    out = []
    for i in range(gate.shape[0]):
        m = i // size
        out.append(gate[i] / (1 + inhibition * gate[m * size : (m + 1) * size].mean()))
    return torch.stack(out)


def router(report: Tensor, weights: Weights, groups: int, inhibition: float, eps: float) -> Tensor:
    """C (B, T, D) → F_thal (B, T, D)."""
    rank = weights["compress.weight"].shape[0]
    rows = []
    for row in report:
        z0 = torch.stack([rms_norm(weights["compress.weight"] @ c, weights["norm.gain"], eps) for c in row])
        past = strictly_past_mean(z0)
        tokens = []
        for t in range(row.shape[0]):
            s = ((z0[t] - past[t]) ** 2).sum() / rank
            state = torch.sigmoid(
                weights["state_weight.weight"] @ z0[t] + weights["state_bias"] + weights["surprise_gain"] * s
            )
            diffuse = silu(weights["diffuse.weight"] @ past[t])
            z1 = silu(weights["local.weight"] @ z0[t]) + torch.sigmoid(weights["diffuse_gain"]) * state * diffuse
            gate = torch.sigmoid(weights["competition.weight"] @ z1 + weights["competition_bias"])
            z2 = z1 * compete(gate, groups, inhibition)
            tokens.append((weights["back.weight"] @ z2) * torch.sigmoid(weights["modulation"]))
        rows.append(torch.stack(tokens))
    return torch.stack(rows)
