"""Short causal convolutions and the order that takes padding out of their way."""

from __future__ import annotations

import torch

from tests.ops.compare import compare_gradients
from trc2.nn.convolution import depthwise, in_order, last_real, real_first


def test_the_convolution_is_a_sum_of_shifted_products() -> None:
    x = torch.randn(2, 9, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
    ours, shifted = depthwise(x, weight, bias), bias + sum(x[:, k : k + 6] * weight[:, k] for k in range(4))
    torch.testing.assert_close(ours, shifted, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(depthwise(x, weight), shifted - bias, atol=1e-12, rtol=1e-12)
    numbers = ours.square().sum(), shifted.square().sum()
    compare_gradients(*numbers, (x, weight, bias), atol=1e-11, rtol=1e-11)


def test_padding_moves_behind_real_tokens_which_keep_their_order() -> None:
    valid = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
    assert real_first(valid).tolist() == [[1, 3, 4, 0, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_the_last_real_tokens_reach_back_into_the_window() -> None:
    valid = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    x = torch.arange(12.0).view(3, 4, 1)
    seen = torch.cat((torch.full((3, 3, 1), -1.0), in_order(x, real_first(valid))), dim=1)
    assert last_real(seen, 3, valid).squeeze(-1).tolist() == [[-1, 1, 3], [-1, -1, -1], [9, 10, 11]]
    assert last_real(seen[2:], 3, None).squeeze(-1).tolist() == [[9, 10, 11]]
