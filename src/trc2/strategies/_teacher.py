"""A teacher: a copy of the model's trunk that follows the model or stays as it is, and is never trained."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from trc2.backbones.shell import Backbone
from trc2.config import BackboneConfig
from trc2.distributed.sharded import is_divided
from trc2.errors import UserError
from trc2.nn.segments import pack


def refuse_divided(model: Backbone) -> None:
    if any(is_divided(parameter) for parameter in model.parameters()):
        raise UserError(
            "output.parallel=fsdp divides the weights, and a strategy with a teacher needs them whole: set "
            "output.parallel=ddp."
        )


def check_teachable(model: BackboneConfig) -> None:
    """Refuse a model that trains other weights in every task, because a teacher copies the weights of one task."""
    if model.learns_other_weights_per_task:
        raise ValueError(
            f"model={model.name} trains other weights in every task, and a teacher copies those of one: choose another "
            "model, or a strategy without a teacher."
        )


class Teacher:
    """A copy of the model's trunk. Tensors that are not trained, such as the memory, are shared with the model."""

    def __init__(self, model: Backbone) -> None:
        refuse_divided(model)
        trunk = model.trunk
        fixed = [*trunk.buffers(), *(p for p in trunk.parameters() if not p.requires_grad)]
        self.trunk = copy.deepcopy(trunk, {id(tensor): tensor for tensor in fixed}).eval()
        self.trunk.recompute = False
        ours, copies = dict(trunk.named_parameters()), dict(self.trunk.named_parameters())
        self._pairs: dict[str, tuple[nn.Parameter, nn.Parameter]] = {}
        for name, parameter in ours.items():
            if parameter.requires_grad:
                copies[name].requires_grad_(False)
                self._pairs[name] = parameter, copies[name]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The teacher's weights by the trunk's names. Change them in place only."""
        return {name: theirs.data for name, (_, theirs) in self._pairs.items()}

    @torch.no_grad()
    def follow(self, step: float) -> None:
        """θ̄ ← θ̄ + step (θ − θ̄). A step of 1 copies the model."""
        for ours, theirs in self._pairs.values():
            theirs.lerp_(ours, step)

    @torch.no_grad()
    def pull(self, step: float) -> None:
        """θ ← θ + step (θ̄ − θ): the model moves towards the teacher."""
        for ours, theirs in self._pairs.values():
            ours.lerp_(theirs, step)

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Inside, the model has the teacher's weights. Do not use it between a forward and its backward pass."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for ours, theirs in self._pairs.values():
            ours.data, theirs.data = theirs.data, ours.data

    @torch.no_grad()
    def states(self, x: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "P D"]:
        return self.trunk(pack([x], valid), with_losses=False).hidden

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        for name, weights in self.tensors.items():
            weights.copy_(tensors[name])
