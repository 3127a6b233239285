"""Exact top-k with one rule for ties: the lowest index wins.

torch.topk leaves the order of ties open, so a selection could differ between devices, batch sizes and releases.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FEW_WINNERS = 8  # up to this many, a partial selection beats one stable sort
FEW_SCORES = 2048  # for so few one sort costs less than the calls of several passes
WIDE_ROW = 2048  # from here on most of a row is passed over by blocks
BLOCK = 32
CHECKS_TIES = ("cpu",)  # elsewhere a look at the result would wait for the device


def top_k(scores: Float[Tensor, "*P S"], k: int) -> Int[Tensor, "*P k"]:
    """Indices of the k largest scores, largest first, ties by lowest index. Scores must be above −∞."""
    if k <= FEW_WINNERS and torch.compiler.is_compiling():
        return _few_winners(scores.detach(), k)
    if k > FEW_WINNERS or scores.numel() <= FEW_SCORES or torch.compiler.is_compiling():
        return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]
    if scores.shape[-1] >= WIDE_ROW:
        return _blocked_top_k(scores, k)
    if scores.device.type in CHECKS_TIES and k < scores.shape[-1]:
        values, indices = scores.detach().topk(k + 1, dim=-1)
        if bool((values[..., 1:] < values[..., :-1]).all()):  # no ties: whichever rule torch has, these are the ones
            return indices[..., :k]
    return _few_winners(scores.detach(), k)


def _few_winners(remaining: Float[Tensor, "*P S"], k: int) -> Int[Tensor, "*P k"]:
    """One winner after the other, in operations that a compiler joins."""
    picks, index = [], torch.arange(remaining.shape[-1], device=remaining.device)
    for _ in range(k):
        picks.append(remaining.argmax(dim=-1, keepdim=True))
        remaining = remaining.masked_fill(index == picks[-1], -math.inf)
    return torch.cat(picks, dim=-1)


def _blocked_top_k(scores: Float[Tensor, "*P S"], k: int) -> Int[Tensor, "*P k"]:
    """Find the k best blocks by their maximum, then the k best scores inside them.

    Exact: every block ranked before the block of a winner holds a score ranked before that winner, so fewer than k
    blocks come first. Only the maximum touches all scores, and it is vectorised.
    """
    *lead, width = scores.shape
    whole = width // BLOCK * BLOCK
    blocks = scores[..., :whole].unflatten(-1, (-1, BLOCK))
    # Ascending block order keeps "lowest index" meaning the same inside the gathered candidates.
    best = top_k(blocks.amax(dim=-1), k).sort(dim=-1).values
    index = (best.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(-2)
    if whole < width:
        tail = torch.arange(whole, width, device=scores.device).expand(*lead, -1)
        index = torch.cat((index, tail), dim=-1)
    return index.gather(-1, top_k(scores.gather(-1, index), k))


def top_k_mask(scores: Float[Tensor, "*P S"], k: int) -> Bool[Tensor, "*P S"]:
    """True at the k largest scores of each row, ties by lowest index. For k too large for `top_k` passes."""
    if k >= scores.shape[-1]:
        return torch.ones_like(scores, dtype=torch.bool)
    *_, smallest_kept, best_left = scores.topk(k + 1, dim=-1).values.split(1, dim=-1)
    mask = scores >= smallest_kept
    if torch.compiler.is_compiling() or bool((smallest_kept == best_left).any()):
        above = scores > smallest_kept
        tied = mask & ~above
        room = k - above.sum(dim=-1, keepdim=True)
        mask = above | (tied & (tied.cumsum(dim=-1) <= room))
    return mask
