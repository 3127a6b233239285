from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny_config
from trc2 import CortexNet


def spread(tensor: torch.Tensor) -> float:
    return float(tensor.detach().std())


def test_weights_start_as_the_spec_says() -> None:
    net = CortexNet(tiny_config(d_model=128, d_ff=256, thalamic_rank=16, memory_key_dim=64, vocab_size=500)).cortex
    column, memory = net.columns[0], net.hippocampus
    residual = 0.02 / (2 * 3) ** 0.5
    for tensor in (net.embedding.weight, column.attention.qkv.weight, column.experts.shared.gate_up.weight):
        assert spread(tensor) == pytest.approx(0.02, rel=0.05)
    for tensor in (
        column.attention.output.weight,
        column.experts.experts[1].down.weight,
        column.experts.shared.down.weight,
    ):
        assert spread(tensor) == pytest.approx(residual, rel=0.05)
    for tensor in (memory.write_key.weight, memory.write_value.weight):
        assert spread(tensor) == pytest.approx(128**-0.5, rel=0.05)
        assert not tensor.requires_grad
    assert net.thalamus.surprise_gain.item() == pytest.approx(0.1)
    gates = (net.thalamus.modulation, net.thalamus.diffuse_gain, memory.output_gate, net.feedback.strength)
    biases = (net.thalamus.state_bias, net.thalamus.competition_bias, net.feedback.gate_bias)
    assert not any(tensor.any() for tensor in gates + biases)
    assert (net.final_norm.gain == 1).all()


def test_slow_heads_start_as_copies() -> None:
    critic = CortexNet(tiny_config()).cortex.hippocampus.critic
    assert torch.equal(critic.slow_value.weight, critic.value.weight)
    assert torch.equal(critic.slow_predictor.inner.weight, critic.predictor.inner.weight)


def test_a_generator_decides_all_weights() -> None:
    first, second = (CortexNet(tiny_config(), torch.Generator().manual_seed(5)) for _ in range(2))
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())
