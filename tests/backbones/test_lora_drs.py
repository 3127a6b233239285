from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trc2 import UserError
from trc2.backbones import lora_drs, transformer
from trc2.backbones.lora_drs import LoraDRSConfig, LoraDRSNet, drift_resistant_space
from trc2.backbones.shell import Backbone
from trc2.backbones.transformer import TransformerConfig
from trc2.reference import lora_drs as reference
from trc2.reference.cortex import next_token_loss
from trc2.runs.checkpoint import pack_optimizer, unpack_optimizer
from trc2.training.guards import fingerprints

RATE, BETAS = 1e-2, (0.9, 0.95)


def tiny(**changes: object) -> LoraDRSConfig:
    shape = {"vocab_size": 29, "d_model": 16, "num_layers": 2, "num_heads": 4, "max_positions": 64, "d_ff": 12}
    method = {"rank": 3, "num_adapters": 3, "drs_threshold": 0.9, "drs_batches": 3}
    return LoraDRSConfig(**{**shape, **method, **changes})


def built(seed: int = 0, **changes: object) -> LoraDRSNet:
    """Weights at which all nonlinearities and all pairs matter, in float64."""
    rng = torch.Generator().manual_seed(seed)
    net = lora_drs.build(tiny(**changes), rng).double().train()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0.0, 0.3, generator=rng)
    return net


