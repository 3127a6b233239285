from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.ops.compare import compare_gradients
from trc2.nn.linear import JoinedLinear, ScaledLinear


def compare(ours: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=1e-13, rtol=1e-12)
    compare_gradients(ours.square().sum(), expected.square().sum(), inputs, atol=1e-12, rtol=1e-11)


@pytest.mark.parametrize("width", [5, 1])
@pytest.mark.parametrize("tokens", [3, 50])
def test_a_scaled_map_is_the_map_and_then_the_scale(width: int, tokens: int) -> None:
    layer = ScaledLinear(4, 5).double()
    x, scale = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((tokens, 4), (width,)))
    compare(layer(x, scale), (x @ layer.weight.T) * scale, x, scale, layer.weight)


def test_a_joined_map_reads_both_parts_at_once() -> None:
    layer = JoinedLinear(7, 5).double()
    x, y, bias = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 4), (3, 3), (5,)))
    compare(layer(x, y, bias), torch.cat((x, y), dim=1) @ layer.weight.T + bias, x, y, bias, layer.weight)


def test_a_detached_part_costs_no_gradient() -> None:
    layer, x, y = JoinedLinear(8, 6), torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x, y, torch.zeros(6)).sum().backward()
    product = 2 * 3 * 4 * 6
    assert counter.get_total_flops() == 2 * product + 3 * product


def test_under_autocast_the_joined_sum_is_wide() -> None:
    """Half a sum would tie channels that a gate must tell apart."""
    layer, x, y = JoinedLinear(8, 6), torch.randn(3, 4), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x, y, torch.zeros(6)).dtype == torch.float32
