"""Addition to the leading rows and columns of a matrix."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from trc2.ops.modes import with_gradient


def add_to_leading(x: Float[Tensor, "P C"], y: Float[Tensor, "Q D"]) -> Float[Tensor, "P C"]:
    """x + y where y covers only the first Q ≤ P rows and D ≤ C columns."""
    return with_gradient(_AddToLeading.apply, plain_add_to_leading, x, y)


def plain_add_to_leading(x: Float[Tensor, "P C"], y: Float[Tensor, "Q D"]) -> Float[Tensor, "P C"]:
    """The same in torch operations. A copy of x, because a hook on the map that made x may still look at it."""
    total = x.clone()
    total[: y.shape[0], : y.shape[1]] += y
    return total


class _AddToLeading(torch.autograd.Function):
    """The gradient of y is a view of the gradient of the sum: nothing is padded, copied or filled with zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.rows, ctx.columns = y.shape
        return plain_add_to_leading(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad[: ctx.rows, : ctx.columns]
