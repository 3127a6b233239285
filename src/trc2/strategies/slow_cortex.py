"""Slow cortex: a running average of the weights, as a teacher on replayed text, an anchor, and the served model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.config import BackboneConfig, StrategyConfig, TrainConfig, TRC2Config
from trc2.config.section import Decay, Fraction, NonNegative
from trc2.nn.head import divergence_sum
from trc2.nn.trunk import LearningPass, Loss
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.strategies._teacher import Teacher, check_teachable
from trc2.strategies.base import Strategy


class Settings(StrategyConfig):
    name: Literal["slow_cortex"] = "slow_cortex"
    decay: Decay = Field(0.98, description="decay of the average per step. The decay is smaller in the first steps.")
    distil: NonNegative = Field(
        1.0, description="weight of KL(average ‖ model) on replayed chunks, relative to the weight of their own loss"
    )
    serve: bool = Field(False, description="whether the average is evaluated, exported and served instead of the model")
    pull_every: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        0, description="steps between two pulls of the model towards the average. 0 turns pulls off."
    )
    pull: Fraction = Field(
        0.5, description="how far a pull moves the model towards the average. 1 replaces the model by the average."
    )

    def check_run(self, model: BackboneConfig, train: TrainConfig) -> None:
        check_teachable(model)
        if self.distil > 0.0 and not model.replay:
            raise ValueError(
                f"strategy.distil={self.distil} teaches on replayed chunks, and model.replay is false: set "
                "model.replay=true, or strategy.distil=0."
            )
        if self.distil > 0.0 and isinstance(model, TRC2Config) and model.replay_path != "full":
            raise ValueError(
                f"strategy.distil={self.distil} compares the model with an average that reads replayed text with all "
                f"feedback, and model.replay_path={model.replay_path} replays it without: set model.replay_path=full, "
                "or strategy.distil=0."
            )

    def forward_tokens(self, tokens: int, replayed: float) -> float:
        return replayed if self.distil > 0.0 else 0.0

    @property
    def has_evaluation_weights(self) -> bool:
        return self.serve


class SlowCortex(Strategy):
    """θ̄ ← d_t θ̄ + (1 − d_t) θ after every step, with d_t = min(decay, (1 + t) / (10 + t)).

    d_t grows with the age t of the average, as in TensorFlow's EMA, so that the random start has little weight.
    """

    settings: Settings

    def __init__(self, model: Backbone, settings: Settings) -> None:
        super().__init__(model, settings)
        self.teacher = Teacher(model)
        self.age = torch.zeros((), dtype=torch.int64)
        self.tensors = {f"average.{name}": tensor for name, tensor in self.teacher.tensors.items()} | {"age": self.age}

    def losses(self, seen: LearningPass) -> Sequence[Loss]:
        if self.settings.distil == 0.0:
            return ()
        hidden, labels = seen.replayed_hidden, seen.replayed_labels
        if seen.replayed is None or hidden is None or labels is None:  # with a share, some micro-batches replay nothing
            return (Loss("distil", seen.hidden.new_zeros(()), 0.0),)
        wanted = self.teacher.states(seen.replayed[:, :-1].to(seen.x.device))
        is_label = labels != IGNORE_INDEX
        if not bool(is_label.all()):
            hidden, wanted = hidden[is_label], wanted[is_label]
        distance = divergence_sum(self.model.trunk.head, hidden, self.teacher.trunk.head, wanted)
        return (Loss("distil", distance / max(1, len(hidden)), self.settings.distil * seen.replay_weight),)

    def after_step(self) -> None:
        self.age += 1
        age = int(self.age)
        self.teacher.follow(1.0 - min(self.settings.decay, (1 + age) / (10 + age)))
        if self.settings.pull_every and age % self.settings.pull_every == 0:
            self.teacher.pull(self.settings.pull)

    def evaluation_weights(self) -> AbstractContextManager[None]:
        return self.teacher.in_charge() if self.settings.serve else nullcontext()

    def apply_evaluation_weights(self) -> None:
        if self.settings.serve:
            self.teacher.pull(1.0)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.age.copy_(tensors["age"])
        self.teacher.restore({name.removeprefix("average."): t for name, t in tensors.items() if name != "age"})


build = SlowCortex
