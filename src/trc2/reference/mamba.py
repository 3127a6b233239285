"""Mamba in slow code: a loop over rows, tokens, channels and states."""

from __future__ import annotations

import torch
from torch import Tensor

from trc2.backbones.mamba import MambaConfig
from trc2.reference import Weights
from trc2.reference.baselines import Forward, Part, each_token, residual_stream
from trc2.reference.column import silu, swiglu


def mamba(config: MambaConfig) -> Forward:
    return lambda x, weights: residual_stream(x, weights, config, mixer(config), each_token(swiglu))


def mixer(config: MambaConfig) -> Part:
    return lambda u, weights: torch.stack([mix_row(row, weights, config) for row in u])


def mix_row(u: Tensor, weights: Weights, config: MambaConfig) -> Tensor:
    """(T, D): one step after the other, in the order of the recurrence."""
    inner, rank, num_states = config.inner_dim, config.rank, config.state_dim
    both = [weights["input.weight"] @ token for token in u]
    xs, zs = [b[:inner] for b in both], [b[inner:] for b in both]
    xs = [silu(c) for c in convolve(xs, weights["conv_weight"], weights["conv_bias"])]
    deltas, bs, cs = [], [], []
    for x in xs:
        chosen = weights["selection.weight"] @ x
        deltas.append(torch.log1p(torch.exp(weights["step.weight"] @ chosen[:rank] + weights["step_bias"])))
        bs.append(chosen[rank : rank + num_states])
        cs.append(chosen[rank + num_states :])
    ys, _ = scan(xs, deltas, -torch.exp(weights["decay_log"]), bs, cs)
    return torch.stack(
        [weights["output.weight"] @ ((y + weights["skip"] * x) * silu(z)) for x, y, z in zip(xs, ys, zs, strict=True)]
    )


def convolve(xs: list[Tensor], kernel: Tensor, bias: Tensor) -> list[Tensor]:
    """Channel c of token t: bias_c + Σ_k kernel_{c,k} x_{t−W+1+k,c}. There is nothing before the first token."""
    width = kernel.shape[1]
    outputs = []
    for t in range(len(xs)):
        total = bias
        for k in range(width):
            source = t - width + 1 + k
            if source >= 0:
                total = total + kernel[:, k] * xs[source]
        outputs.append(total)
    return outputs


def scan(
    xs: list[Tensor], deltas: list[Tensor], A: Tensor, bs: list[Tensor], cs: list[Tensor], state: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """s_{c,n} ← exp(Δ_c A_{c,n}) s_{c,n} + Δ_c B_n x_c;  y_c = Σ_n C_n s_{c,n}: for each token, and the last state."""
    channels, num_states = A.shape
    zero = torch.zeros((), dtype=A.dtype)
    s = [[zero if state is None else state[c, n] for n in range(num_states)] for c in range(channels)]
    ys = []
    for x, delta, b, c_t in zip(xs, deltas, bs, cs, strict=True):
        for c in range(channels):
            for n in range(num_states):
                s[c][n] = torch.exp(delta[c] * A[c, n]) * s[c][n] + delta[c] * b[n] * x[c]
        ys.append(torch.stack([sum((c_t[n] * s[c][n] for n in range(num_states)), zero) for c in range(channels)]))
    return ys, torch.stack([torch.stack(row) for row in s])
