"""Root-mean-square normalisation."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trc2.ops.modes import at_least_float32, with_gradient


def rms_norm(x: Float[Tensor, "*P D"], gain: Float[Tensor, " D"], eps: float) -> Float[Tensor, "*P D"]:
    """x / sqrt(mean(x²) + ε) ⊙ gain, computed in float32 or better."""
    wide = at_least_float32(x)
    return with_gradient(_RMSNorm.apply, plain_rms_norm, wide, gain.to(wide.dtype), eps).to(x.dtype)


def plain_rms_norm(x: Float[Tensor, "*P D"], gain: Float[Tensor, " D"], eps: float) -> Float[Tensor, "*P D"]:
    """The same in torch operations."""
    return F.rms_norm(x, gain.shape, gain, eps)


class _RMSNorm(torch.autograd.Function):
    """y = r x ⊙ g with r = (mean(x²) + ε)^(−½). About half the passes over memory of torch's own gradient.

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
        # Sums over tokens, then over channels, are products of a matrix and a vector: one pass over memory each.
        for_gain = torch.mv(product.reshape(-1, x.shape[-1]).T, scale.flatten())
        shared = (product @ gain).unsqueeze(-1).mul_(scale.pow(3)).div_(-x.shape[-1])
        for_x = torch.mul(grad, gain, out=product).mul_(scale).addcmul_(x, shared)  # ∂y ⊙ x is not needed any more
        return for_x, for_gain, None
