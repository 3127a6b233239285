from __future__ import annotations

import pytest
import torch

from tests.ops.compare import compare, leaf
from trc2.ops.gates import gated_product, plain_gated_product, plain_sparse_gate, sparse_gate


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (63,), (3, 5)])
def test_values_and_gradients_equal_the_plain_gated_product(shape: tuple[int, ...]) -> None:
    compare(gated_product, plain_gated_product, leaf(*shape, 10))


@pytest.mark.parametrize("tokens", [1, 7, 63])
@pytest.mark.parametrize("num_kept", [1, 3, 8])
def test_values_and_gradients_equal_the_plain_sparse_gate(tokens: int, num_kept: int) -> None:
    compare(
        lambda drive, content: sparse_gate(drive, content, num_kept),
        lambda drive, content: plain_sparse_gate(drive, content, num_kept),
        leaf(tokens, 8),
        leaf(tokens, 8),
    )


@pytest.mark.parametrize("learns", [True, False])
def test_a_sparse_gate_passes_as_many_channels_as_it_may_and_no_gradient_through_the_others(learns: bool) -> None:
    drive, content = leaf(5, 8), leaf(5, 8)
    copies = drive.detach().clone(), content.detach().clone()
    with torch.set_grad_enabled(learns):
        passed = sparse_gate(drive, content, 3)
    assert ((passed != 0).sum(dim=1) == 3).all()
    assert torch.equal(drive, copies[0])
    assert torch.equal(content, copies[1])
    if learns:
        for grad in torch.autograd.grad(passed.sum(), (drive, content)):
            assert torch.equal(grad != 0, passed != 0)
