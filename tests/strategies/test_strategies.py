"""EWC, A-GEM and L2: their formulas by hand, and bit-exact resume inside the trainer."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.conftest import excited, tiny_config, tokens
from trc2 import CortexNet, RunConfig, UserError
from trc2.backbones.lora_drs import LoraDRSConfig
from trc2.backbones.registry import build_model
from trc2.config import strategy_config, strategy_names
from trc2.config.strategy import SHORTHANDS
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint
from trc2.runs.records import current, read_all_records
from trc2.strategies import Strategy, agem, build_strategy, ewc, l2, none
from trc2.training.resume import resume_run
from trc2.training.setup import start_run


def net(**changes: object) -> CortexNet:
    return excited(CortexNet(tiny_config(**changes))).double().train()


def rows(model: CortexNet, count: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = tokens(model.config, count, 11, seed)
    return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def accumulate(model: CortexNet, seed: int = 1) -> dict[str, torch.Tensor]:
    x, y = rows(model, seed=seed)
    model.zero_grad()
    model(x, y)[1]["loss"].backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_every_file_is_a_strategy_that_is_built_from_its_own_settings() -> None:
    assert {"agem", "ewc", "l2", "none"} <= set(strategy_names())
    for name in strategy_names():
        module = import_module(f"trc2.strategies.{name}")
        settings = strategy_config({"name": name})
        assert type(settings) is module.Settings
        strategy = build_strategy(settings, net())
        assert type(strategy) is module.build
        assert (type(strategy) is Strategy) == (name == "none"), "a file without a class of its own does nothing"


def test_none_leaves_gradients_alone() -> None:
    model = net()
    strategy = build_strategy(none.Settings(), model)
    strategy.end_task([rows(model)])
    before = accumulate(model)
    assert strategy.correct_gradients(0) == {}
    assert all(torch.equal(before[n], p.grad) for n, p in model.named_parameters() if n in before)


def test_l2_adds_the_gradient_of_its_penalty() -> None:
    model = net()
    strategy = l2.PullToBoundary(model, l2.Settings(strength=0.3))
    accumulate(model)
    assert strategy.correct_gradients(0) == {}  # no boundary yet
    strategy.end_task([])
    anchor = {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    before = accumulate(model)
    reported = strategy.correct_gradients(1)["strategy/penalty"]
    penalty = 0.0
    for name, p in model.named_parameters():
        if name in before:
            away = p.detach() - anchor[name]
            torch.testing.assert_close(p.grad, before[name] + 0.3 * away)
            penalty += 0.15 * float(away.square().sum())
    assert reported == pytest.approx(penalty)


def test_fisher_is_the_mean_square_of_each_sequences_gradient() -> None:
    model = net()
    strategy = ewc.ElasticWeights(model, ewc.Settings(strength=1.0, decay=0.5, fisher_sequences=4))
    x, y = rows(model, 6)
    strategy.end_task([(x, y)])  # only four of the six sequences are used
    expected = torch.zeros_like(model.cortex.embedding.weight)
    for i in range(4):
        model.eval()
        model.zero_grad()
        logits, _ = model(x[i : i + 1])
        loss = torch.nn.functional.cross_entropy(logits[0], y[i], reduction="sum")
        (gradient,) = torch.autograd.grad(loss, model.cortex.embedding.weight)
        expected += gradient.square() / y.shape[1] / 4
    found = strategy.tensors["fisher.cortex.embedding.weight"]
    torch.testing.assert_close(found, expected)
    strategy.end_task([(x, y)])
    torch.testing.assert_close(strategy.tensors["fisher.cortex.embedding.weight"], 1.5 * expected)


def test_ewc_pulls_important_weights_only() -> None:
    model = net()
    strategy = ewc.ElasticWeights(model, ewc.Settings(strength=2.0, decay=1.0, fisher_sequences=2))
    strategy.end_task([rows(model)])
    name = "cortex.embedding.weight"
    anchor = model.cortex.embedding.weight.detach().clone()
    with torch.no_grad():
        model.cortex.embedding.weight.add_(0.2)
    before = accumulate(model)
    strategy.correct_gradients(3)
    pull = 2.0 * strategy.tensors[f"fisher.{name}"] * (model.cortex.embedding.weight.detach() - anchor)
    torch.testing.assert_close(model.cortex.embedding.weight.grad, before[name] + pull)


def test_a_strength_of_avalanche_is_ours_times_half_the_tokens() -> None:
    """Avalanche: λ Σ g² (θ − θ*)² with g the gradient of the mean loss. Ours is equal for λ = 2 λ_Avalanche / T."""
    model, name = net(), "cortex.embedding.weight"
    x, y = rows(model, 1)
    theirs = 0.7
    strategy = ewc.ElasticWeights(model, ewc.Settings(strength=2 * theirs / y.shape[1], decay=1.0, fisher_sequences=1))
    strategy.end_task([(x, y)])
    mean_gradient = strategy.language_gradients(x, y)[name]
    with torch.no_grad():
        model.cortex.embedding.weight.add_(0.2)
    before = accumulate(model)[name]
    strategy.correct_gradients(1)
    pull = 2 * theirs * mean_gradient.square() * 0.2
    torch.testing.assert_close(model.cortex.embedding.weight.grad - before, pull)


def test_a_pair_that_waits_for_its_task_is_anchored_where_it_was_drawn() -> None:
    model = build_model(LoraDRSConfig(vocab_size=29, d_model=16, num_layers=2, num_heads=4, max_positions=64))
    strategy = l2.PullToBoundary(model, l2.Settings(strength=0.5))
    strategy.end_task([])
    model.begin_task(1, [tokens(model.config, 2, 11)])
    (layer, *_) = model.projections
    down = layer.pairs[0].down
    name = next(name for name, parameter in model.named_parameters() if parameter is down)
    assert torch.equal(strategy.tensors[f"anchor.{name}"], down)
    with torch.no_grad():
        down.add_(0.1)
    down.grad = torch.zeros_like(down)
    strategy.correct_gradients(1)
    torch.testing.assert_close(down.grad, torch.full_like(down, 0.05))


def test_agem_never_leaves_a_step_that_works_against_the_memory() -> None:
    model = net(replay_coefficient=0.0)
    strategy = agem.AveragedGradientMemory(model, agem.Settings(chunks=4))
    accumulate(model)
    assert strategy.correct_gradients(0) == {}  # the first task has no past
    model.flush_pending_write()
    strategy.end_task([])
    conflicts = 0
    for step in range(1, 12):
        before = accumulate(model, seed=step)
        chunks = model.replay.draw(4, 1.0, "agem", step)
        reference = strategy.language_gradients(chunks[:, :-1].contiguous(), chunks[:, 1:].contiguous())
        along = sum(float((before[n] * g).sum()) for n, g in reference.items() if n in before)
        if step % 2:  # make a conflict: turn the gradient round
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.neg_()
            along = -along
        metrics = strategy.correct_gradients(step)
        after = sum(float((p.grad * reference[n]).sum()) for n, p in model.named_parameters() if n in reference)
        assert metrics["strategy/conflict"] == float(along < 0)
        assert after == pytest.approx(max(0.0, along), abs=1e-8)
        conflicts += along < 0
        model.discard_pending_write()
    assert 0 < conflicts < 11


def test_a_reference_gradient_leaves_no_trace() -> None:
    model = net()
    strategy = Strategy(model, none.Settings())
    accumulate(model)
    waiting = list(model.pending)
    assert waiting
    before = {n: t.clone() for n, t in (*model.named_parameters(), *model.named_buffers())}
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    strategy.language_gradients(*rows(model, seed=5))
    assert model.training
    assert all(ours is theirs for ours, theirs in zip(model.pending, waiting, strict=True))
    assert all(torch.equal(before[n], t) for n, t in (*model.named_parameters(), *model.named_buffers()))
    assert all(torch.equal(g, dict(model.named_parameters())[n].grad) for n, g in gradients.items())


def test_an_unknown_strategy_gets_a_hint() -> None:
    with pytest.raises(UserError, match="no strategy 'ewcc': did you mean 'ewc'"):
        strategy_config({"name": "ewcc"})
    with pytest.raises(UserError, match="no strategy 'base'"):  # what they share is none
        strategy_config({"name": "base"})
    with pytest.raises(UserError, match="Unknown setting 'strenght': did you mean 'strength'"):
        strategy_config({"name": "l2", "strenght": 1})


@pytest.mark.parametrize("name", [*SHORTHANDS, *(name for name in strategy_names() if name != "none")])
def test_it_trains_a_transformer_and_resumes_to_the_bit(
    name: str, tiny_run: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Stopped after the boundary and resumed from there, the run ends as the undisturbed one."""
    sizes = {"vocab_size": 300, "d_model": 16, "num_layers": 2, "num_heads": 4, "max_positions": 32}
    stores = {"replay_chunk_length": 8, "replay_recent_chunks": 4, "replay_long_chunks": 6}
    model = {"name": "transformer", "replay": name == "slow_cortex", **sizes, **stores}
    config = tiny_run(eval={"text_sequences": 0})
    control = {"every_steps": 4}
    values = {
        **config.model_dump(),
        "model": model,
        "control": control,
        "strategy": {"name": name} | {"ewc": {"fisher_sequences": 3}, "der": {"chunk_length": 8}}.get(name, {}),
    }
    whole = RunConfig(**{**values, "output": {**values["output"], "folder": tmp_path / "whole"}})
    start_run(whole, Console(quiet=True))
    end = load_checkpoint(list_checkpoints(tmp_path / "whole" / "checkpoints")[-1])
    for checkpoint in list_checkpoints(tmp_path / "whole" / "checkpoints"):
        if int(checkpoint.name.split("-")[1]) > 8:
            for file in checkpoint.iterdir():
                file.unlink()
            checkpoint.rmdir()
    metrics_log = tmp_path / "whole" / "metrics.jsonl"
    kept = [line for line in metrics_log.read_text().splitlines() if '"end"' not in line]
    metrics_log.write_text("\n".join(kept) + "\n")
    resume_run(tmp_path / "whole", [], Console(quiet=True))
    again = load_checkpoint(list_checkpoints(tmp_path / "whole" / "checkpoints")[-1])
    assert again.step == end.step == 12
    assert again.tensors.keys() == end.tensors.keys()
    assert all(torch.equal(again.tensors[key], end.tensors[key]) for key in end.tensors)
    has_state = any(key.startswith("strategy.") for key in end.tensors)
    assert name in strategy_names() or not has_state, "a shorthand is not a strategy"
    metrics = {
        key for record in current(read_all_records(metrics_log)) if record.kind == "train" for key in record.metrics
    }
    written = {"slow_cortex": "train/loss_distil", "lwf": "train/loss_lwf", "der": "train/loss_der"}.get(
        name, "strategy/" if name in strategy_names() else "replay/coefficient"
    )
    assert any(key.startswith(written) for key in metrics)