def tokens(net: Backbone, rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(net.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


def batches(net: LoraDRSNet, task: int) -> list[Tensor]:
    return [tokens(net, 2, 5, seed=100 * task + i) for i in range(net.config.drs_batches)]


def at_task(task: int, seed: int = 0, **changes: object) -> LoraDRSNet:
    net = built(seed, **changes)
    if task:
        net.begin_task(task, batches(net, task))
    return net


def adam(net: Backbone) -> torch.optim.AdamW:
    """Over everything, decay on all but `tensors_without_decay`: like the trainer's."""
    spared = set(net.tensors_without_decay())
    groups = [
        {"params": [p for name, p in net.named_parameters() if name not in spared], "weight_decay": 0.1},
        {"params": [p for name, p in net.named_parameters() if name in spared], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=BETAS)


def backward(net: Backbone, seed: int) -> None:
    _, aux = net(tokens(net, 2, 6, seed), targets=tokens(net, 2, 6, seed + 1))
    aux["loss"].backward()


def train_step(net: Backbone, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    backward(net, seed)
    net.flush_pending_write()
    optimizer.step()
    net.update_slow_targets()


def weights_of(net: LoraDRSNet) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in net.trunk.named_parameters()}


def pair_of(name: str) -> int | None:
    """The number of the pair that a parameter belongs to."""
    return int(name.split(".pairs.")[1].split(".")[0]) if ".pairs." in name else None


# ---------------------------------------------------------------------------------------------------------- the network


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "unfrozen"])
@pytest.mark.parametrize(("task", "length"), [(0, 7), (1, 7), (2, 1), (3, 7)])
def test_output_and_every_gradient_equal_the_reference(task: int, length: int, freeze: bool) -> None:
    net = at_task(task, freeze_backbone=freeze)
    x, y = tokens(net, 2, length), tokens(net, 2, length, seed=1)
    y[0, 0] = -100 if length > 1 else y[0, 0]
    logits, aux = net(x, targets=y)
    aux["loss"].backward()

    free = {name: tensor.requires_grad_() for name, tensor in weights_of(net).items()}
    expected = reference.forward(x, free, net.config, task).logits
    loss = next_token_loss(expected, y)
    loss.backward()
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(aux["loss"], loss, rtol=1e-10, atol=1e-10)
    for name, parameter in net.trunk.named_parameters():
        pair = pair_of(name)
        learns = (task == 0 or not freeze) if pair is None else pair == task - 1
        assert (parameter.grad is not None) == learns, name
        if learns:
            torch.testing.assert_close(parameter.grad, free[name].grad, rtol=1e-8, atol=1e-10)
            assert length == 1 or parameter.grad.any(), name  # one token's softmax does not move its keys


def test_at_task_0_it_learns_as_the_plain_transformer_drawn_from_the_same_seed() -> None:
    config = tiny()
    net = lora_drs.build(config, torch.Generator().manual_seed(3))
    shared = {name: value for name, value in config if name in TransformerConfig.model_fields and name != "name"}
    plain = transformer.build(TransformerConfig(**shared), torch.Generator().manual_seed(3))
    own = net.state_dict()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(own[name], tensor), name
    for model in (net, plain):
        optimizer = adam(model)
        for step in range(2):
            train_step(model, optimizer, seed=step)
    x = tokens(net, 2, 7)
    assert torch.equal(net(x)[0], plain(x)[0])


def test_a_fresh_pair_is_drawn_as_the_method_draws_it() -> None:
    config = tiny(d_model=64, rank=5)
    net = lora_drs.build(config, torch.Generator().manual_seed(0))
    pairs = [pair for layer in net.projections for pair in layer.pairs]
    assert len(pairs) == config.num_layers * config.num_adapters
    for pair in pairs:
        assert pair.down.shape == (2, 5, 64)
        assert pair.up.shape == (2, 64, 5)
        assert ((pair.up != 0).sum(dim=1) == 1).all()
        assert pair.down.abs().max() <= 1 / 8
        assert pair.down.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.1)
    columns = torch.cat([pair.up.sum(dim=1).flatten() for pair in pairs])
    assert columns.unique().numel() == columns.numel()
    assert columns.std().item() == pytest.approx(0.01, rel=0.25)
    again = lora_drs.build(config, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


def test_mixed_precision_computes_pairs_in_the_narrow_type() -> None:
    net = at_task(2).float()
    x, y = tokens(net, 2, 7), tokens(net, 2, 7, seed=1)
    exact, _ = net(x, targets=y)
    with torch.autocast("cpu", torch.bfloat16):
        assert net.projections[0](torch.randn(4, 16)).dtype == torch.bfloat16
        narrow, aux = net(x, targets=y)
    aux["loss"].backward()
    torch.testing.assert_close(narrow.float(), exact, rtol=0.1, atol=0.1)
    assert net.projections[0].pairs[1].up.grad.dtype == torch.float32


# -------------------------------------------------------------------------------------------------------- the new space


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("task", [1, 2, 3])
def test_spaces_equal_those_of_the_references_subtraction_pass(task: int, normalize: bool) -> None:
    net = built(normalize_projector=normalize)
    net.begin_task(task - 1, batches(net, 0))  # what the network was doing before must not matter
    with torch.no_grad():
        expected = reference.spaces(batches(net, task), weights_of(net), net.config, task)
    net.begin_task(task, batches(net, task))
    for layer, space in zip(net.projections, expected, strict=True):
        torch.testing.assert_close(layer.projector, space, rtol=1e-8, atol=1e-9)
        assert 1 < torch.linalg.matrix_rank(space) < net.config.d_model


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 20), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_the_space_is_the_smallest_that_holds_the_threshold(
    width: int, count: int, threshold: float, seed: int
) -> None:
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mean = x.T @ x / count
    space = drift_resistant_space(mean, threshold, normalize=False)
    torch.testing.assert_close(space @ space, space)
    torch.testing.assert_close(space, space.T)
    kept = round(space.trace().item())
    values = torch.linalg.eigvalsh(mean).flip(0)
    held = (space @ mean).trace().item() / values.sum().item()
    assert kept >= 1
    assert held >= threshold - 1e-9
    assert held == pytest.approx((values[:kept].sum() / values.sum()).item())  # no other space of its size holds more
    assert kept == 1 or (values[: kept - 1].sum() / values.sum()).item() < threshold + 1e-9
    shrunk = drift_resistant_space(mean, threshold, normalize=True)
    torch.testing.assert_close(shrunk, space / math.sqrt(kept))


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_moment_without_finite_energy_restricts_nothing(value: float) -> None:
    moment = torch.full((4, 4), value, dtype=torch.float64)
    assert torch.equal(drift_resistant_space(moment, 0.9, normalize=True), torch.eye(4, dtype=torch.float64))


def test_a_task_without_batches_restricts_nothing() -> None:
    net = built()
    net.begin_task(1, [])
    assert all(torch.equal(layer.projector, torch.eye(16, dtype=torch.float64)) for layer in net.projections)
    assert net.task == 1


