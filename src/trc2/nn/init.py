"""Weight initialisation with an explicit generator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

STD = 0.02


class ResidualBranch(nn.Module):
    """A module whose output is added to the residual stream and whose weights `init_weights` draws."""

    def residual_outputs(self) -> Sequence[nn.Linear]:
        """Its last maps: their weights are drawn smaller, because the outputs of all L layers add up."""
        raise NotImplementedError


def normal_(tensor: Tensor, std: float, generator: torch.Generator | None = None) -> None:
    with torch.no_grad():
        tensor.normal_(0.0, std, generator=generator)


def init_weights(root: nn.Module, num_layers: int, generator: torch.Generator | None = None) -> None:
    """Matrices get std 0.02. The `residual_outputs` of every `ResidualBranch` get it divided by sqrt(2L).

    Vectors and scalars keep the values of their module: gains 1, biases and gates 0.
    """
    for parameter in root.parameters():
        if parameter.ndim >= 2:
            normal_(parameter, STD, generator)
    for module in root.modules():
        if isinstance(module, ResidualBranch):
            for output in module.residual_outputs():
                normal_(output.weight, STD / math.sqrt(2 * num_layers), generator)
