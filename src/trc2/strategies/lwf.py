"""Learning without forgetting: the predictions on new text stay close to those of the last task boundary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.config import BackboneConfig, StrategyConfig, TrainConfig
from trc2.config.section import NonNegative, Positive
from trc2.nn.head import divergence_sum
from trc2.nn.trunk import LearningPass, Loss
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.strategies._teacher import Teacher, check_teachable, refuse_divided
from trc2.strategies.base import Sequences, Strategy


class Settings(StrategyConfig):
    name: Literal["lwf"] = "lwf"
    strength: NonNegative = Field(1.0, description="λ: the penalty is λ τ² KL(model of the last boundary ‖ model)")
    temperature: Positive = Field(2.0, description="τ: softens both predictions")

    def check_run(self, model: BackboneConfig, train: TrainConfig) -> None:
        check_teachable(model)

    def forward_tokens(self, tokens: int, replayed: float) -> float:
        return float(tokens)  # from the second task on


class LearningWithoutForgetting(Strategy):
    """λ τ² KL(p* ‖ p), a mean over the new batch's labelled tokens. p* has the last boundary's weights.

    It needs no old text and costs one more forward pass. It does nothing before the first boundary.
    """

    settings: Settings

    def __init__(self, model: Backbone, settings: Settings) -> None:
        super().__init__(model, settings)
        refuse_divided(model)  # now instead of at the end of the first task
        self.teacher: Teacher | None = None

    def losses(self, seen: LearningPass) -> Sequence[Loss]:
        if self.teacher is None:
            return ()
        wanted = self.teacher.states(seen.x, seen.valid)
        rows = (seen.labels != IGNORE_INDEX).nonzero().squeeze(1)
        distance = divergence_sum(
            self.model.trunk.head, seen.hidden[rows], self.teacher.trunk.head, wanted[rows], self.settings.temperature
        )
        return (Loss("lwf", distance / max(1, len(rows)), self.settings.strength),)

    def start_from_saved_model(self) -> None:
        self._begin()  # as in its paper: the teacher is the saved model

    def end_task(self, sequences: Sequences) -> None:
        self._begin()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        if tensors:
            teacher = self._begin()
            teacher.restore({name.removeprefix("teacher."): tensor for name, tensor in tensors.items()})

    def _begin(self) -> Teacher:
        """Make a teacher with the current weights."""
        self.teacher = Teacher(self.model)
        self.tensors = {f"teacher.{name}": tensor for name, tensor in self.teacher.tensors.items()}
        return self.teacher


build = LearningWithoutForgetting
