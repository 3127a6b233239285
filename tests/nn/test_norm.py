from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from tests.ops.compare import compare_gradients
from trc2.nn.norm import RMSNorm, cosine
from trc2.ops import normalise
from trc2.reference.column import rms_norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_and_gradients_equal_the_reference(dtype: torch.dtype) -> None:
    norm = RMSNorm(6, 1e-6).to(dtype)
    torch.nn.init.normal_(norm.gain)
    x = torch.randn(4, 6, dtype=dtype, requires_grad=True)
    fast, slow = norm(x), torch.stack([rms_norm(row, norm.gain, 1e-6) for row in x])
    torch.testing.assert_close(fast, slow)
    compare_gradients(fast.square().sum(), slow.square().sum(), (x, norm.gain), atol=1e-5, rtol=1e-5)


def test_half_types_are_normalised_in_float32() -> None:
    x = torch.full((1, 4), 300.0, dtype=torch.float16)  # its square overflows float16
    torch.testing.assert_close(RMSNorm(4, 1e-6)(x), torch.ones(1, 4, dtype=torch.float16))


def test_the_cosine_is_the_product_of_unit_vectors() -> None:
    x, y = (torch.randn(5, 3, 4, dtype=torch.float64) for _ in range(2))
    x[0, 0] *= 1e-6  # here the ε outside the root matters
    x.requires_grad_()
    sizes = torch.linalg.vector_norm(y, dim=-1)
    units = [v / (v.square().sum(dim=-1, keepdim=True).sqrt() + 1e-6) for v in (x, y)]
    ours, expected = cosine(x, y, sizes), (units[0] * units[1]).sum(dim=-1)
    torch.testing.assert_close(ours, expected, atol=1e-14, rtol=1e-12)
    rng = torch.randn_like(ours)
    compare_gradients((ours * rng).sum(), (expected * rng).sum(), [x], atol=1e-9, rtol=1e-9)


def test_the_cosine_with_zero_is_zero_with_a_finite_gradient() -> None:
    x, y = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3)
    out = cosine(x, y, torch.linalg.vector_norm(y, dim=-1))
    out.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not out.any()


def test_shapes_in_signatures_are_checked_while_these_tests_run() -> None:
    with pytest.raises(TypeCheckError, match="rms_norm"):
        normalise.rms_norm(torch.ones(3, 4), torch.ones(5), 1e-5)
