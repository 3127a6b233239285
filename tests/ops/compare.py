"""The comparison of a function that has a gradient of its own with its plain version."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def leaf(*shape: int) -> Tensor:
    """Random numbers in float64 that ask for a gradient."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def compare(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Values in both gradient modes, and the gradient of every input against autograd's of the plain version."""
    value, expected = ours(*inputs), plain(*inputs)
    torch.testing.assert_close(value, expected, atol=1e-13, rtol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(ours(*inputs), expected, atol=1e-13, rtol=1e-12)
    from_above = torch.randn_like(value)
    compare_gradients((value * from_above).sum(), (expected * from_above).sum(), inputs, atol=1e-12, rtol=1e-11)


def compare_gradients(ours: Tensor, expected: Tensor, inputs: Sequence[Tensor], *, atol: float, rtol: float) -> None:
    """Of two numbers, by every input. An input that a number does not depend on has a gradient of 0."""
    fast, slow = (torch.autograd.grad(number, inputs, materialize_grads=True) for number in (ours, expected))
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=rtol)
