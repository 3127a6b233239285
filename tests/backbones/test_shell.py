"""`replay_share`: new and replayed tokens weigh the same; it is one of two ways, never both."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny_config, tokens
from trc2 import CortexNet, UserError
from trc2.backbones.registry import step_cost
from trc2.config import RunConfig
from trc2.nn.cost import Cost


def test_every_token_weighs_the_same() -> None:
    config = tiny_config(memory=False, thalamus=False, replay_share=0.4, replay_batch_size=4, lambda_router=0.0)
    net = CortexNet(config, torch.Generator().manual_seed(0)).double().train()
    assert net.replay is not None
    net.replay.commit(torch.randint(config.vocab_size, (6, 5), dtype=torch.int32))
    x = tokens(config, 2, 12)
    y = tokens(config, 2, 12, seed=1)
    chunks = net.replay.sample_share(24, 0, 0)
    assert chunks is not None
    _, aux = net(x, y)
    net.eval()
    new, old = net.predict(x, y).nll, net.predict(chunks[:, :-1], chunks[:, 1:]).nll
    expected = (new.sum() + old.sum()) / new.numel()
    torch.testing.assert_close(aux["loss"].detach(), expected)


def test_only_one_of_the_two_ways_may_be_set() -> None:
    with pytest.raises(UserError, match=r"replay_share=0.1 and replay_coefficient=0.2 both say how strongly"):
        tiny_config(replay_share=0.1, replay_coefficient=0.2, replay_batch_size=4)
    config = tiny_config(replay_share=0.1, replay_batch_size=4)
    assert config.replace() == config
    stream = {"tasks": [{"name": "a", "builtin": "prose"}]}
    with pytest.raises(UserError, match=r"model.replay_share=0.7 is outside control.share_range=\[0.0, 0.5\]"):
        RunConfig(model=config.replace(replay_share=0.7), stream=stream, train={"sequence_length": 64})


def test_a_share_costs_its_share() -> None:
    config = tiny_config(replay_share=0.2, replay_batch_size=4)
    costs = step_cost(config, 4, 16, with_replay=True)
    replayed, new = costs.pop("replay"), sum(costs.values(), Cost())
    assert 0.15 < replayed.forward / (replayed.forward + new.forward) < 0.25
