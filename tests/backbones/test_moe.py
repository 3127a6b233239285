from __future__ import annotations

import pytest
import torch

from tests.backbones.common import excited, tiny_baseline
from tests.conftest import tokens
from trc2.backbones.moe import MoEConfig, build


def tiny(**changes: object) -> MoEConfig:
    """The balance loss weighs as much as the others here, so that its gradient can be seen."""
    return tiny_baseline(MoEConfig, **{"num_experts": 4, "lambda_load_balance": 0.8, "lambda_router": 0.9, **changes})


def test_no_expert_is_shared() -> None:
    assert not [name for name, _ in build(tiny()).named_parameters() if "shared" in name]


def test_equal_experts_are_one_expert_whatever_the_router_says() -> None:
    """Renormalised weights sum to 1, so the mixture of equal experts is that expert."""
    part = excited(build(tiny())).double().trunk.blocks[0].feed_forward
    with torch.no_grad():
        for expert in part.experts[1:]:
            expert.load_state_dict(part.experts[0].state_dict())
    u = torch.randn(9, 16, dtype=torch.float64)
    torch.testing.assert_close(part(u, slice(None))[0], part.experts[0](u))


def test_the_balance_losses_of_all_layers_add_up() -> None:
    """A fresh router is nearly even in probability, and then A = E Σ load/E = 1 in every layer."""
    net = build(tiny(num_layers=5, lambda_load_balance=1.0))
    _, aux = net(tokens(net.config, 4, 32), targets=tokens(net.config, 4, 32, 1))
    assert aux["loss_load_balance"].item() == pytest.approx(5.0, rel=0.05)
