"""Products of a gate and the values that it gates."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trc2.ops.modes import with_gradient
from trc2.ops.selection import top_k_mask


def gated_product(gate_up: Float[Tensor, "*P _F2"]) -> Float[Tensor, "*P _F"]:
    """SiLU(g) ⊙ v of the two halves [g v] of the last dimension."""
    return with_gradient(_GatedProduct.apply, plain_gated_product, gate_up)


def plain_gated_product(gate_up: Float[Tensor, "*P _F2"]) -> Float[Tensor, "*P _F"]:
    """The same in torch operations."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class _GatedProduct(torch.autograd.Function):
    """The gradient is written into one buffer, half by half: autograd would form the halves and then join them."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        ctx.save_for_backward(gate_up, sigmoid, silu)
        return silu * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        gate_up, sigmoid, silu = ctx.saved_tensors
        _, up = gate_up.chunk(2, dim=-1)
        both = torch.empty_like(gate_up)
        for_gate, for_up = both.chunk(2, dim=-1)
        slope = torch.lerp(silu, silu.new_ones(()), sigmoid)  # SiLU′ = SiLU + σ (1 − SiLU)
        torch.mul(slope.mul_(up), grad, out=for_gate)
        torch.mul(silu, grad, out=for_up)
        return both


def sparse_gate(drive: Float[Tensor, "P D"], content: Float[Tensor, "P D"], num_kept: int) -> Float[Tensor, "P D"]:
    """G ⊙ content, where G is σ(drive) at the `num_kept` largest channels of each row and 0 elsewhere."""
    return with_gradient(_SparseGate.apply, _gate_in_place, drive, content, num_kept)


def plain_sparse_gate(
    drive: Float[Tensor, "P D"], content: Float[Tensor, "P D"], num_kept: int
) -> Float[Tensor, "P D"]:
    """The same in torch operations. Which channels are kept carries no gradient."""
    gate = torch.sigmoid(drive)
    return gate * top_k_mask(gate.detach(), num_kept) * content


class _SparseGate(torch.autograd.Function):
    """σ′ = G (1 − G) is 0 where G is, so that the gradient needs G but not the mask again."""

    @staticmethod
    def forward(ctx: Any, drive: Tensor, content: Tensor, num_kept: int) -> Tensor:
        gate = _largest(drive, num_kept)
        ctx.save_for_backward(gate, content)
        return gate * content

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, content = ctx.saved_tensors
        return torch.ops.aten.sigmoid_backward(grad * content, gate), grad * gate, None


def _gate_in_place(drive: Tensor, content: Tensor, num_kept: int) -> Tensor:
    """Without gradients the gate's own memory holds the product: one tensor instead of three."""
    return _largest(drive, num_kept).mul_(content)


def _largest(drive: Float[Tensor, "P D"], num_kept: int) -> Float[Tensor, "P D"]:
    """G: σ(drive) at the largest channels of each row, 0 elsewhere."""
    gate = torch.sigmoid(drive)
    return gate if num_kept >= gate.shape[-1] else gate.mul_(top_k_mask(gate, num_kept))
