"""The interface of a strategy: what it may do, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.config import StrategyConfig
from trc2.nn.trunk import LearningPass, Loss

Sequences = Iterable[tuple[Tensor, Tensor]]  # (x, y) of shape (B, T)
Gradients = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor | None]]


class Strategy:
    """Does nothing. Subclasses add losses, correct gradients, or learn something after a step or at the end of a task.

    `tensors` is their whole state, which every checkpoint saves. If weights are divided over ranks, the tensor
    WORD.NAME is divided as the model's tensor NAME is. All ranks do the same.
    """

    def __init__(self, model: Backbone, settings: StrategyConfig) -> None:
        self.model, self.settings = model, settings
        self.tensors: dict[str, Tensor] = {}
        self.gradients_of: Gradients = plain_gradients

    def losses(self, seen: LearningPass) -> Sequence[Loss]:
        """Called in every training forward: losses to add, each reported as `train/loss_NAME`.

        All micro-batches of a step must return the same names, if only with 0.
        """
        return ()

    def correct_gradients(self, step: int) -> dict[str, float]:
        """Called once per step with the accumulated, unscaled gradients, before clipping. Returns metrics."""
        return {}

    def after_step(self) -> None:
        """Called after every `optimizer.step()`, with the new weights in place."""

    def skip_step(self) -> None:
        """Called instead of `after_step` when a step failed: forget what it left."""

    def evaluation_weights(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights for evaluation and export, outside those of training."""
        return nullcontext()

    def apply_evaluation_weights(self) -> None:
        """Give the model its `evaluation_weights` for good, for scoring or export after training."""

    def start_from_saved_model(self) -> None:
        """Called before the first step of a run that starts from a saved model."""

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
        """∂L_LM/∂θ on a batch, in evaluation mode and without side effects."""
        parameters = self.learning()
        was_training, waiting = self.model.training, list(self.model.pending)
        self.model.eval()
        try:
            with torch.enable_grad():
                _, aux = self.model(x, y, return_logits=False)
                gradients = self.gradients_of(aux["loss_lm"], list(parameters.values()))
        finally:
            self.model.train(was_training)
            self.model.pending.extend(waiting)  # an evaluation clears the queue
        return {name: g for name, g in zip(parameters, gradients, strict=True) if g is not None}


def plain_gradients(loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """∂loss/∂θ. None for parameters without influence on the loss."""
    return torch.autograd.grad(loss, parameters, allow_unused=True)
