from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import fill_memory, tiny_config, tokens
from trc2 import CortexNet
from trc2.backbones.registry import step_cost
from trc2.nn.cost import Cost


@pytest.mark.parametrize("events", [0, 4, 10])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"replay_path": "cortex"},
        {"num_columns": 1},
        {"num_columns": 5, "num_shared_experts": 0},
        {"thalamus": False},
        {"memory": False},
        {"replay": False},
        {"thalamus": False, "memory": False, "replay": False},
    ],
    ids=str,
)
def test_the_formulas_equal_torchs_counter(changes: dict[str, object], events: int) -> None:
    config = tiny_config(**changes)
    net = CortexNet(config)
    if config.memory:
        fill_memory(net, events)
    if net.replay is not None:
        net.replay.commit(tokens(config, 4, 5).int())
    x, y = tokens(config, 2, 11), tokens(config, 2, 11, 1)
    # The fused attention kernel is invisible to the counter; the plain one does the same products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits, aux = net(x, targets=y)
        forward = counter.get_total_flops()
        aux["loss"].backward()
    costs = step_cost(config, 2, 11, slots=events, with_replay=True)
    total = sum(costs.values(), Cost())
    assert counter.get_total_flops() == total.training
    # The replay head forms its gradients while its logits are at hand, that is in the forward pass.
    early = 4.0 * 3 * 4 * config.d_model * config.vocab_size if config.replay else 0.0
    assert forward == total.forward + early
    assert logits.shape == (2, 11, config.vocab_size)
    assert torch.isfinite(aux["loss"])
