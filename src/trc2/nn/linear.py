"""Linear maps that are deliberately not an `nn.Linear`.

Adapters such as those of peft ("all-linear") replace every `nn.Linear`. They do not fit maps with further arguments,
nor maps that must not change, nor maps that have slow copies.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class PlainLinear(nn.Module):
    """x Wᵀ, drawn like an `nn.Linear`."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Float[Tensor, "*P I"]) -> Float[Tensor, "*P O"]:
        return F.linear(x, self.weight)


class ScaledLinear(PlainLinear):
    """(x Wᵀ) ⊙ s: the scale multiplies the matrix instead of the outputs where that is less work."""

    def forward(self, x: Float[Tensor, "*P I"], scale: Float[Tensor, " #O"]) -> Float[Tensor, "*P O"]:  # type: ignore[override]
        # A compiled graph is for any number of rows, so it must not choose by that number.
        if torch.compiler.is_compiling() or x.numel() < self.weight.numel():
            return F.linear(x, self.weight) * scale
        return F.linear(x, self.weight * scale.unsqueeze(1))


class JoinedLinear(PlainLinear):
    """[x; y] Wᵀ + b as two products: x and y are not joined, and no gradient is computed for a detached half."""

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "*P I"], y: Float[Tensor, "*P J"], bias: Float[Tensor, " O"]
    ) -> Float[Tensor, "*P O"]:
        for_x, for_y = self.weight.split((x.shape[-1], y.shape[-1]), dim=1)
        return F.linear(x, for_x) + F.linear(y, for_y) + bias  # added last: under autocast that widens the sum