def test_beginning_a_task_changes_only_the_spaces_and_the_task() -> None:
    net = built(dropout=0.5, replay=True, replay_chunk_length=4)
    net.begin_task(1, batches(net, 1))
    optimizer = adam(net.train())
    train_step(net, optimizer, seed=0)
    backward(net, seed=5)  # leaves staged chunks and a clock inside a step
    net.trunk.blocks[0].eval()
    before = fingerprints(net, optimizer)
    clock = int(net.clock.step), int(net.clock.micro_step)
    net.begin_task(2, batches(net, 2))
    after = fingerprints(net, optimizer)
    moved = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    moved.discard("python")  # the checker of shapes in these tests draws from Python's generator
    assert moved == {
        "model.stage.task", *(f"model.trunk.blocks.{i}.mixer.qkv.projector" for i in range(net.config.num_layers))
    }  # fmt: skip
    assert clock == (int(net.clock.step), int(net.clock.micro_step)) == (1, 1)
    assert net.replay.num_staged == 2
    calm = copy.deepcopy(net).eval()
    calm.begin_task(2, batches(net, 2))
    for layer, same in zip(net.projections, calm.projections, strict=True):
        assert torch.equal(layer.projector, same.projector)  # dropout was off


def test_a_task_that_fails_to_begin_leaves_the_network_as_it_was() -> None:
    net = at_task(1)
    x = tokens(net, 2, 7)
    before, state = net(x)[0], copy.deepcopy(net.state_dict())
    with pytest.raises(UserError, match="max_positions"):
        net.begin_task(2, [batches(net, 2)[0], tokens(net, 1, 65)])
    assert torch.equal(net(x)[0], before)
    assert net.training
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())


def test_no_more_batches_are_drawn_than_asked_for() -> None:
    net = built(drs_batches=2)
    drawn = []

    def endless() -> Iterator[Tensor]:
        for number in itertools.count():
            drawn.append(number)
            yield tokens(net, 2, 5, seed=number)

    net.begin_task(0, endless())
    assert drawn == []
    net.begin_task(1, endless())
    assert drawn == [0, 1]


def test_more_tasks_than_adapters_are_refused_in_one_sentence() -> None:
    net = at_task(2, num_adapters=2)
    with pytest.raises(UserError, match=r"model.num_adapters=2: build the model with model.num_adapters=3 or more"):
        net.begin_task(3, batches(net, 3))
    assert net.task == 2


# ------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("normalize", [True, False])
def test_steps_equal_hand_written_adam_with_projected_updates(normalize: bool) -> None:
    net = at_task(2, normalize_projector=normalize)
    optimizer = adam(net)
    weights = weights_of(net)
    spaces = reference.spaces(batches(net, 2), weights, net.config, task=2)
    learning = [name for name in weights if pair_of(name) == 1]
    states = {
        name: reference.Adam(torch.zeros_like(weights[name]), torch.zeros_like(weights[name])) for name in learning
    }
    for step in range(3):
        x, y = tokens(net, 2, 6, step), tokens(net, 2, 6, step + 1)
        free = {name: tensor.detach().requires_grad_(name in learning) for name, tensor in weights.items()}
        next_token_loss(reference.forward(x, free, net.config, 2).logits, y).backward()
        for name in learning:
            update = states[name].step(free[name].grad, RATE, BETAS)
            space = spaces[int(name.split(".")[1])]
            moved = [u @ space if name.endswith("down") else space @ u for u in update]
            weights[name] = weights[name] + torch.stack(moved)
        train_step(net, optimizer, seed=step)
    for name, parameter in net.trunk.named_parameters():
        torch.testing.assert_close(parameter.detach(), weights[name], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "unfrozen"])
def test_only_what_should_learn_moves(freeze: bool) -> None:
    """Decay and momentum included: every tensor was trained on earlier tasks with the same optimizer."""
    net = built(freeze_backbone=freeze)
    optimizer = adam(net)
    for task in range(3):
        net.begin_task(task, batches(net, task))
        begun = weights_of(net)
        for step in range(2):
            train_step(net, optimizer, seed=step)
        for name, parameter in net.trunk.named_parameters():
            pair = pair_of(name)
            learns = (task == 0 or not freeze) if pair is None else pair == task - 1
            assert torch.equal(parameter, begun[name]) != learns, (task, name)


def test_tensors_frozen_between_backward_and_step_do_not_move() -> None:
    net = built()
    optimizer = adam(net)
    train_step(net, optimizer, seed=0)  # gradients are left behind
    net.begin_task(1, batches(net, 1))
    begun = weights_of(net)
    optimizer.step()
    assert all(torch.equal(tensor, begun[name]) for name, tensor in weights_of(net).items())


