"""Every recipe is valid, builds, and takes a step."""

from __future__ import annotations

import pytest
import torch

from trc2 import TRC2Config, load_recipe
from trc2.backbones.registry import build_model
from trc2.backbones.saved import outline
from trc2.config import MODELS, family_names, recipe_names
from trc2.costs.parameters import active_parameters
from trc2.runs.schedule import TaskSchedule
from trc2.training.optimizer import build_optimizer

SMALL = [name for name in recipe_names() if not name.startswith("paper_") or name == "paper_compact"]


@pytest.mark.parametrize("name", recipe_names())
def test_it_builds_and_its_lengths_fit(name: str) -> None:
    run = load_recipe(name)
    assert sum(parameter.numel() for parameter in outline(run.model).parameters()) > 10_000
    if run.stream is not None:
        assert TaskSchedule.of_run(run).total_steps == sum(task.steps for task in run.stream.trained)


@pytest.mark.parametrize("name", SMALL)
def test_it_takes_a_step(name: str) -> None:
    run = load_recipe(name)
    net = build_model(run.model)
    optimizer = build_optimizer(net, run.train)
    x = torch.randint(run.model.vocab_size, (2, run.model.replay_chunk_length + 1))  # a chunk is what replay needs
    before = net.get_input_embeddings().weight.detach().clone()
    for _ in range(2):  # the second step replays, where the recipe does
        _, aux = net(x[:, :-1], targets=x[:, 1:], return_logits=False)
        aux["loss"].backward()
        net.flush_pending_write()
        optimizer.step()
        optimizer.zero_grad()
        net.update_slow_targets()
    assert torch.isfinite(aux["loss"])
    assert not torch.equal(net.get_input_embeddings().weight, before)
    assert (aux["loss_replay"].item() > 0) == run.model.replay


def test_the_papers_recipe_is_the_papers() -> None:
    run = load_recipe("paper_d768_l4")
    train = run.train
    assert train.tokens_per_step == 131_072
    assert TaskSchedule.of(run.stream, train).total_steps == 22_000
    assert (train.learning_rate, train.betas, train.weight_decay, train.clip_norm) == (2e-4, (0.9, 0.95), 0.1, 1.0)
    assert (train.schedule, train.warmup_steps, train.min_lr_ratio) == ("stream", 1000, 0.0)
    assert (run.control.every_steps, run.stream.control_batches) == (240, 5)
    # C4's validation is cut, the others are whole.
    assert [task.max_eval_bytes for task in run.stream.tasks] == [5_000_000, None, None]
    assert run.eval.max_batches is None
    assert [task.name for task in run.stream.tasks] == ["c4", "wikitext", "gsm8k"]


def test_text_is_scored_at_every_evaluation_where_the_paper_compares_its_areas() -> None:
    for name in (n for n in recipe_names() if n.startswith("paper_") and n != "paper_compact"):
        run = load_recipe(name)
        assert run.eval.text_metrics_at == "always", name
        assert run.eval.text_sequences > 0, name


def test_the_active_bodies_of_the_lab_family_are_within_two_percent_of_each_other() -> None:
    bodies = {name: active_parameters(load_recipe(name).model)[1] for name in family_names("lab")}
    assert len(bodies) == len(MODELS) - 1  # any Hugging Face model is as large as it is
    assert max(bodies.values()) <= 1.02 * min(bodies.values()), bodies


def test_ablations_cover_all_eight_combinations() -> None:
    switches = {
        (m.thalamus, m.memory, m.replay)
        for m in (load_recipe(name).model for name in recipe_names() if name.startswith("lab_"))
        if isinstance(m, TRC2Config)
    }
    assert len(switches) == 8
