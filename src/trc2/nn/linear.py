"""Linear maps that leave out a pass over all tokens.

Modules of their own, so that hooks find them; adapters made for a plain `nn.Linear` do not fit their arguments.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class ScaledLinear(nn.Linear):
    """(x Wᵀ) ⊙ s: the scale meets the rows of the matrix where these are fewer than the tokens."""

    def forward(self, x: Float[Tensor, "*P I"], scale: Float[Tensor, " #O"]) -> Float[Tensor, "*P O"]:  # type: ignore[override]
        if x.numel() < self.weight.numel():
            return F.linear(x, self.weight) * scale
        return F.linear(x, self.weight * scale.unsqueeze(1))


class JoinedLinear(nn.Linear):
    """[x; y] Wᵀ + b as two products: nothing is joined, and a detached half gets no gradient computed."""

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "*P I"], y: Float[Tensor, "*P J"], bias: Float[Tensor, " O"]
    ) -> Float[Tensor, "*P O"]:
        for_x, for_y = self.weight.split((x.shape[-1], y.shape[-1]), dim=1)
        return F.linear(x, for_x) + F.linear(y, for_y) + bias  # added last: under autocast that widens the sum
