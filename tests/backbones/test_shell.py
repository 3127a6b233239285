"""`replay_share`: new and replayed tokens weigh the same. It is one of two ways, never both."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny_config, tokens
from trc2 import CortexNet, UserError
from trc2.backbones.registry import step_cost
from trc2.config import RunConfig
from trc2.nn.cost import Cost
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.replay.stores import mark_unlabelled


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


def test_losses_are_means_over_labels_and_a_share_counts_tokens() -> None:
    """New and replayed text both have ignored targets. The numbers are computed target by target."""
    config = tiny_config(memory=False, thalamus=False, replay_share=0.4, replay_batch_size=4, lambda_router=0.0)
    net = CortexNet(config, torch.Generator().manual_seed(0)).double().train()
    assert net.replay is not None
    stored = torch.randint(config.vocab_size, (6, 5), dtype=torch.int32)
    net.replay.commit(mark_unlabelled(stored, torch.rand(6, 5) < 0.5))
    x = tokens(config, 2, 12)
    y = tokens(config, 2, 12, seed=1)
    y[0], y[1, 3:] = IGNORE_INDEX, IGNORE_INDEX
    chunks = net.replay.sample_share(24, 0, 0)
    assert chunks is not None
    assert (chunks < 0).any()
    _, aux = net(x, y)
    net.eval()
    with torch.no_grad():
        new = torch.log_softmax(net(x)[0], -1)
        answers = [-new[1, t, y[1, t]] for t in range(3)]
        plain = torch.where(chunks < 0, -1 - chunks, chunks)
        old = torch.log_softmax(net(plain[:, :-1])[0], -1)
        replayed = [
            -old[row, t, chunks[row, t + 1]] for row in range(len(chunks)) for t in range(4) if chunks[row, t + 1] >= 0
        ]
    loss, replay = (torch.stack(parts).mean() for parts in (answers, replayed))
    torch.testing.assert_close(aux["loss_lm"].detach(), loss)
    torch.testing.assert_close(aux["loss_replay"].detach(), replay)
    torch.testing.assert_close(aux["loss"].detach(), loss + 4 * len(chunks) / 24 * replay, rtol=1e-6, atol=1e-6)


def test_a_step_without_labels_is_finite_and_stores_chunks_without_labels() -> None:
    config = tiny_config(memory=False, replay_share=0.4, replay_batch_size=4)
    net = CortexNet(config, torch.Generator().manual_seed(0)).train()
    assert net.replay is not None
    x = tokens(config, 2, 12)
    for _ in range(2):
        _, aux = net(x, torch.full_like(x, IGNORE_INDEX))
        assert float(aux["loss_lm"].detach()) == float(aux["loss_replay"].detach()) == 0.0
        aux["loss"].backward()
        net.flush_pending_write()
        net.update_slow_targets()
    assert (net.replay.recent[: net.replay.num_recent, 1:] < 0).all()
