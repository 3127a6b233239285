"""Next-token loss without a (tokens × vocabulary) tensor that outlives a chunk."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from trc2.nn.precision import at_least_float32

IGNORE_INDEX = -100
# Logits alive at once. On a CPU a chunk should stay in its cache while softmax and gradient pass over it several times.
CHUNK_ELEMENTS = {"cpu": 2**20}
LARGE_CHUNK = 2**24


def chunk_rows(weight: Tensor) -> int:
    """How many rows of logits are formed at a time."""
    return max(1, CHUNK_ELEMENTS.get(weight.device.type, LARGE_CHUNK) // weight.shape[0])


class _LinearCrossEntropy(torch.autograd.Function):
    """Head and loss together: gradients are formed chunk by chunk while the chunk's logits are at hand."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        wants_hidden, wants_weight, *_ = ctx.needs_input_grad
        total = torch.zeros((), dtype=at_least_float32(hidden).dtype, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        for start in range(0, hidden.shape[0], chunk):
            rows, labels = hidden[start : start + chunk], targets[start : start + chunk]
            logits = F.linear(rows, weight)
            scores = at_least_float32(logits)
            is_labelled = labels != IGNORE_INDEX
            picked = labels.where(is_labelled, 0).unsqueeze(1)
            probabilities = scores.softmax(dim=1)
            # log Σ exp(s) from the softmax at hand: its largest entry is 1 / Σ exp(s − max s).
            normaliser = scores.amax(dim=1) - probabilities.amax(dim=1).log()
            total += ((normaliser - scores.gather(1, picked).squeeze(1)) * is_labelled).sum()
            grad = probabilities.scatter_add_(1, picked, torch.full_like(picked, -1, dtype=scores.dtype))
            grad = grad.mul_(is_labelled.unsqueeze(1)).to(logits.dtype)
            if grad_hidden is not None:
                grad_hidden[start : start + chunk] = grad @ weight.to(grad.dtype)
            if grad_weight is not None:
                torch.addmm(grad_weight, grad.T, rows.to(grad.dtype), out=grad_weight)
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


def linear_cross_entropy(
    hidden: Float[Tensor, "P D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " P"],
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """Σ over labelled positions of −log softmax(hidden · weightᵀ)[target]; −100 is ignored.

    A sum, not a mean: who divides, and by how many labels, is decided over the whole optimizer step.
    """
    rows = chunk_rows(weight) if chunk is None else chunk
    if not torch.is_grad_enabled():  # a custom function is told that gradients are needed even where none will be asked
        hidden, weight = hidden.detach(), weight.detach()
    return _LinearCrossEntropy.apply(hidden, weight, targets, rows)


@torch.no_grad()
def linear_predict(
    hidden: Float[Tensor, "P D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " P"]
) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"]]:
    """−log p(target) (0 where ignored) and the most likely token of every position, chunk by chunk."""
    rows = chunk_rows(weight)
    nll, best = [], []
    for start in range(0, hidden.shape[0], rows):
        scores = at_least_float32(F.linear(hidden[start : start + rows], weight))
        labels = targets[start : start + rows]
        nll.append(F.cross_entropy(scores, labels, ignore_index=IGNORE_INDEX, reduction="none"))
        best.append(scores.argmax(dim=1))
    return torch.cat(nll), torch.cat(best)


def cross_entropy_sum(logits: Float[Tensor, "P V"], targets: Int[Tensor, " P"]) -> Float[Tensor, ""]:
    """The same sum from logits that exist anyway."""
    return F.cross_entropy(at_least_float32(logits), targets, ignore_index=IGNORE_INDEX, reduction="sum")
