"""Root-mean-square normalisation and unit vectors."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trc2.ops.islands import at_least_float32


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + ε) ⊙ gain, in float32 or better."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P D"]:
        wide = at_least_float32(x)
        if not torch.is_grad_enabled():
            return F.rms_norm(wide, self.gain.shape, self.gain.to(wide.dtype), self.eps).to(x.dtype)
        return _RMSNorm.apply(wide, self.gain.to(wide.dtype), self.eps).to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    """y = r x ⊙ g with r = (mean(x²) + ε)^(−½); about half the passes over memory of torch's own gradient.

    ∂x = r (∂y ⊙ g) − r³/D ⟨∂y ⊙ x, g⟩ x;  ∂g = Σ r (∂y ⊙ x)
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        scale = (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt_()
        ctx.save_for_backward(x, gain, scale)
        return (x * scale).mul_(gain)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain, scale = ctx.saved_tensors
        product = grad * x
        for_gain = torch.mv(product.reshape(-1, x.shape[-1]).T, scale.flatten())
        shared = (product @ gain).unsqueeze(-1).mul_(scale.pow(3)).div_(-x.shape[-1])
        for_x = torch.mul(grad, gain, out=product).mul_(scale).addcmul_(x, shared)
        return for_x, for_gain, None


def cosine(
    x: Float[Tensor, "*P D"], y: Float[Tensor, "*P D"], size_of_y: Float[Tensor, "*P"], eps: float = 1e-6
) -> Float[Tensor, "*P"]:
    """⟨x / (‖x‖ + ε), y / (‖y‖ + ε)⟩: the ε stands outside the root, as in the paper; ‖y‖ is known already."""
    size = torch.linalg.vector_norm(x, dim=-1)
    return (x * y).sum(dim=-1) / ((size + eps) * (size_of_y + eps))
