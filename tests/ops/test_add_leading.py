from __future__ import annotations

import pytest
import torch

from tests.ops.compare import compare, leaf
from trc2.ops.add_leading import add_to_leading, plain_add_to_leading


@pytest.mark.parametrize(("rows", "leading"), [(1, 1), (7, 3), (63, 63), (63, 1)])
def test_values_and_gradients_equal_the_plain_sum(rows: int, leading: int) -> None:
    compare(add_to_leading, plain_add_to_leading, leaf(rows, 6), leaf(leading, 4))


@pytest.mark.parametrize("learns", [True, False])
def test_the_first_summand_is_left_alone(learns: bool) -> None:
    x, y = torch.randn(5, 6), torch.randn(3, 4)
    before = x.clone()
    with torch.set_grad_enabled(learns):
        add_to_leading(x, y)
    assert torch.equal(x, before)
