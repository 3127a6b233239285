"""Held-out loss and the metrics that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Tally:
    """Sums over labelled positions. Tallies of parts add up to the tally of the whole."""

    nll: float = 0.0
    tokens: int = 0
    correct: int = 0
    sequences: int = 0
    exact: int = 0

    def __add__(self, other: Tally) -> Tally:
        return type(self)(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def metrics(self, bytes_per_token: float) -> dict[str, float]:
        """loss and perplexity per token, bits per byte, teacher-forced accuracy and sequence exact match."""
        loss = self.nll / max(1, self.tokens)
        return {
            "loss": loss,
            "perplexity": perplexity(loss),
            "bits_per_byte": loss / math.log(2) / bytes_per_token if bytes_per_token > 0 else math.nan,
            "token_accuracy": self.correct / max(1, self.tokens),
            "exact_match": self.exact / max(1, self.sequences),
        }


def perplexity(loss: float) -> float:
    """exp(loss), or infinity if that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
