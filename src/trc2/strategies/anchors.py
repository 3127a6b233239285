"""Strategies that tie weights to where they stood at the last task boundary."""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.strategies.base import Sequences, Strategy


class PullToBoundary(Strategy):
    """L2: λ/2 ‖θ − θ*‖², with θ* the weights at the end of the last task. Before that there is nothing to pull to."""

    def __init__(self, model: Backbone, strength: float) -> None:
        super().__init__(model)
        self.strength = strength

    @torch.no_grad()
    def correct_gradients(self, step: int) -> dict[str, float]:
        """∂/∂θ = λ w (θ − θ*), added straight to the gradient: no graph, no second backward pass."""
        if not self.tensors:
            return {}
        penalty = 0.0
        for name, parameter in self.learning().items():
            if parameter.grad is None or f"anchor.{name}" not in self.tensors:
                continue
            away = parameter - self.tensors[f"anchor.{name}"]
            pull = self.strength * self._weigh(name, away)
            penalty += 0.5 * float((pull * away).sum())
            parameter.grad += pull.to(parameter.grad.dtype)
        return {"strategy/penalty": penalty}

    def _weigh(self, name: str, away: Tensor) -> Tensor:
        return away

    def end_task(self, sequences: Sequences) -> None:
        for name, parameter in self.learning().items():
            self.tensors[f"anchor.{name}"] = parameter.detach().clone()


class ElasticWeights(PullToBoundary):
    """Online EWC: λ/2 Σ F̃ (θ − θ*)², F̃ ← γ F̃ + F, with one anchor whatever the number of tasks.

    F is the diagonal of the empirical Fisher information: the mean over sequences of the squared gradient of a
    sequence's summed −log p, divided by its tokens, so that λ does not depend on the sequence length.
    """

    def __init__(self, model: Backbone, strength: float, decay: float, sequences: int) -> None:
        super().__init__(model, strength)
        self.decay, self.sequences = decay, sequences

    def _weigh(self, name: str, away: Tensor) -> Tensor:
        return self.tensors[f"fisher.{name}"] * away

    def end_task(self, sequences: Sequences) -> None:
        fisher = self._fisher(sequences)
        for name, parameter in self.learning().items():
            nothing = torch.zeros_like(parameter.detach())
            earlier = self.tensors.get(f"fisher.{name}", nothing)
            self.tensors[f"fisher.{name}"] = self.decay * earlier + fisher.get(name, nothing)
        super().end_task(sequences)

    def _fisher(self, sequences: Sequences) -> dict[str, Tensor]:
        """One backward pass per sequence: squares of a batch's mean gradient would be far too small."""
        total: dict[str, Tensor] = {}
        rows = [(x[i : i + 1], y[i : i + 1]) for x, y in islice(sequences, self.sequences) for i in range(len(x))]
        rows = rows[: self.sequences]
        for x, y in rows:
            for name, gradient in self.language_gradients(x, y).items():
                # loss_lm is a mean over the row's tokens: times √tokens, its square is that of the sum over tokens.
                square = gradient.square() * y.numel() / len(rows)
                total[name] = square if name not in total else total[name] + square
        return total
