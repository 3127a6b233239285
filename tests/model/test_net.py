from __future__ import annotations

import copy
import warnings

import pytest
import torch

from tests.conftest import excited, fill_memory, tiny_config, tokens
from trc2 import CortexNet, TRC2Config, UserError

COMPACT = {
    "vocab_size": 32000, "d_model": 128, "num_columns": 4, "num_heads": 8, "num_kv_heads": 4,
    "num_experts": 4, "thalamic_rank": 16, "memory_slots": 1024, "memory_key_dim": 32,
}  # fmt: skip


def one_step(net: CortexNet, optimizer: torch.optim.Optimizer, seed: int) -> dict[str, float]:
    net.train()
    optimizer.zero_grad()
    for micro in range(2):
        x, y = tokens(net.config, 2, 11, seed * 10 + micro), tokens(net.config, 2, 11, seed * 10 + micro + 5)
        _, aux = net(x, targets=y, return_logits=False)
        aux["loss"].backward()
    net.flush_pending_write()
    optimizer.step()
    net.update_slow_targets()
    return {name: value.item() for name, value in aux.items()}


def adam(net: CortexNet) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)


def test_the_compact_network_has_exactly_the_papers_parameters() -> None:
    assert sum(p.numel() for p in CortexNet(TRC2Config(**COMPACT)).parameters()) == 8_520_244


def test_the_readmes_calling_convention_trains() -> None:
    net = CortexNet(tiny_config(vocab_size=11))
    optimizer = adam(net)
    x = (torch.arange(12) % 11).expand(4, -1)
    losses = []
    for _ in range(40):
        _, aux = net(x[:, :-1], targets=x[:, 1:])
        aux["loss"].backward()
        net.flush_pending_write()
        optimizer.step()
        optimizer.zero_grad()
        net.update_slow_targets()
        losses.append(aux["loss_lm"].item())
    assert losses[-1] < 0.2 * losses[0]


def test_aux_holds_the_papers_losses_and_their_weighted_total() -> None:
    config = tiny_config(lambda_router=0.7, lambda_td=0.3, lambda_predictor=0.2, replay_coefficient=0.4)
    net = excited(CortexNet(config))
    net.replay.commit(tokens(config, 4, 5).int())
    _, aux = net(tokens(config, 2, 11), targets=tokens(config, 2, 11, 1))
    total = (
        aux["loss_lm"] + 0.7 * aux["loss_load_balance"] + 0.3 * aux["loss_td"] + 0.2 * aux["loss_predictor"]
        + 0.4 * aux["loss_replay"]
    )  # fmt: skip
    torch.testing.assert_close(aux["loss"], total)
    assert aux["loss_replay"] > 0


def test_the_balance_loss_of_a_fresh_model_is_what_the_paper_logs() -> None:
    net = CortexNet(TRC2Config(**{**COMPACT, "vocab_size": 500, "replay": False}))
    _, aux = net(torch.randint(500, (4, 64)), targets=torch.randint(500, (4, 64)))
    assert 0.039 < aux["loss_load_balance"].item() < 0.042


@pytest.mark.parametrize("replayed", [False, True])
def test_the_loss_without_logits_equals_the_loss_with_them(replayed: bool) -> None:
    config = tiny_config(replay=replayed)
    net = excited(CortexNet(config)).double()
    x, y = tokens(config, 2, 9), tokens(config, 2, 9, 1)
    logits, with_logits = net(x, targets=y)
    nothing, without = net(x, targets=y, return_logits=False)
    assert logits.shape == (2, 9, config.vocab_size)
    assert nothing is None
    torch.testing.assert_close(with_logits["loss"], without["loss"])


def test_labels_that_are_ignored_do_not_count() -> None:
    config = tiny_config()
    net = CortexNet(config).eval()
    x, y = tokens(config, 2, 9), tokens(config, 2, 9, 1)
    half = y.clone()
    half[1] = -100
    _, aux = net(x, targets=half)
    _, first_only = net(x[:1], targets=y[:1])
    torch.testing.assert_close(aux["loss_lm"], first_only["loss_lm"])
    assert int(aux["num_labels"]) == 9
    _, none = net(x, targets=torch.full_like(y, -100))
    assert none["loss_lm"].item() == 0.0


