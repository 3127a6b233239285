from __future__ import annotations

import pytest

from tests.backbones.common import counted_flops
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
    total = sum(step_cost(config, 2, 11, slots=events, with_replay=True).values(), Cost())
    forward, training = counted_flops(net, 2, 11)
    assert training == total.training
    # The replay head forms its gradients while its logits are at hand, that is in the forward pass.
    early = 4.0 * 3 * 4 * config.d_model * config.vocab_size if config.replay else 0.0
    assert forward == total.forward + early
