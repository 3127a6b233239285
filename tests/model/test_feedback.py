from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny_config
from tests.ops.compare import compare_gradients
from trc2.model.feedback import FeedbackGate
from trc2.reference import hippocampus as reference


@pytest.mark.parametrize("fraction", [0.125, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_and_gradients_equal_the_reference(fraction: float, dtype: torch.dtype) -> None:
    gate = FeedbackGate(tiny_config(gate_top_fraction=fraction)).to(dtype)
    for parameter in gate.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    hidden = torch.randn(2, 5, 16, dtype=dtype, requires_grad=True)
    memory = torch.randn(2, 5, 16, dtype=dtype, requires_grad=True)
    fast = gate(hidden.flatten(0, 1), memory.flatten(0, 1)).unflatten(0, (2, 5))
    slow = reference.feedback(hidden, memory, dict(gate.named_parameters()), top_fraction=fraction)
    torch.testing.assert_close(fast, slow)
    inputs = [memory, *gate.parameters()]
    compare_gradients(fast.square().sum(), slow.square().sum(), inputs, atol=1e-5, rtol=1e-5)


def test_the_gate_does_not_pull_on_the_cortex() -> None:
    gate, hidden = FeedbackGate(tiny_config()), torch.randn(4, 16, requires_grad=True)
    memory = torch.randn(4, 16, requires_grad=True)
    pulled = torch.autograd.grad(gate(hidden, memory).sum(), (hidden, memory), allow_unused=True)
    assert pulled[0] is None
    assert pulled[1].any()
