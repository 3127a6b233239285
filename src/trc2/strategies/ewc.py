"""Online elastic weight consolidation."""

from __future__ import annotations

from itertools import islice
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from trc2.config.section import Fraction, NonNegative, Size
from trc2.errors import UserError
from trc2.strategies.base import Sequences
from trc2.strategies.l2 import AnchorSettings, PullToBoundary


class Settings(AnchorSettings):
    name: Literal["ewc"] = "ewc"
    strength: NonNegative = Field(1000.0, description="λ: the penalty is λ/2 · F (θ − θ*)²")
    decay: Fraction = Field(0.9, description="γ: factor for the Fisher information of earlier tasks")
    fisher_sequences: Size = Field(32, description="sequences of a task that estimate its Fisher information")


class ElasticWeights(PullToBoundary):
    """Online EWC: λ/2 Σ F̃ (θ − θ*)², F̃ ← γ F̃ + F, with one anchor whatever the number of tasks.

    F is the diagonal of the empirical Fisher information: the mean over sequences of the squared gradient of a
    sequence's summed −log p, divided by its tokens, so that λ does not depend on the sequence length.
    """

    settings: Settings

    def _weigh(self, name: str, away: Tensor) -> Tensor:
        return self.tensors[f"fisher.{name}"] * away

    def start_from_saved_model(self) -> None:
        raise UserError(
            "strategy=ewc measures on old text which weights matter, and a saved model brings none: use l2 or lwf, "
            "which need only the weights."
        )

    def end_task(self, sequences: Sequences) -> None:
        fisher = self._fisher(sequences)
        for name, parameter in self.learning().items():
            nothing = torch.zeros_like(parameter.detach())
            earlier = self.tensors.get(f"fisher.{name}", nothing)
            self.tensors[f"fisher.{name}"] = self.settings.decay * earlier + fisher.get(name, nothing)
        super().end_task(sequences)

    def _fisher(self, sequences: Sequences) -> dict[str, Tensor]:
        """One backward pass per sequence: squares of a batch's mean gradient would be far too small."""
        total: dict[str, Tensor] = {}
        most = self.settings.fisher_sequences
        rows = [(x[i : i + 1], y[i : i + 1]) for x, y in islice(sequences, most) for i in range(len(x))][:most]
        for x, y in rows:
            for name, gradient in self.language_gradients(x, y).items():
                # loss_lm is a mean over the row's tokens: times √tokens, its square is that of the sum over tokens.
                square = gradient.square() * y.numel() / len(rows)
                total[name] = square if name not in total else total[name] + square
        return total


build = ElasticWeights
