"""Rotation of queries and keys by the angles of their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from trc2.ops.modes import with_gradient


@dataclass(frozen=True)
class Rotation:
    """The angles of every packed token as two factors: [cos cos] and [−sin sin], each of the head's full width."""

    cos: Float[Tensor, "P 1 K"]
    sin: Float[Tensor, "P 1 K"]


def rotate(x: Float[Tensor, "P H K"], rotation: Rotation) -> Float[Tensor, "P H K"]:
    """Rotate the pairs (x_i, x_{i+K/2}) by their position's angle."""
    return with_gradient(_Rotate.apply, plain_rotate, x, rotation.cos.to(x.dtype), rotation.sin.to(x.dtype))


def plain_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x ⊙ [cos cos] + swap(x) ⊙ [−sin sin], where swap exchanges the halves."""
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin)


class _Rotate(torch.autograd.Function):
    """The gradient is rotated back by the same angles, in three passes over memory like the values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return plain_rotate(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return plain_rotate(grad, cos, -sin), None, None
