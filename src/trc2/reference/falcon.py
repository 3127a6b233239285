"""FALCON in slow code: a loop over rows, heads, tokens and value channels."""

from __future__ import annotations

import torch
from torch import Tensor

from trc2.backbones.falcon import FalconConfig
from trc2.reference import Weights
from trc2.reference.baselines import Forward, Part, each_token, residual_stream
from trc2.reference.column import rms_norm, swiglu
from trc2.reference.mamba import convolve

EPS, EPS_GAMMA = 1e-6, 1e-4


def falcon(config: FalconConfig) -> Forward:
    return lambda x, weights: residual_stream(x, weights, config, mixer(config), each_token(swiglu))


def mixer(config: FalconConfig) -> Part:
    return lambda u, weights: torch.stack([mix_row(row, weights, config) for row in u])


def mix_row(u: Tensor, weights: Weights, config: FalconConfig) -> Tensor:
    """(T, D): one step after the other, in the order of the recurrence."""
    projected = [weights["qkv.weight"] @ token for token in u]
    mixed = convolve(projected, weights["conv_weight"], torch.zeros_like(projected[0]))
    gains = [2 * torch.sigmoid(weights["gain.weight"] @ token + weights["gain.bias"]) for token in u]
    ridges = [torch.sigmoid(weights["ridge.weight"] @ token + weights["ridge.bias"]) for token in u]
    one = torch.ones((), dtype=u.dtype)
    heads = []
    for h in range(config.num_heads):
        channels = slice(h * config.head_dim, (h + 1) * config.head_dim)
        parts = [token.chunk(3) for token in mixed]
        q = [rms_norm(part[0][channels], one, config.norm_eps) for part in parts]
        k = [rms_norm(part[1][channels], one, config.norm_eps) for part in parts]
        v = [part[2][channels] for part in parts]
        x = [torch.zeros_like(k[0]), *k[:-1]]
        writes, keeps = [], []
        for t in range(len(u)):
            beta = gains[t][channels] if config.variant == "falcon2" else gains[t][h].expand(config.head_dim)
            energy = x[t] @ x[t]
            lam = config.ridge_scale * ridges[t][h] * energy
            eta = beta / (energy + lam + EPS) if t > 0 else torch.zeros_like(beta)
            writes.append(eta)
            keeps.append(1 - torch.minimum(eta * lam, (1 - EPS_GAMMA) * one))
        start = torch.zeros(config.head_dim, config.head_dim, dtype=u.dtype)
        outputs, _ = fast_weights(q, x, v, writes, keeps, start)
        if config.output_norm:
            outputs = [rms_norm(o, weights["output_gain"][channels], config.norm_eps) for o in outputs]
        heads.append(outputs)
    return torch.stack([weights["output.weight"] @ torch.cat([head[t] for head in heads]) for t in range(len(u))])


def fast_weights(
    qs: list[Tensor], xs: list[Tensor], vs: list[Tensor], etas: list[Tensor], gammas: list[Tensor], state: Tensor
) -> tuple[list[Tensor], Tensor]:
    """One head: s_j ← γ_j s_j + η_j (v_j − s_j·x) x for each column s_j of the weights, then o_j = s_j·q."""
    columns = list(state.T)
    outputs = []
    for q, x, v, eta, gamma in zip(qs, xs, vs, etas, gammas, strict=True):
        for j, s in enumerate(columns):
            columns[j] = gamma[j] * s + eta[j] * (v[j] - s @ x) * x
        outputs.append(torch.stack([s @ q for s in columns]))
    return outputs, torch.stack(columns, dim=1)
