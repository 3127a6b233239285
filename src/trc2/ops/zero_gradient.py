"""Zero gradients for parameters whose path is inactive in this step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trc2.ops.modes import with_gradient


def anchor(x: Tensor, *parameters: Tensor) -> Tensor:
    """Return x unchanged, and let the parameters receive an exact zero gradient instead of None.

    An empty memory or a missing signal makes a path's derivative exactly zero. Computing the path to find that out
    costs matrix products. Leaving it out gives None, on which optimizers and DDP behave differently.
    """
    live = [parameter for parameter in parameters if parameter.requires_grad]
    return with_gradient(_Anchor.apply, _unchanged, x, *live) if live else x


def plain_anchor(x: Tensor, *parameters: Tensor) -> Tensor:
    """The same in torch operations: x + 0 · Σ parameters, which reads all of them."""
    return x + 0.0 * sum((parameter.sum() for parameter in parameters), x.new_zeros(()))


class _Anchor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return x.view_as(x)  # a tensor of its own for autograd, on the same memory

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad, *(torch.zeros_like(parameter) for parameter in ctx.saved_tensors)


def _unchanged(x: Tensor, *parameters: Tensor) -> Tensor:
    return x
