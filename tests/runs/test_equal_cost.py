"""Budgets: equal steps, equal tokens with replay, equal FLOPs with replay. Bounds: joint and single-task streams."""

from __future__ import annotations

import json

import pytest

from tests.conftest import QUIET, MakeRun
from trc2 import UserError, load_recipe
from trc2.backbones.registry import step_cost
from trc2.nn.cost import Cost
from trc2.report.run import read_run
from trc2.runs.equal_cost import budget_of
from trc2.runs.folder import RunFolder
from trc2.runs.schedule import TaskSchedule
from trc2.stream.batches import Mixture
from trc2.training.loop import Trainer
from trc2.training.setup import prepare_with_progress, start_run


def test_steps_are_the_recipes_own() -> None:
    assert budget_of(load_recipe("lab_trc2")).scale == 1.0


def test_tokens_count_replayed_ones() -> None:
    run = load_recipe("lab_transformer", ["strategy=replay", "budget.match=tokens"])
    budget = budget_of(run)
    replayed = run.model.replay_batch_size * (run.model.replay_chunk_length - 1)
    assert budget.replayed_tokens_per_step == replayed
    assert budget.scale == pytest.approx(2048 / (2048 + replayed))
    assert TaskSchedule.of_run(run).steps == tuple(round(task.steps * budget.scale) for task in run.stream.tasks)
    assert budget_of(load_recipe("lab_transformer", ["budget.match=tokens"])).scale == 1.0


def test_flops_equal_those_of_the_reference() -> None:
    run = load_recipe("lab_moe", ["strategy=replay", "budget.match=flops", "budget.reference=lab_transformer"])
    reference = load_recipe("lab_transformer")
    theirs = sum(step_cost(reference.model, 16, 128, with_replay=False).values(), Cost()).training
    ours = sum(step_cost(run.model, 16, 128, with_replay=True).values(), Cost()).training
    assert budget_of(run).scale == pytest.approx(theirs / ours)
    assert budget_of(run).training_flops_per_step == pytest.approx(ours)
    lean = ["model.replay=false", "model.replay_share=null", "budget.match=flops", "budget.reference=demo_large_share"]
    best, without = budget_of(load_recipe("demo_large_share")), budget_of(load_recipe("demo_large_share", lean))
    ratio = best.training_flops_per_step / without.training_flops_per_step
    assert ratio > 1.5
    assert without.scale == pytest.approx(ratio), "with its own replay, not with ours"
    with pytest.raises(UserError, match=r"needs a budget\.reference"):
        budget_of(load_recipe("lab_moe", ["budget.match=flops"]))


def test_the_run_folder_tells_the_budget(tiny_run: MakeRun) -> None:
    folder = start_run(tiny_run(budget={"match": "tokens"}, eval={"text_sequences": 0}), QUIET)
    told = json.loads((folder / "budget.json").read_text())
    assert told["match"] == "tokens"
    assert told["scale"] < 1
    assert read_run(folder).spans[-1].end == round(6 * told["scale"]) * 2


# ------------------------------------------------------------------------------------------------------------- bounds


def test_a_mixture_gives_every_task_the_sequences_of_its_own_steps(tiny_run: MakeRun) -> None:
    config = tiny_run(stream={**tiny_run().stream.model_dump(), "mode": "joint"})
    trainer = Trainer(config, prepare_with_progress(config, QUIET), RunFolder(config.output.folder), [])
    assert isinstance(trainer.stream_data.mixture, Mixture)
    mixed: list[tuple[int, tuple[int, ...]]] = []
    for step in range(trainer.schedule.total_steps):
        for batch in trainer.stream_data.batches(step):
            assert batch.x.shape == (2, 16)
            mixed += [(int(t), tuple(x.tolist())) for t, x in zip(batch.origin.task, batch.x, strict=True)]
    apart = [
        (index, tuple(x.tolist()))
        for index, data in enumerate(trainer.stream_data.tasks.values())
        for step in range(6)
        for batch in data.train_batches(step)
        for x in batch.x
    ]
    assert sorted(mixed) == sorted(apart)
    assert len({task for task, _ in mixed[:8]}) == 2  # shuffled, not one after the other


def test_a_joint_run_measures_all_tasks_and_forgets_nothing(tiny_run: MakeRun) -> None:
    config = tiny_run(stream={**tiny_run().stream.model_dump(), "mode": "joint"}, eval={"text_sequences": 0})
    run = read_run(start_run(config, QUIET))
    assert [(s.start, s.end) for s in run.spans] == [(0, 12), (0, 12)]
    assert set(run.tables["perplexity"].scores[12]) == {"fruit", "tools"}
    assert "cl/perplexity/forgetting" not in run.summary()


def test_a_single_task_run_keeps_the_tokenizer_and_still_measures_the_others(
    tiny_run: MakeRun,
) -> None:
    stream = tiny_run().stream.model_dump()
    single = read_run(start_run(tiny_run(stream={**stream, "only": ["tools"]}, eval={"text_sequences": 0}), QUIET))
    assert [(s.task, s.start, s.end) for s in single.spans] == [("tools", 0, 6)]
    assert set(single.tables["perplexity"].scores[6]) == {"fruit", "tools"}
    with pytest.raises(UserError, match=r"only names 'tool', which is not a task: did you mean 'tools'"):
        tiny_run(stream={**stream, "only": ["tool"]})
