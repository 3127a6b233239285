from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.ops.compare import compare_gradients
from trc2.nn.experts import RoutedExperts, load_balance, route
from trc2.reference import column as reference

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@pytest.mark.parametrize("tokens", [1, 2, 7, 63])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("has_shared", [True, False])
def test_outputs_and_gradients_equal_the_reference(tokens: int, dtype: torch.dtype, has_shared: bool) -> None:
    layer = RoutedExperts(8, 12, 5, 2, has_shared=has_shared).to(dtype)
    u = torch.randn(tokens, 8, dtype=dtype, requires_grad=True)
    weights = dict(layer.named_parameters())
    mixed, routing = layer(u)
    fast = mixed.square().sum() + load_balance(routing, slice(None))
    expected = torch.stack([reference.mixture(token, weights, 2) for token in u])
    slow = expected.square().sum() + reference.balance(u, weights)
    close = TOLERANCE[dtype]
    torch.testing.assert_close(mixed, expected, atol=close, rtol=close)
    compare_gradients(fast, slow, [u, *layer.parameters()], atol=close, rtol=close * 10)


def test_an_expert_without_tokens_gets_a_zero_gradient() -> None:
    layer = RoutedExperts(4, 6, 3, 1, has_shared=False)
    with torch.no_grad():
        layer.gate.weight.zero_()  # all experts tie, so the first one gets every token
    mixed, routing = layer(torch.randn(5, 4))
    mixed.sum().backward()
    assert routing.experts.flatten().tolist() == [0] * 5
    assert layer.experts[2].down.weight.grad is not None
    assert not layer.experts[2].down.weight.grad.any()
    assert layer.experts[0].down.weight.grad.any()


def test_cost_depends_on_selected_experts_not_on_how_many_there_are() -> None:
    def flops(num_experts: int) -> int:
        layer = RoutedExperts(16, 32, num_experts, 2, has_shared=False)
        with FlopCounterMode(display=False) as counter:
            layer.dispatch(x, route(layer.gate(x), 2))
        return counter.get_total_flops() - 2 * 64 * 16 * num_experts  # less the gate

    x = torch.randn(64, 16)
    assert flops(4) == flops(32) == 2 * 64 * 6 * 16 * 32


def test_balance_is_one_when_experts_share_evenly_and_ignores_uncounted_tokens() -> None:
    gate = torch.eye(4).repeat(2, 1) * 50.0
    routing = route(gate, 2)
    torch.testing.assert_close(load_balance(routing, slice(None)), torch.tensor(1.0))
    only_first = torch.tensor([True] + [False] * 7)
    torch.testing.assert_close(load_balance(routing, only_first), torch.tensor(4.0))


def test_load_counts_first_choices_only() -> None:
    """All first choices on one expert and the second ones spread out: counting both would give a smaller loss."""
    logits = torch.zeros(3, 4)
    logits[:, 0] = 2.0
    logits[[0, 1, 2], [1, 2, 3]] = 1.0
    routing = route(logits, 2)
    torch.testing.assert_close(load_balance(routing, slice(None)), 4 * routing.probabilities[:, 0].mean())
