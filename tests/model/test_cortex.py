"""The whole network against the paper in slow code: every output, loss and gradient."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import excited, fill_memory, tiny_config, tokens
from trc2 import CortexNet, TRC2Config
from trc2.nn.segments import pack
from trc2.reference import cortex as reference
from trc2.reference.hippocampus import Store

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}


def build(config: TRC2Config, events: int, dtype: torch.dtype) -> CortexNet:
    net = excited(CortexNet(config)).to(dtype)
    if config.memory:
        fill_memory(net, events)
    return net.train()


def store_of(net: CortexNet) -> Store | None:
    hippocampus = net.cortex.hippocampus
    if hippocampus is None:
        return None
    return Store(hippocampus.keys, hippocampus.values, hippocampus.count, hippocampus.pointer)


def gradients(net: CortexNet, loss: torch.Tensor) -> dict[str, torch.Tensor | None]:
    net.zero_grad()
    loss.backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in net.cortex.named_parameters()}


def compare_with_reference(config: TRC2Config, length: int, events: int, dtype: torch.dtype) -> None:
    net = build(config, events, dtype)
    x, y = tokens(config, 2 if length < 20 else 1, length), tokens(config, 2 if length < 20 else 1, length, seed=1)
    y[0, 0] = -100 if length > 1 else y[0, 0]
    logits, aux = net(x, targets=y)
    weights = dict(net.cortex.named_parameters())
    expected = reference.forward(x, weights, config, store_of(net))
    total = reference.objective(x, y, None, 0.0, weights, config, store_of(net))

    close = TOLERANCE[dtype]
    torch.testing.assert_close(logits, expected.logits, atol=close, rtol=close)
    torch.testing.assert_close(
        aux["loss_load_balance"], config.lambda_load_balance * expected.balance, atol=close, rtol=close
    )
    torch.testing.assert_close(aux["loss_td"], expected.td, atol=close, rtol=close)
    torch.testing.assert_close(aux["loss_predictor"], expected.prediction, atol=close, rtol=close)
    torch.testing.assert_close(aux["loss"], total, atol=close, rtol=close)
    if net.pending:
        torch.testing.assert_close(net.pending[-1].proposal.surprise, expected.surprise, atol=close, rtol=close)

    fast, slow = gradients(net, aux["loss"]), gradients(net, total)
    for name, gradient in fast.items():
        other = slow[name]
        if gradient is None:  # frozen, or the one tensor without a reader: the reference has no gradient either
            assert other is None, name
        else:
            other = torch.zeros_like(gradient) if other is None else other
            torch.testing.assert_close(gradient, other, atol=close, rtol=close, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("events", [0, 4, 10, 17], ids=["empty", "part-filled", "full", "wrapped"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_outputs_losses_and_gradients_equal_the_reference(length: int, events: int, dtype: torch.dtype) -> None:
    compare_with_reference(tiny_config(replay=False), length, events, dtype)


@pytest.mark.parametrize(
    ("events", "dtype"),
    [
        (17, torch.float64),
        pytest.param(0, torch.float32, marks=pytest.mark.slow),
        pytest.param(0, torch.float64, marks=pytest.mark.slow),
        pytest.param(4, torch.float64, marks=pytest.mark.slow),
        pytest.param(10, torch.float64, marks=pytest.mark.slow),
        pytest.param(17, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_long_sequences_equal_the_reference_too(events: int, dtype: torch.dtype) -> None:
    compare_with_reference(tiny_config(replay=False), 63, events, dtype)


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize(
    "changes",
    [
        {"memory_slots": 2, "memory_top_k": 3},
        {"thalamic_groups": 3},
        {"num_columns": 1},
        {"num_columns": 2},
        {"num_shared_experts": 0},
        {"num_active_experts": 4},
        {"gate_top_fraction": 1.0},
        {"thalamus": False},
        {"memory": False},
        {"thalamus": False, "memory": False},
        {"num_kv_heads": 4},
        {"memory_read_window": 3, "memory_read_chunk": 2},
        {"td_clip": 0.05},
    ],
    ids=lambda changes: ",".join(f"{key}={value}" for key, value in changes.items()),
)
def test_every_option_equals_the_reference(changes: dict[str, object], length: int) -> None:
    config = tiny_config(replay=False, **changes)
    compare_with_reference(config, length, 5 if config.memory else 0, torch.float64)


@pytest.mark.parametrize("path", ["full", "cortex"])
@pytest.mark.parametrize("events", [0, 12])
def test_main_and_replay_tokens_in_one_pass_equal_two_passes(path: str, events: int) -> None:
    config = tiny_config(replay_path=path)
    net = build(config, events, torch.float64)
    x, y = tokens(config, 2, 11), tokens(config, 2, 11, seed=1)
    net.replay.commit(tokens(config, 7, 5, seed=2).int())
    replayed = net.replay.sample(0, 0)
    _, aux = net(x, targets=y, return_logits=False)
    weights = dict(net.cortex.named_parameters())
    total = reference.objective(x, y, replayed, config.replay_coefficient, weights, config, store_of(net))
    torch.testing.assert_close(aux["loss"], total, atol=1e-10, rtol=1e-10)
    assert aux["loss_replay"] > 0
    fast, slow = gradients(net, aux["loss"]), gradients(net, total)
    for name, gradient in fast.items():
        if gradient is not None:
            other = torch.zeros_like(gradient) if slow[name] is None else slow[name]
            torch.testing.assert_close(gradient, other, atol=1e-10, rtol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_replayed_tokens_do_not_touch_the_auxiliary_losses_or_proposals() -> None:
    config = tiny_config()
    net = build(config, 6, torch.float64)
    x, replayed = tokens(config, 2, 11), tokens(config, 3, 5, seed=2)
    alone, joined = net.cortex(pack([x])), net.cortex(pack([x, replayed]))
    torch.testing.assert_close(joined.hidden[:22], alone.hidden)
    assert [loss.name for loss in joined.losses] == ["load_balance", "td", "predictor"]
    for ours, expected in zip(joined.losses, alone.losses, strict=True):
        torch.testing.assert_close(ours.value, expected.value)
    torch.testing.assert_close(joined.proposal.states, alone.proposal.states)


@pytest.mark.parametrize("events", [0, 12])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_for_real_tokens(side: str, events: int) -> None:
    config = tiny_config(replay=False)
    net = build(config, events, torch.float64)
    x, y = tokens(config, 1, 9), tokens(config, 1, 9, seed=1)
    real = slice(4, 13) if side == "left" else slice(0, 9)
    padded, labels = torch.full((1, 13), 3), torch.full((1, 13), -100)
    valid = torch.zeros(1, 13, dtype=torch.bool)
    padded[:, real], labels[:, real], valid[:, real] = x, y, True
    logits, aux = net(x, targets=y)
    padded_logits, padded_aux = net(padded, targets=labels, valid=valid)
    torch.testing.assert_close(padded_logits[:, real], logits)
    for name in ("loss", "loss_lm", "loss_td", "loss_predictor", "loss_load_balance"):
        torch.testing.assert_close(padded_aux[name], aux[name])
    plain, with_padding = (waiting.proposal for waiting in net.pending)
    torch.testing.assert_close(with_padding.states, plain.states)
    torch.testing.assert_close(with_padding.scores, plain.scores)


def test_only_the_last_columns_layer5_has_no_reader() -> None:
    config = tiny_config(replay=False)
    net = build(config, 0, torch.float32)
    _, aux = net(tokens(config, 2, 7), targets=tokens(config, 2, 7))
    aux["loss"].backward()
    without = [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]
    assert without == net.unused_parameters() == ["cortex.columns.2.layer5.weight"]


@pytest.mark.parametrize("thalamus", [True, False])
@pytest.mark.parametrize("memory", [True, False])
def test_switches_remove_what_becomes_unreachable(thalamus: bool, memory: bool) -> None:
    net = CortexNet(tiny_config(thalamus=thalamus, memory=memory, replay=False))
    names = {name for name, _ in net.named_parameters()} | {name for name, _ in net.named_buffers()}
    assert any("cortex.thalamus" in name for name in names) == thalamus
    assert any("layer5" in name for name in names) == thalamus
    assert any("hippocampus" in name or "feedback" in name for name in names) == memory
    shifted = [column.attention.query_shift is not None for column in net.cortex.columns]
    assert shifted == [thalamus, thalamus, thalamus or memory]  # two early columns, one late
    assert not any("replay" in name for name in names)
