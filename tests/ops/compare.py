"""The comparison of a function that has a gradient of its own with its plain twin."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def leaf(*shape: int) -> Tensor:
    """Random numbers in float64 that ask for a gradient."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def compare(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Values in both gradient modes, and the gradient of every input against autograd's of the plain twin."""
    value, expected = ours(*inputs), plain(*inputs)
    torch.testing.assert_close(value, expected, atol=1e-13, rtol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(ours(*inputs), expected, atol=1e-13, rtol=1e-12)
    from_above = torch.randn_like(value)
    for a, b in zip(
        torch.autograd.grad(value, inputs, from_above), torch.autograd.grad(expected, inputs, from_above), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-11)
