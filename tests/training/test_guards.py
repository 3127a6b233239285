from __future__ import annotations

import random

import pytest
import torch

from tests.conftest import tiny_config, tokens
from trc2 import CortexNet
from trc2.training.guards import EvaluationMovedState, no_side_effects


@pytest.mark.parametrize(
    ("disturb", "told"),
    [
        (lambda net, opt: torch.rand(1), "rng.torch"),
        (lambda net, opt: random.random(), "python"),
        (lambda net, opt: net.eval(), "mode"),
        (lambda net, opt: net.cortex.hippocampus.threshold.add_(1), "threshold"),
        (lambda net, opt: net.replay.stage(tokens(net.config, 1, 8)), "staged"),
        (lambda net, opt: opt.state[net.cortex.embedding.weight]["exp_avg"].add_(1), "optimizer"),
    ],
)
def test_the_check_for_side_effects_sees_every_kind_of_movement(disturb: object, told: str) -> None:
    net = CortexNet(tiny_config())
    optimizer = torch.optim.AdamW(net.parameters())
    _, aux = net(tokens(net.config, 2, 8), targets=tokens(net.config, 2, 8))
    aux["loss"].backward()
    net.flush_pending_write()
    optimizer.step()
    with no_side_effects(True, net, optimizer):
        pass
    with pytest.raises(EvaluationMovedState, match=told), no_side_effects(True, net, optimizer):
        disturb(net, optimizer)
    with no_side_effects(False, net, optimizer):
        disturb(net, optimizer)
