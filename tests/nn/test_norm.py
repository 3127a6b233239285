from __future__ import annotations

import pytest
import torch

from trc2.nn.norm import RMSNorm, unit
from trc2.reference.column import rms_norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_and_gradients_equal_the_reference(dtype: torch.dtype) -> None:
    norm = RMSNorm(6, 1e-6).to(dtype)
    torch.nn.init.normal_(norm.gain)
    x = torch.randn(4, 6, dtype=dtype, requires_grad=True)
    fast, slow = norm(x), torch.stack([rms_norm(row, norm.gain, 1e-6) for row in x])
    torch.testing.assert_close(fast, slow)
    for a, b in zip(
        torch.autograd.grad(fast.square().sum(), (x, norm.gain)),
        torch.autograd.grad(slow.square().sum(), (x, norm.gain)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_half_types_are_normalised_in_float32() -> None:
    x = torch.full((1, 4), 300.0, dtype=torch.float16)  # its square overflows float16
    torch.testing.assert_close(RMSNorm(4, 1e-6)(x), torch.ones(1, 4, dtype=torch.float16))


def test_unit_of_zero_is_zero_with_a_finite_gradient() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    unit(x).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not unit(x).any()
