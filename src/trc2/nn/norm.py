"""Root-mean-square normalisation and unit vectors."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.nn.precision import at_least_float32


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + ε) ⊙ gain, in float32 or better."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P D"]:
        wide = at_least_float32(x)
        return F.rms_norm(wide, self.gain.shape, self.gain.to(wide.dtype), self.eps).to(x.dtype)


def unit(x: Float[Tensor, "*P D"], eps: float = 1e-6) -> Float[Tensor, "*P D"]:
    """x / (‖x‖ + ε): the ε stands outside the root, as in the paper."""
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + eps)
