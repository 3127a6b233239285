"""From states to next-token scores, and to losses that never hold a (tokens × vocabulary) tensor for long."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trc2.ops.dtypes import at_least_float32
from trc2.ops.head_loss import (
    IGNORE_INDEX,
    chunk_rows,
    cross_entropy_sum,
    linear_cross_entropy,
    linear_predict,
)


class Head:
    """logits = states · weightᵀ, the head of most models, often one tensor with the embedding."""

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
