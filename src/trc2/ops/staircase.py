"""Causal attention of short rows on a CPU: plain products over a staircase that follows the causal triangle.

Torch's fused kernel saves memory, which short rows do not need, and pays for it with small blocks: for rows of 128 and
256 tokens a forward and backward pass here takes about a quarter less time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

SHORTEST, LONGEST = 96, 256  # shorter rows do not pay for the calls, longer ones have too many scores to keep
STEPS = 4


def suits(q: Float[Tensor, "B T H K"], k: Float[Tensor, "B S G K"]) -> bool:
    """Whether whole rows of this shape are faster here than in torch's fused kernel."""
    wide = q.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(q.device.type)
    return q.device.type == "cpu" and wide and q.shape[1] == k.shape[1] and SHORTEST <= q.shape[1] <= LONGEST


def staircase_attention(
    q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T G K"], v: Float[Tensor, "B T G K"]
) -> Float[Tensor, "B T H K"]:
    """softmax(QKᵀ/√K + causal) V; H/G neighbouring query heads share a key head."""
    if not torch.is_grad_enabled():  # a custom function is told that gradients are needed even where none will be asked
        q, k, v = q.detach(), k.detach(), v.detach()
    return _Staircase.apply(q, k, v)


class _Staircase(torch.autograd.Function):
    """Queries of a step see the keys up to its end; only the triangle on the step itself is masked."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, length, heads, width = q.shape
        groups = k.shape[2]
        share = heads // groups
        learns = any(ctx.needs_input_grad)
        keys, values = _by_head(k), _by_head(v)
        out = torch.empty(rows, length, groups, share, width, dtype=q.dtype, device=q.device)
        kept = []
        for start, stop in _steps(length):
            mask = q.new_full((stop - start, stop), -math.inf).triu_(start + 1).repeat_interleave(share, dim=0)
            queries = _step(q, start, stop, groups)
            scores = torch.baddbmm(mask, queries, keys[:, :stop].transpose(1, 2), alpha=width**-0.5)
            weights = scores.softmax(dim=-1)
            mixed = torch.bmm(weights, values[:, :stop])
            out[:, start:stop] = mixed.view(rows, groups, -1, share, width).transpose(1, 2)
            if learns:
                kept += [queries, weights]
        ctx.save_for_backward(keys, values, *kept)
        ctx.shape = q.shape
        return out.flatten(2, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values, *kept = ctx.saved_tensors
        rows, length, heads, width = ctx.shape
        groups = keys.shape[0] // rows
        share = heads // groups
        for_q = torch.empty(rows, length, groups, share, width, dtype=grad.dtype, device=grad.device)
        for_k, for_v = torch.zeros_like(keys), torch.zeros_like(values)
        for (start, stop), queries, weights in zip(_steps(length), kept[::2], kept[1::2], strict=True):
            heard = _step(grad, start, stop, groups)
            for_v[:, :stop].baddbmm_(weights.transpose(1, 2), heard)
            for_weights = torch.bmm(heard, values[:, :stop].transpose(1, 2))
            for_scores = torch._softmax_backward_data(for_weights, weights, -1, weights.dtype)
            for_k[:, :stop].baddbmm_(for_scores.transpose(1, 2), queries, alpha=width**-0.5)
            turned = torch.bmm(for_scores, keys[:, :stop]).mul_(width**-0.5)
            for_q[:, start:stop] = turned.view(rows, groups, -1, share, width).transpose(1, 2)
        return for_q.flatten(2, 3), _by_token(for_k, rows), _by_token(for_v, rows)


def _steps(length: int) -> Iterator[tuple[int, int]]:
    size = math.ceil(length / STEPS)
    return ((start, min(start + size, length)) for start in range(0, length, size))


def _step(x: Tensor, start: int, stop: int, groups: int) -> Tensor:
    """(B, T, H, K) → (B·G, (stop − start) · H/G, K): a step's tokens, with the heads that share a key together."""
    return x[:, start:stop].unflatten(2, (groups, -1)).transpose(1, 2).reshape(x.shape[0] * groups, -1, x.shape[3])


def _by_head(x: Tensor) -> Tensor:
    """(B, T, G, K) → (B·G, T, K)"""
    return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])


def _by_token(x: Tensor, rows: int) -> Tensor:
    """(B·G, T, K) → (B, T, G, K)"""
    return x.unflatten(0, (rows, -1)).transpose(1, 2)