def test_a_discarded_step_leaves_no_snapshot_behind() -> None:
    net, other = at_task(1), at_task(1)
    optimizers = adam(net), adam(other)
    for model, optimizer in zip((net, other), optimizers, strict=True):
        train_step(model, optimizer, seed=0)
    net.flush_pending_write()
    net.discard_pending_write()
    with torch.no_grad():
        net.projections[0].pairs[0].down.add_(1.0)
        other.projections[0].pairs[0].down.add_(1.0)
    net.update_slow_targets()  # must not take the change for an update
    other.clock.set(2, 0)
    for model, optimizer in zip((net, other), optimizers, strict=True):
        train_step(model, optimizer, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "unfrozen"])
@pytest.mark.parametrize("task", [0, 1, 3])
def test_a_resumed_network_takes_the_same_next_steps_to_the_bit(task: int, freeze: bool) -> None:
    net = built(freeze_backbone=freeze)
    optimizer = adam(net)
    for earlier in range(task + 1):
        net.begin_task(earlier, batches(net, earlier))
        train_step(net, optimizer, seed=earlier)
    saved = safetensors.torch.save({**net.state_dict(), **pack_optimizer(optimizer)})

    resumed = lora_drs.build(net.config, torch.Generator().manual_seed(9)).double().train()
    optimizer_again = adam(resumed)
    tensors = safetensors.torch.load(saved)
    resumed.load_state_dict({name: tensors[name] for name in net.state_dict()})
    unpack_optimizer(optimizer_again, tensors)
    assert resumed.task == task
    assert resumed.untrained_parameters() == net.untrained_parameters()
    flags = [p.requires_grad for p in net.parameters()]
    assert [p.requires_grad for p in resumed.parameters()] == flags
    for model, its in ((net, optimizer), (resumed, optimizer_again)):
        for step in range(2):
            train_step(model, its, seed=10 + step)
        model.begin_task(min(task + 1, 3), batches(model, 4))
        train_step(model, its, seed=20)
    state, other = net.state_dict(), resumed.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)


def test_loading_over_a_later_task_goes_back_to_an_earlier_one() -> None:
    early, late = at_task(1), at_task(3)
    late.load_state_dict(early.state_dict())
    assert [p.requires_grad for p in late.parameters()] == [p.requires_grad for p in early.parameters()]
    x = tokens(early, 2, 7)
    assert torch.equal(late(x)[0], early(x)[0])
    late.load_state_dict(built().state_dict())
    assert all(p.requires_grad for p in late.parameters())


def test_waiting_adapters_are_those_that_no_loss_reaches() -> None:
    for task in range(4):
        net = at_task(task)
        names = {name for name, _ in net.named_parameters() if (pair_of(name) or 0) >= task and ".pairs." in name}
        assert set(net.untrained_parameters()) == names
        assert len(names) == 2 * net.config.num_layers * (3 - task)
        backward(net, seed=0)
        named = dict(net.named_parameters())
        without = {name for name, p in named.items() if p.requires_grad and p.grad is None}
        assert without == {name for name in names if named[name].requires_grad}
        assert without == (names if task == 0 else set())
        assert net.unused_parameters() == []


def test_pairs_refuse_weight_decay_and_nothing_else_does() -> None:
    net = lora_drs.build(tiny())
    moved = lora_drs.build(tiny()).to(torch.float64)
    moved.load_state_dict(net.state_dict(), assign=True)
    for model in (net, moved):
        assert set(model.tensors_without_decay()) == {name for name, _ in model.named_parameters() if ".pairs." in name}


# ---------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("d_model", "num_layers", "rank", "num_adapters", "millions"),
    [(512, 38, 4, 1, 156.106), (768, 30, 2, 3, 252.320), (1024, 18, 4, 2, 284.350)],
)
def test_parameters_are_those_of_the_papers_table(
    d_model: int, num_layers: int, rank: int, num_adapters: int, millions: float
) -> None:
    with torch.device("meta"):
        net = lora_drs.build(
            LoraDRSConfig(d_model=d_model, num_layers=num_layers, rank=rank, num_adapters=num_adapters)
        )
    assert round(sum(p.numel() for p in net.parameters()) / 1e6, 3) == millions
    assert net.stage.task.device.type == "cpu"
