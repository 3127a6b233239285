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

from trc2.ops.modes import with_gradient

SHORTEST, LONGEST = 96, 256  # shorter rows do not pay for the calls, longer ones have too many scores to keep
STEPS = 4


def suits(q: Float[Tensor, "B T H K"], k: Float[Tensor, "B S G K"]) -> bool:
    """Whether whole rows of this shape are faster here than in torch's fused kernel."""
    wide = q.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(q.device.type)
    return q.device.type == "cpu" and wide and q.shape[1] == k.shape[1] and SHORTEST <= q.shape[1] <= LONGEST


def staircase_attention(
    q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T G K"], v: Float[Tensor, "B T G K"]
) -> Float[Tensor, "B T H K"]:
    """softmax(QKᵀ/√K + causal) V. H/G neighbouring query heads share a key head."""
    return with_gradient(_Staircase.apply, _without_gradient, q, k, v)


def plain_causal_attention(
    q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T G K"], v: Float[Tensor, "B T G K"]
) -> Float[Tensor, "B T H K"]:
    """The same in torch operations: all T×T scores of all heads at once, those of later tokens included."""
    per_key, length = q.shape[2] // k.shape[2], q.shape[1]
    scores = torch.einsum("bthk,bshk->bhts", q, k.repeat_interleave(per_key, dim=2)) / math.sqrt(q.shape[3])
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(dim=-1)
    return torch.einsum("bhts,bshk->bthk", weights, v.repeat_interleave(per_key, dim=2))


class _Staircase(torch.autograd.Function):
    """Keeps the weights of every step, which the backward pass of a softmax needs."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = _by_head(k), _by_head(v)
        kept: list[Tensor] = []
        out = _climb(q, keys, values, kept if any(ctx.needs_input_grad) else None)
        ctx.save_for_backward(keys, values, *kept)
        ctx.shape = q.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values, *kept = ctx.saved_tensors
        rows, length, heads, width = ctx.shape
        groups = keys.shape[0] // rows
        per_key = heads // groups
        for_q = torch.empty(rows, length, groups, per_key, width, dtype=grad.dtype, device=grad.device)
        for_k, for_v = torch.zeros_like(keys), torch.zeros_like(values)
        for (start, stop), queries, weights in zip(_steps(length), kept[::2], kept[1::2], strict=True):
            from_above = _step(grad, start, stop, groups)
            for_v[:, :stop].baddbmm_(weights.transpose(1, 2), from_above)
            for_weights = torch.bmm(from_above, values[:, :stop].transpose(1, 2))
            for_scores = torch._softmax_backward_data(for_weights, weights, -1, weights.dtype)
            for_k[:, :stop].baddbmm_(for_scores.transpose(1, 2), queries, alpha=width**-0.5)
            turned = torch.bmm(for_scores, keys[:, :stop]).mul_(width**-0.5)
            for_q[:, start:stop] = turned.view(rows, groups, -1, per_key, width).transpose(1, 2)
        return for_q.flatten(2, 3), _by_token(for_k, rows), _by_token(for_v, rows)


def _without_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The plain version would also form the scores of later tokens."""
    return _climb(q, _by_head(k), _by_head(v))


def _climb(
    q: Float[Tensor, "B T H K"],
    keys: Float[Tensor, "A T K"],
    values: Float[Tensor, "A T K"],
    kept: list[Tensor] | None = None,
) -> Float[Tensor, "B T H K"]:
    """Attention step by step, for A = B·G key heads. Adds the queries and weights of every step to `kept`.

    The queries of a step see the keys up to its end: of these only the triangle on the step itself is masked.
    """
    rows, length, heads, width = q.shape
    groups = keys.shape[0] // rows
    per_key = heads // groups
    out = torch.empty(rows, length, groups, per_key, width, dtype=q.dtype, device=q.device)
    for start, stop in _steps(length):
        mask = q.new_full((stop - start, stop), -math.inf).triu_(start + 1).repeat_interleave(per_key, dim=0)
        queries = _step(q, start, stop, groups)
        scores = torch.baddbmm(mask, queries, keys[:, :stop].transpose(1, 2), alpha=width**-0.5)
        weights = scores.softmax(dim=-1)
        mixed = torch.bmm(weights, values[:, :stop])
        out[:, start:stop] = mixed.view(rows, groups, -1, per_key, width).transpose(1, 2)
        if kept is not None:
            kept += [queries, weights]
    return out.flatten(2, 3)


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
