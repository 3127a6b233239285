"""Next-token loss without a (tokens × vocabulary) tensor that outlives a chunk."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from trc2.ops.modes import at_least_float32, compute_dtype, with_gradient
from trc2.ops.selection import top_k

IGNORE_INDEX = -100
# Logits alive at once. On a CPU: few enough for its cache, but enough rows per product where the vocabulary is large.
CHUNK_ELEMENTS = {"cpu": 2**22}
LARGE_CHUNK = 2**24


def chunk_rows(weight: Tensor) -> int:
    """How many rows of logits are formed at a time."""
    return max(1, CHUNK_ELEMENTS.get(weight.device.type, LARGE_CHUNK) // weight.shape[0])


def linear_cross_entropy(
    hidden: Float[Tensor, "P D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " P"],
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """Σ over labelled positions of −log softmax(hidden · weightᵀ)[target]. −100 is ignored.

    A sum, not a mean: the number of labels to divide by is known only once all micro-batches of a step are.
    """
    rows = chunk_rows(weight) if chunk is None else chunk
    return with_gradient(_LinearCrossEntropy.apply, _sum_over_chunks, hidden, weight, targets, rows)


def plain_linear_cross_entropy(
    hidden: Float[Tensor, "P D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " P"]
) -> Float[Tensor, ""]:
    """The same in torch operations, from all P×V logits at once."""
    return cross_entropy_sum(F.linear(hidden, weight), targets)


def cross_entropy_sum(logits: Float[Tensor, "P V"], targets: Int[Tensor, " P"]) -> Float[Tensor, ""]:
    """The sum of `linear_cross_entropy`, from logits that the caller already has."""
    return F.cross_entropy(at_least_float32(logits), targets, ignore_index=IGNORE_INDEX, reduction="sum")


class _LinearCrossEntropy(torch.autograd.Function):
    """Head and loss together: gradients are formed chunk by chunk while the chunk's logits are at hand.

    The backward pass only scales what the forward pass has computed.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        wants_hidden, wants_weight, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        total = _sum_over_chunks(hidden, weight, targets, chunk, grad_hidden, grad_weight)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return (
            None if grad_hidden is None else grad_hidden * grad,
            None if grad_weight is None else grad_weight * grad,
            None,
            None,
        )


def _sum_over_chunks(
    hidden: Float[Tensor, "P D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " P"],
    chunk: int,
    grad_hidden: Float[Tensor, "P D"] | None = None,
    grad_weight: Float[Tensor, "V D"] | None = None,
) -> Float[Tensor, ""]:
    """The loss. Fills `grad_hidden` and adds to `grad_weight`, where they are given.

    One buffer serves all chunks, and few passes go over it: Σ exp divides the narrow factors of the products, not the
    wide one. In half precision the wide one is divided, because Σ exp may exceed what the type can hold.
    """
    dtype = compute_dtype(hidden)
    rows_of, head = hidden.to(dtype), weight.to(dtype)
    is_labelled = (targets != IGNORE_INDEX).unsqueeze(1)
    picked_of = targets.unsqueeze(1).where(is_labelled, 0)  # an ignored position picks token 0, and counts 0 times
    total = torch.zeros((), dtype=at_least_float32(head).dtype, device=hidden.device)
    is_wide = dtype == total.dtype
    buffer = head.new_empty(min(chunk, hidden.shape[0]), head.shape[0])
    for start in range(0, hidden.shape[0], chunk):
        part = slice(start, start + chunk)
        rows, picked, counts = rows_of[part], picked_of[part], is_labelled[part]
        scores = at_least_float32(torch.mm(rows, head.T, out=buffer[: rows.shape[0]]))
        of_target, peak = scores.gather(1, picked), scores.amax(dim=1, keepdim=True)
        exps = scores.sub_(peak).exp_()
        sums = exps.sum(dim=1, keepdim=True)
        total += ((peak + sums.log() - of_target) * counts).sum()
        if grad_hidden is None and grad_weight is None:
            continue
        # softmax − one-hot, times Σ exp
        grad, scale = exps.scatter_add_(1, picked, -sums), counts / sums
        if not is_wide:
            grad, scale = grad.mul_(scale).to(dtype), counts.to(dtype)
        if grad_hidden is not None:
            torch.mul(grad @ head, scale, out=grad_hidden[part])
        if grad_weight is not None:
            narrow = (rows * scale).to(weight.dtype)
            torch.addmm(grad_weight, grad.T.to(weight.dtype), narrow, out=grad_weight)
    return total


@torch.no_grad()
def linear_predict(
    hidden: Float[Tensor, "P D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " P"]
) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"]]:
    """−log p(target) (0 where ignored) and the most likely token of every position, chunk by chunk."""
    rows = chunk_rows(weight)
    is_labelled = targets != IGNORE_INDEX
    picked = targets.where(is_labelled, 0).unsqueeze(1)
    nll, best = [], []
    for start in range(0, hidden.shape[0], rows):
        scores = at_least_float32(F.linear(hidden[start : start + rows], weight))
        of_target, peak = scores.gather(1, picked[start : start + rows]), scores.amax(dim=1, keepdim=True)
        likeliest = top_k(scores, 1)  # faster than torch's argmax
        sums = scores.sub_(peak).exp_().sum(dim=1, keepdim=True)
        nll.append((peak + sums.log_() - of_target).squeeze(1))
        best.append(likeliest.squeeze(1))
    return torch.cat(nll).where(is_labelled, 0.0), torch.cat(best)
