"""What a strategy may do, and when."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.config import StrategyConfig

Sequences = Iterable[tuple[Tensor, Tensor]]  # (x, y) of shape (B, T)


class Strategy:
    """Does nothing. Subclasses correct gradients within a step and learn something at the end of a task.

    `tensors` is all their state: it is saved in every checkpoint and put back on resume.
    """

    def __init__(self, model: Backbone, settings: StrategyConfig) -> None:
        self.model = model
        self.tensors: dict[str, Tensor] = {}

    def correct_gradients(self, step: int) -> dict[str, float]:
        """Called once per step with the accumulated, unscaled gradients, before clipping; returns metrics."""
        return {}

    def end_task(self, sequences: Sequences) -> None:
        """Called at a task's end with some of its training sequences."""

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put back what a checkpoint held."""
        device = self.model.get_input_embeddings().weight.device
        self.tensors = {name: tensor.to(device) for name, tensor in tensors.items()}

    def learning(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are being trained, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def language_gradients(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """∂L_LM/∂θ on a batch, in evaluation mode: nothing is staged, queued or left behind."""
        parameters = self.learning()
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.enable_grad():
                _, aux = self.model(x, y, return_logits=False)
                found = torch.autograd.grad(aux["loss_lm"], list(parameters.values()), allow_unused=True)
        finally:
            self.model.train(was_training)
        return {name: g for name, g in zip(parameters, found, strict=True) if g is not None}
