"""Slow cortex, LwF and DER++: their formulas by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rich.console import Console
from torch.nn import functional as F

from tests.conftest import excited, tiny_config, tokens
from trc2 import CortexNet, RunConfig, UserError
from trc2.backbones.registry import step_cost
from trc2.distributed.group import ALONE
from trc2.nn.head import AnyHead, Head, divergence_sum
from trc2.nn.segments import pack
from trc2.ops import head_loss
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint
from trc2.runs.equal_cost import budget_of, equal_budgets
from trc2.runs.folder import RunFolder
from trc2.strategies import der, lwf, slow_cortex
from trc2.training.evaluation import add_up_losses
from trc2.training.setup import start_run


def net(**changes: object) -> CortexNet:
    model = excited(CortexNet(tiny_config(**changes))).double().train()
    model.replay.commit(tokens(model.config, 6, 5, seed=3).int())
    return model


def rows(model: CortexNet, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = tokens(model.config, 2, 9, seed)
    return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def move(model: CortexNet, amount: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(amount)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_divergence_is_kl_and_chunks_change_nothing(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    hidden, wanted = (torch.randn(7, 4, generator=rng, dtype=torch.float64) for _ in range(2))
    weights = [torch.randn(11, 4, generator=rng, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    hidden.requires_grad_()
    p = F.softmax(wanted @ weights[1].T / temperature, -1).detach()
    q = F.softmax(hidden @ weights[0].T / temperature, -1)
    expected = temperature**2 * (p * (p.log() - q.log())).sum()
    expected_gradients = torch.autograd.grad(expected, (hidden, weights[0]))
    for size in (2**22, 22):  # at once, and two rows at a time
        monkeypatch.setitem(head_loss.CHUNK_ELEMENTS, "cpu", size)
        for head in (Head(weights[0]), AnyHead(weights[0], lambda states: states @ weights[0].T)):
            found = divergence_sum(head, hidden, Head(weights[1]), wanted, temperature)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(torch.autograd.grad(found, (hidden, weights[0])), expected_gradients)
    assert weights[1].grad is None


def test_the_average_follows_by_its_age_and_shares_the_memory() -> None:
    model = net()
    strategy = slow_cortex.SlowCortex(model, slow_cortex.Settings(decay=0.5))
    name = "embedding.weight"
    expected = model.trunk.embedding.weight.detach().clone()
    for age in range(1, 12):
        move(model, 0.1)
        strategy.after_step()
        decay = min(0.5, (1 + age) / (10 + age))
        expected = decay * expected + (1 - decay) * model.trunk.embedding.weight.detach()
        torch.testing.assert_close(strategy.tensors[f"average.{name}"], expected)
    ours, theirs = model.trunk.hippocampus, strategy.teacher.trunk.hippocampus
    assert ours.keys is theirs.keys, "a memory is read, not copied"
    assert not any(parameter.requires_grad for parameter in strategy.teacher.trunk.parameters())


def test_distillation_weighs_as_replay_does() -> None:
    model = net(replay_coefficient=0.3)
    x, y = rows(model)

    def losses() -> dict[str, torch.Tensor]:
        model.skip_step()
        model.clock.set(0, 0)  # the same draws every time
        return {name: value.detach() for name, value in model(x, y)[1].items()}

    strategy = slow_cortex.SlowCortex(model, slow_cortex.Settings(distil=2.0))
    move(model, 0.05)
    plain = losses()
    model.more_losses = strategy.losses
    taught = losses()
    chunks = model.replay.sample(0, 0)
    with torch.no_grad():
        found = F.log_softmax(model.logits(model.trunk(pack([x, chunks[:, :-1]])).hidden[x.numel() :]), -1)
        wanted = F.log_softmax(strategy.teacher.trunk.head.logits(strategy.teacher.states(chunks[:, :-1])), -1)
    torch.testing.assert_close(taught["loss_distil"], (wanted.exp() * (wanted - found)).sum(-1).mean())
    torch.testing.assert_close(taught["loss"], plain["loss"] + 2.0 * 0.3 * taught["loss_distil"])
    assert plain.keys() | {"loss_distil"} == taught.keys()
    model.eval()
    assert "loss_distil" not in model(x, y)[1], "an evaluation has no teacher"
    strategy.teacher.follow(1.0)
    model.train()
    assert float(losses()["loss_distil"]) == pytest.approx(0.0, abs=1e-12)


def test_serving_swaps_the_weights_and_settling_keeps_them() -> None:
    model = net()
    strategy = slow_cortex.SlowCortex(model, slow_cortex.Settings(serve=True))
    average = {name: tensor.clone() for name, tensor in strategy.teacher.tensors.items()}
    move(model, 0.2)
    trained = {name: p.detach().clone() for name, p in model.trunk.named_parameters()}
    with strategy.evaluation_weights():
        assert all(torch.equal(p, average[n]) for n, p in model.trunk.named_parameters() if n in average)
    assert all(torch.equal(p, trained[n]) for n, p in model.trunk.named_parameters())
    strategy.apply_evaluation_weights()
    torch.testing.assert_close(
        {n: p.detach() for n, p in model.trunk.named_parameters() if n in average}, average, rtol=1e-12, atol=1e-12
    )


def test_a_pull_goes_part_of_the_way() -> None:
    model = net()
    strategy = slow_cortex.SlowCortex(model, slow_cortex.Settings(decay=0.999, pull_every=2, pull=0.25))
    weight = model.trunk.embedding.weight
    move(model, 1.0)
    strategy.after_step()
    before = weight.detach().clone()
    strategy.after_step()  # the second step: first the average follows, then the model is pulled
    average = strategy.tensors["average.embedding.weight"]
    torch.testing.assert_close(weight.detach(), before + 0.25 * (average - before))


def test_slow_cortex_without_replay_is_refused() -> None:
    values = {"model": {"name": "transformer"}, "strategy": {"name": "slow_cortex"}}
    with pytest.raises(UserError, match=r"strategy.distil=1.0 teaches on replayed chunks.*model.replay=true"):
        RunConfig(**values)
    RunConfig(**{**values, "strategy": {"name": "slow_cortex", "distil": 0, "serve": True}})


def test_rows_too_long_to_be_stored_are_refused() -> None:
    values = {"model": {"name": "transformer"}, "strategy": {"name": "der", "chunk_length": 200}}
    with pytest.raises(UserError, match=r"strategy.chunk_length=200 is longer than train.sequence_length=128"):
        RunConfig(**values)


def test_a_teacher_costs_its_forward_passes_and_old_text_is_paid_for_whoever_draws_it() -> None:
    model = {"name": "transformer", "replay": True, "replay_batch_size": 4, "replay_chunk_length": 65}
    runs = {
        name: RunConfig(model=model, strategy={"name": name}) for name in ("none", "slow_cortex", "lwf", "der", "agem")
    }
    costs = {name: budget_of(run).training_flops_per_step for name, run in runs.items()}
    batch, replayed = 8 * 128, 4 * 64
    passes = step_cost(runs["none"].model, 8, 128, with_replay=False)
    per_token = sum(cost.forward for cost in passes.values()) / batch
    extra = {name: (cost - costs["none"]) / per_token for name, cost in costs.items()}
    own = {"der": 2 * 4 * 63, "agem": 8 * 64}
    learned = sum(cost.training for cost in passes.values()) / sum(cost.forward for cost in passes.values())
    expected = {"none": 0, "slow_cortex": replayed, "lwf": batch, **{name: learned * n for name, n in own.items()}}
    assert extra == pytest.approx(expected)
    tokens = {name: budget_of(run).replayed_tokens_per_step - replayed for name, run in runs.items()}
    assert tokens == {"none": 0, "slow_cortex": 0, "lwf": 0, **own}


def test_work_is_equal_by_new_tokens_by_all_tokens_or_by_arithmetic() -> None:
    def run(rows: int, strategy: str = "none", **model: object) -> RunConfig:
        settings = {"name": "transformer", "replay": True, "replay_chunk_length": 64, **model}
        mode = {"mode": "fixed"} if "replay_share" in model else {}
        return RunConfig(model=settings, train={"batch_size": rows}, strategy={"name": strategy}, control=mode)

    paper = run(16)

    def equal_work(a: RunConfig, b: RunConfig) -> bool:
        return equal_budgets(budget_of(a), budget_of(b))

    assert equal_work(paper, run(16, replay=False)), "as many new tokens"
    assert equal_work(paper, run(10, replay_share=0.4444)), "as many with the replayed ones"
    assert equal_work(run(10, replay_share=0.4444), run(9, "slow_cortex", replay_share=0.4444)), "as many FLOPs"
    assert not equal_work(paper, run(16 + 1, replay_share=0.4444))
    assert not equal_work(paper, run(12))


def test_lwf_asks_the_model_of_the_last_boundary_about_new_text() -> None:
    model = net()
    strategy = lwf.LearningWithoutForgetting(model, lwf.Settings(strength=0.7, temperature=2.0))
    model.more_losses = strategy.losses
    x, y = rows(model)
    y[0, :3] = -100
    assert "loss_lwf" not in model(x, y)[1]
    strategy.end_task([])
    with torch.no_grad():
        wanted = F.softmax(model.logits(strategy.teacher.states(x)) / 2.0, -1)
    move(model, 0.05)
    model.skip_step()
    aux = model(x, y)[1]
    with torch.no_grad():
        hidden = model.trunk(pack([x])).hidden
        found = F.softmax(model.logits(hidden) / 2.0, -1)
        kl = (wanted * (wanted.log() - found.log())).sum(-1)
    labelled = (y != -100).reshape(-1)
    torch.testing.assert_close(aux["loss_lwf"].detach(), 4.0 * kl[labelled].mean())


def test_der_keeps_the_logits_of_when_a_row_was_stored() -> None:
    model = excited(CortexNet(tiny_config(replay=False))).double().train()
    settings = der.Settings(alpha=0.4, beta=0.6, chunks=3, chunk_length=6, batch_size=2, top_k=1000)
    strategy = der.DarkExperience(model, settings)
    model.more_losses = strategy.losses
    x, y = rows(model)
    assert "loss_der" not in model(x, y)[1]
    with torch.no_grad():
        logits = model.logits(model.trunk(pack([x])).hidden).unflatten(0, x.shape)[:, :5].float()
    model.commit(), model.after_step(), strategy.after_step()
    stored = torch.zeros_like(logits).scatter(2, strategy.tensors["names"][:2].long(), strategy.tensors["logits"][:2])
    torch.testing.assert_close(stored, logits)
    assert torch.equal(strategy.tensors["tokens"][:2], x[:, :6])
    move(model, 0.05)
    aux = model(x, y)[1]
    model.clock.set(1, 0)
    first, second = strategy._draw("alpha"), strategy._draw("beta")
    with torch.no_grad():
        now = model.logits(model.trunk(pack([x[:, :5]])).hidden).unflatten(0, (2, 5)).float()
        torch.testing.assert_close(aux["loss_der"].detach(), (now - logits)[first].square().mean())
        text = F.cross_entropy(now[second].flatten(0, 1), x[second, 1:6].reshape(-1))
    torch.testing.assert_close(aux["loss_der_text"].float().detach(), text)
    strategy.skip_step()
    strategy.after_step()
    assert int(strategy.tensors["seen"]) == 2, "a step that came to nothing leaves nothing"


def test_the_served_average_is_what_eval_and_export_read(tiny_run: Callable[..., RunConfig]) -> None:
    config = tiny_run(eval={"text_sequences": 0}, strategy={"name": "slow_cortex", "serve": True, "decay": 0.9})
    start_run(config, Console(quiet=True))
    folder = RunFolder(config.output.folder)
    end = load_checkpoint(list_checkpoints(folder.checkpoints)[-1])
    served, _ = folder.model(print)
    name = "embedding.weight"
    weight = dict(served.trunk.named_parameters())[name]
    assert torch.allclose(weight, end.tensors[f"strategy.average.{name}"])
    assert not torch.allclose(weight, end.tensors[f"model.cortex.{name}"])


def test_losses_of_a_step_are_added_up_by_name_though_some_micro_batches_replay_nothing() -> None:
    model = net()
    strategy = slow_cortex.SlowCortex(model, slow_cortex.Settings())
    model.more_losses = strategy.losses
    told = []
    for coefficient in (0.3, 0.0):
        model.replay.set_strength(coefficient, 4, 0.5)
        told.append({name: float(value.detach()) for name, value in model(*rows(model))[1].items()})
    losses, _ = add_up_losses(ALONE, told, 7.0)
    assert losses == {name: told[0][name] + told[1][name] for name in told[0]}
    with pytest.raises(UserError, match="Only some micro-batches of a step have a 'b'"):
        add_up_losses(ALONE, [{"a": 1.0}, {"a": 1.0, "b": 2.0}], 7.0)


@pytest.mark.parametrize("name", ["slow_cortex", "lwf"])
def test_a_model_of_which_no_copy_stays_one_has_no_teacher(name: str) -> None:
    with pytest.raises(UserError, match="model=lora_drs trains other weights in every task"):
        RunConfig(model={"name": "lora_drs", "replay": True}, strategy={"name": name})


def test_a_teacher_does_not_judge_replay_without_feedback() -> None:
    with pytest.raises(UserError, match=r"model\.replay_path=cortex replays it without"):
        RunConfig(model={"replay_path": "cortex"}, strategy={"name": "slow_cortex"})
