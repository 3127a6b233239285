"""Root-mean-square normalisation and unit vectors."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trc2.ops.normalise import rms_norm


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + ε) ⊙ gain, in float32 or better."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P D"]:
        return rms_norm(x, self.gain, self.eps)


def cosine(
    x: Float[Tensor, "*P D"], y: Float[Tensor, "*P D"], size_of_y: Float[Tensor, "*P"], eps: float = 1e-6
) -> Float[Tensor, "*P"]:
    """⟨x / (‖x‖ + ε), y / (‖y‖ + ε)⟩: the ε stands outside the root, as in the paper. `size_of_y` is ‖y‖."""
    size = torch.linalg.vector_norm(x, dim=-1)
    return (x * y).sum(dim=-1) / ((size + eps) * (size_of_y + eps))