def test_evaluation_queues_nothing_draws_nothing_and_changes_nothing() -> None:
    config = tiny_config()
    net = CortexNet(config)
    optimizer = adam(net)
    one_step(net, optimizer, 0)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    rng = torch.get_rng_state()
    net.eval()
    _, aux = net(tokens(config, 3, 9), targets=tokens(config, 3, 9, 1))
    assert aux["loss_replay"].item() == 0.0
    assert not net.pending
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_all_state_is_in_the_state_dict() -> None:
    config = tiny_config()
    net = CortexNet(config)
    optimizer = adam(net)
    for step in range(3):
        one_step(net, optimizer, step)
    twin = CortexNet(config)
    twin.load_state_dict(net.state_dict())
    twin_optimizer = adam(twin)
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # it would share tensors
    for step in range(3, 6):
        assert one_step(net, optimizer, step) == one_step(twin, twin_optimizer, step)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, twin.state_dict()[name]), name


def test_saving_with_pending_writes_warns() -> None:
    net = CortexNet(tiny_config())
    net(tokens(net.config, 2, 9), targets=tokens(net.config, 2, 9))
    with pytest.warns(UserWarning, match="flush them first"):
        net.state_dict()


@pytest.mark.parametrize("memory", [True, False])
def test_a_queue_nobody_flushes_stays_bounded_and_says_so_once(memory: bool) -> None:
    net = CortexNet(tiny_config(max_unflushed_batches=3, memory=memory))
    x = tokens(net.config, 1, 5)
    for _ in range(3):
        net(x, targets=x)
    with pytest.warns(UserWarning, match="call flush_pending_write"):
        net(x, targets=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(x, targets=x)
    assert len(net.pending) == (3 if memory else 0)
    assert net.replay.num_staged == 3


def test_a_discarded_step_leaves_memory_threshold_and_stores_alone() -> None:
    net = CortexNet(tiny_config())
    before = {name: tensor.clone() for name, tensor in net.state_dict().items() if name != "clock.micro_step"}
    net(tokens(net.config, 2, 9), targets=tokens(net.config, 2, 9))
    net.discard_pending_write()
    net.flush_pending_write()
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in before.items())


def test_micro_batches_flush_as_their_union() -> None:
    config = tiny_config(replay=False)
    split, whole = CortexNet(config).double(), CortexNet(config).double()
    whole.load_state_dict(split.state_dict())
    x, y = tokens(config, 4, 9), tokens(config, 4, 9, 1)
    split(x[:2], targets=y[:2])
    split(x[2:], targets=y[2:])
    whole(x, targets=y)
    assert split.flush_pending_write().writes == whole.flush_pending_write().writes > 0
    torch.testing.assert_close(split.cortex.hippocampus.keys, whole.cortex.hippocampus.keys)
    torch.testing.assert_close(split.cortex.hippocampus.threshold, whole.cortex.hippocampus.threshold)


def test_an_empty_memory_reads_exactly_zero() -> None:
    config = tiny_config(replay=False)
    net = excited(CortexNet(config)).eval()
    without = excited(CortexNet(tiny_config(replay=False, memory=False))).eval()
    without.load_state_dict({k: v for k, v in net.state_dict().items() if k in without.state_dict()})
    x = tokens(config, 2, 9)
    assert torch.equal(net(x)[0], without(x)[0])
    fill_memory(net, 4)
    assert not torch.equal(net(x)[0], without(x)[0])


def test_mixed_precision_keeps_memory_and_losses_in_float32() -> None:
    net = CortexNet(tiny_config())
    fill_memory(net, 6)
    with torch.autocast("cpu", torch.bfloat16):
        logits, aux = net(tokens(net.config, 2, 9), targets=tokens(net.config, 2, 9))
    aux["loss"].backward()
    net.flush_pending_write()
    assert logits.dtype == torch.bfloat16
    assert all(aux[name].dtype == torch.float32 for name in aux if name.startswith("loss"))
    assert net.cortex.hippocampus.keys.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


