"""Weight initialisation with an explicit source of chance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trc2.nn.attention import CausalAttention
from trc2.nn.experts import SwiGLU

STD = 0.02


def normal_(tensor: Tensor, std: float, generator: torch.Generator | None = None) -> None:
    with torch.no_grad():
        tensor.normal_(0.0, std, generator=generator)


def init_weights(root: nn.Module, num_layers: int, generator: torch.Generator | None = None) -> None:
    """Matrices get std 0.02; those that write into the residual stream get it divided by sqrt(2L).

    Vectors and scalars keep what their module gave them: gains 1, biases and gates 0.
    """
    for parameter in root.parameters():
        if parameter.ndim >= 2:
            normal_(parameter, STD, generator)
    for module in root.modules():
        if isinstance(module, CausalAttention):
            normal_(module.output.weight, STD / math.sqrt(2 * num_layers), generator)
        elif isinstance(module, SwiGLU):
            normal_(module.down.weight, STD / math.sqrt(2 * num_layers), generator)
