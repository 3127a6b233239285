"""Next-token loss without a (tokens × vocabulary) tensor that outlives a chunk."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from trc2.nn.precision import at_least_float32

IGNORE_INDEX = -100
CHUNK_ELEMENTS = 2**24  # logits alive at once


class _LinearCrossEntropy(torch.autograd.Function):
    """Head and loss together: gradients are formed chunk by chunk while the chunk's logits are at hand."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        total = torch.zeros((), dtype=at_least_float32(hidden).dtype, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if needs_grad else None
        grad_weight = torch.zeros_like(weight) if needs_grad else None
        for start in range(0, hidden.shape[0], chunk):
            rows, labels = hidden[start : start + chunk], targets[start : start + chunk]
            logits = F.linear(rows, weight)
            scores = at_least_float32(logits)
            is_labelled = labels != IGNORE_INDEX
            picked = labels.where(is_labelled, 0).unsqueeze(1)
            normaliser = scores.logsumexp(dim=1)
            total += ((normaliser - scores.gather(1, picked).squeeze(1)) * is_labelled).sum()
            if grad_hidden is not None and grad_weight is not None:
                grad = (scores - normaliser.unsqueeze(1)).exp_()
                grad.scatter_add_(1, picked, torch.full_like(picked, -1, dtype=grad.dtype))
                grad = grad.mul_(is_labelled.unsqueeze(1)).to(logits.dtype)
                grad_hidden[start : start + chunk] = grad @ weight.to(grad.dtype)
                grad_weight += grad.T @ rows.to(grad.dtype)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad, grad_weight * grad, None, None


def linear_cross_entropy(
    hidden: Float[Tensor, "P D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " P"],
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """Σ over labelled positions of −log softmax(hidden · weightᵀ)[target]; −100 is ignored.

    A sum, not a mean: who divides, and by how many labels, is decided over the whole optimizer step.
    """
    rows = max(1, CHUNK_ELEMENTS // weight.shape[0]) if chunk is None else chunk
    if not torch.is_grad_enabled():  # a custom function is told that gradients are needed even where none will be asked
        hidden, weight = hidden.detach(), weight.detach()
    return _LinearCrossEntropy.apply(hidden, weight, targets, rows)


@torch.no_grad()
def linear_predict(
    hidden: Float[Tensor, "P D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " P"]
) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"]]:
    """−log p(target) (0 where ignored) and the most likely token of every position, chunk by chunk."""
    rows = max(1, CHUNK_ELEMENTS // weight.shape[0])
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