def test_retrieval_and_values_are_float32_islands_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    net = CortexNet(tiny_config())
    fill_memory(net, 6)
    seen = []
    hippocampus = net.cortex.hippocampus
    plain = hippocampus.search

    def spy(query: torch.Tensor, window: list[range]) -> torch.Tensor:
        seen.append((query.dtype, (query @ hippocampus.keys.T).dtype))
        return plain(query, window)

    monkeypatch.setattr(hippocampus, "search", spy)
    with torch.autocast("cpu", torch.bfloat16):
        net(tokens(net.config, 2, 9), targets=tokens(net.config, 2, 9))
    assert seen == [(torch.float32, torch.float32)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_can_be_evaluated(dtype: torch.dtype) -> None:
    net = CortexNet(tiny_config()).eval()
    fill_memory(net, 6)
    x = tokens(net.config, 2, 9)
    expected, _ = net(x)
    logits, aux = net.to(dtype)(x, targets=x)
    assert logits.dtype == dtype
    assert torch.isfinite(aux["loss"])
    torch.testing.assert_close(logits.float(), expected, atol=0.02, rtol=0.1)


def test_padding_is_neither_labelled_nor_stored_for_replay() -> None:
    net = CortexNet(tiny_config())
    x = tokens(net.config, 2, 20)
    valid = torch.ones(2, 20, dtype=torch.int64)  # as tokenizers give it
    valid[1, 7:] = 0
    _, aux = net(x, targets=x, valid=valid)
    assert int(aux["num_labels"]) == 27
    net.flush_pending_write()
    # chunks of five: four of the first row, one whole one of the second
    assert net.replay.num_seen == 5
    stored = {tuple(chunk) for chunk in net.replay.long[:5].tolist()}
    assert tuple(x[1, :5].tolist()) in stored
    assert tuple(x[1, 5:10].tolist()) not in stored


def test_the_reservoir_keeps_moving_even_if_nobody_ticks_the_clock() -> None:
    net = CortexNet(tiny_config(memory=False, replay_long_chunks=6))
    for seed in range(30):
        x = tokens(net.config, 2, 10, seed)
        net(x, targets=x)
        net.flush_pending_write()
    last = {tuple(c) for seed in range(15, 30) for c in tokens(net.config, 2, 10, seed).reshape(-1, 5).tolist()}
    assert any(tuple(chunk) in last for chunk in net.replay.long.tolist())


BAD_INPUT = [
    (lambda: tokens(tiny_config(), 2, 9).int(), "int64"),
    (lambda: torch.zeros(9, dtype=torch.int64), r"shape \(B, T\)"),
    (lambda: torch.zeros(0, 9, dtype=torch.int64), "empty batch"),
    (lambda: torch.zeros(2, 0, dtype=torch.int64), "empty batch"),
    (lambda: torch.full((1, 9), 29), "token id 29, but vocab_size=29"),
    (lambda: torch.full((1, 9), -1), "token id -1"),
    (lambda: torch.zeros(1, 65, dtype=torch.int64), "65 tokens per sequence, more than max_positions=64"),
]


@pytest.mark.parametrize(("make", "message"), BAD_INPUT)
def test_bad_input_is_told_in_one_sentence(make: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        CortexNet(tiny_config())(make())
    assert "\n" not in str(caught.value)


def test_targets_must_fit() -> None:
    net = CortexNet(tiny_config())
    x = tokens(net.config, 2, 9)
    with pytest.raises(UserError, match=r"targets has shape \(2, 8\)"):
        net(x, targets=x[:, 1:])
    with pytest.raises(UserError, match=r"targets has type torch\.int32"):
        net(x, targets=x.int())
    with pytest.raises(UserError, match="targets contains token id 40"):
        net(x, targets=torch.full_like(x, 40))


def test_a_replay_chunk_longer_than_the_sequence_is_an_error_in_training_only() -> None:
    net = CortexNet(tiny_config(replay_chunk_length=20))
    x = tokens(net.config, 2, 9)
    with pytest.raises(UserError, match="replay_chunk_length=20 is longer than the 9 tokens"):
        net(x, targets=x)
    net.eval()(x, targets=x)
