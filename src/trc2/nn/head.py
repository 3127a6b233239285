"""From states to next-token scores and losses, without a (tokens × vocabulary) tensor that outlives a chunk."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trc2.ops.head_loss import (
    IGNORE_INDEX,
    chunk_rows,
    cross_entropy_sum,
    linear_cross_entropy,
    linear_predict,
)
from trc2.ops.modes import at_least_float32


class Head:
    """logits = states · weightᵀ: the head of most models, often the same tensor as the embedding."""

    def __init__(self, weight: Float[Tensor, "V D"]) -> None:
        self.weight = weight

    def logits(self, hidden: Float[Tensor, "*P D"]) -> Float[Tensor, "*P V"]:
        return F.linear(hidden, self.weight)

    def loss_sum(self, hidden: Float[Tensor, "P D"], targets: Int[Tensor, " P"]) -> Float[Tensor, ""]:
        """Σ −log p(target) over labelled positions."""
        return linear_cross_entropy(hidden, self.weight, targets)

    def predict(
        self, hidden: Float[Tensor, "P D"], targets: Int[Tensor, " P"]
    ) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"]]:
        """−log p(target), 0 where ignored, and the likeliest token of every position."""
        return linear_predict(hidden, self.weight, targets)


class AnyHead(Head):
    """Logits by any function of the states: with a bias, scaled, capped. Chunks are run again in the backward pass."""

    def __init__(self, weight: Float[Tensor, "V D"], function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(weight)
        self.function = function

    def logits(self, hidden: Float[Tensor, "*P D"]) -> Float[Tensor, "*P V"]:
        return self.function(hidden)

    def loss_sum(self, hidden: Float[Tensor, "P D"], targets: Int[Tensor, " P"]) -> Float[Tensor, ""]:
        rows = chunk_rows(self.weight)
        parts = [
            checkpoint(self._chunk_loss, part, labels, use_reentrant=False)
            for part, labels in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        return torch.stack(parts).sum()

    def _chunk_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy_sum(self.function(hidden), targets)

    @torch.no_grad()
    def predict(
        self, hidden: Float[Tensor, "P D"], targets: Int[Tensor, " P"]
    ) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"]]:
        rows = chunk_rows(self.weight)
        nll, best = [], []
        for part, labels in zip(hidden.split(rows), targets.split(rows), strict=True):
            scores = at_least_float32(self.function(part))
            nll.append(F.cross_entropy(scores, labels, ignore_index=IGNORE_INDEX, reduction="none"))
            best.append(scores.argmax(dim=1))
        return torch.cat(nll), torch.cat(best)


def divergence_sum(
    head: Head,
    hidden: Float[Tensor, "P D"],
    teacher_head: Head,
    teacher_hidden: Float[Tensor, "P D"],
    temperature: float = 1.0,
) -> Float[Tensor, ""]:
    """Σ over positions of τ² KL(teacher ‖ student), both softened by τ. Gradients reach the student only.

    τ² keeps the size of the gradient as τ changes. Each chunk of logits is computed again in the backward pass,
    unless there is only one.
    """

    def of_chunk(states: Tensor, teacher_states: Tensor) -> Tensor:
        with torch.no_grad():
            target = F.log_softmax(at_least_float32(teacher_head.logits(teacher_states)) / temperature, dim=-1)
        scores = F.log_softmax(at_least_float32(head.logits(states)) / temperature, dim=-1)
        return temperature**2 * F.kl_div(scores, target, reduction="sum", log_target=True)

    rows = chunk_rows(head.weight)
    if hidden.shape[0] <= rows:
        return of_chunk(hidden, teacher_hidden)
    pairs = zip(hidden.split(rows), teacher_hidden.split(rows), strict=True)
    return torch.stack([checkpoint(of_chunk, *pair, use_reentrant=False) for pair in pairs]).sum()
