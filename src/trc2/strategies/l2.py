"""L2: a penalty on the distance of the weights from those at the last task boundary."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from trc2.config import StrategyConfig
from trc2.config.section import NonNegative
from trc2.distributed.sharded import number
from trc2.strategies.base import Sequences, Strategy


class AnchorSettings(StrategyConfig):
    """Settings of any strategy with such a penalty."""

    strength: NonNegative


class Settings(AnchorSettings):
    name: Literal["l2"] = "l2"
    strength: NonNegative = Field(0.01, description="λ: the penalty is λ/2 · (θ − θ*)²")


class PullToBoundary(Strategy):
    """L2: λ/2 ‖θ − θ*‖², with θ* the weights at the end of the last task. It does nothing during the first task."""

    settings: AnchorSettings

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
            pull = self.settings.strength * self._weigh(name, away)
            penalty += 0.5 * number((pull * away).sum())
            parameter.grad += pull.to(parameter.grad.dtype)
        return {"strategy/penalty": penalty}

    def _weigh(self, name: str, away: Tensor) -> Tensor:
        return away

    def start_from_saved_model(self) -> None:
        self.end_task(())  # keep what the saved model knows

    def end_task(self, sequences: Sequences) -> None:
        for name, parameter in self.learning().items():
            self.tensors[f"anchor.{name}"] = parameter.detach().clone()


build = PullToBoundary
