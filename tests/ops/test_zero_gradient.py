from __future__ import annotations

import torch

from tests.ops.compare import compare, leaf
from trc2.ops.zero_gradient import anchor, plain_anchor


def test_values_and_gradients_equal_the_plain_sum() -> None:
    compare(anchor, plain_anchor, leaf(7, 3), leaf(2), leaf(4, 5))


def test_an_anchored_parameter_gets_zeros_and_the_value_is_untouched() -> None:
    x, idle = torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True)
    y = anchor(x, idle)
    assert torch.equal(y, x)
    y.sum().backward()
    assert torch.equal(idle.grad, torch.zeros(2))
    assert torch.equal(x.grad, torch.ones(3))


def test_frozen_parameters_are_left_alone() -> None:
    x, frozen = torch.randn(3, requires_grad=True), torch.randn(2)
    anchor(x, frozen).sum().backward()
    assert frozen.grad is None
