"""The trainer end to end on a stream of a few hundred words, with the check for side effects of evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import QUIET, MakeRun, write_task
from trc2 import CortexNet
from trc2.config import RunConfig
from trc2.errors import UserError
from trc2.evaluation.tasks import control_perplexity, score_task
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint, step_of
from trc2.runs.folder import RunFolder
from trc2.runs.records import Record, current, read_all_records
from trc2.stream.prepare import prepare_stream
from trc2.training.guards import EvaluationMovedState
from trc2.training.loop import Trainer
from trc2.training.setup import start_run


class Notes:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def see(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass


def trainer(config: RunConfig) -> tuple[Trainer, Notes]:
    notes = Notes()
    return Trainer(config, prepare_stream(config.stream), RunFolder(config.output.folder), [notes]), notes


def test_a_run_folder_tells_the_whole_story(tiny_run: MakeRun) -> None:
    config = tiny_run()
    folder = start_run(config, QUIET)
    records = current(read_all_records(folder / "metrics.jsonl"))
    kinds = [record.kind for record in records]
    assert kinds.count("train") == 12
    assert kinds.count("boundary") == 2
    assert kinds.count("test") == kinds.count("end") == 1
    evaluated = {record.step: record for record in records if record.kind == "eval"}
    assert sorted(evaluated) == [0, 3, 6, 9, 12]
    both = {"eval/fruit/perplexity", "eval/tools/perplexity"}
    assert both <= set(evaluated[0].metrics)  # before any training, all tasks
    assert both <= set(evaluated[6].metrics)  # at boundaries too
    assert "eval/tools/perplexity" not in evaluated[3].metrics  # in between only what was seen
    assert {"cl/perplexity/aufc", "cl/perplexity/forgetting/fruit", "cl/perplexity/bwt"} <= set(evaluated[9].metrics)
    for metric in ("bits_per_byte", "token_accuracy", "exact_match", "bleu", "chrf", "rouge_l"):
        assert f"eval/fruit/{metric}" in evaluated[0].metrics
    controls = [record for record in records if record.kind == "control"]
    assert [record.step for record in controls] == [8, 12]  # every 4 steps, once a task is past
    assert "replay/gap_average" in controls[0].metrics
    last = next(record for record in records if record.kind == "end").metrics
    assert 0 < last["efficiency/utilisation"] < 1
    assert last["efficiency/tokens_per_second"] > 0
    for name in ("config.yaml", "environment.json", "data.json", "tokenizer.json"):
        assert (folder / name).stat().st_size > 10
    assert RunFolder(folder).config() == config


def test_it_learns(tiny_run: MakeRun) -> None:
    tasks = [{"name": "fruit", "folder": "fruit", "steps": 30}]
    run, notes = trainer(tiny_run(train={"learning_rate": 0.02}, stream={"tasks": tasks}, eval={"every_steps": 30}))
    run.run()
    scores = [record.metrics for record in notes.records if record.kind == "eval"]
    assert scores[-1]["eval/fruit/perplexity"] < 0.4 * scores[0]["eval/fruit/perplexity"]


def test_the_objective_does_not_depend_on_how_labels_are_spread_over_micro_batches(tiny_run: MakeRun) -> None:
    """|Ω| is counted over the step: ignoring labels of one micro-batch must not weigh the others up or down."""
    config = tiny_run(model={**tiny_run().model.model_dump(), "memory": False, "replay": False, "lambda_router": 0.0})
    run, _ = trainer(config)
    data = run.stream_data.tasks["fruit"]
    batches = data.train_batches(0)
    batches[0].y[:, 3:] = IGNORE_INDEX
    data.train_batches = lambda step, share=None: batches  # type: ignore[method-assign]
    run.train_step()
    model, _ = trainer(config)
    x, y = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("x", "y"))
    _, aux = model.state.model(x, targets=y, return_logits=False)
    aux["loss"].backward()
    torch.nn.utils.clip_grad_norm_(model.state.model.parameters(), 1.0)
    for (name, a), b in zip(run.state.model.named_parameters(), model.state.model.parameters(), strict=True):
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, msg=lambda m, n=name: f"{n}: {m}", atol=1e-6, rtol=1e-4)


def test_a_step_that_is_not_finite_changes_nothing_but_the_counters(tiny_run: MakeRun) -> None:
    run, _ = trainer(tiny_run())
    run.train_step()
    before = run.state.to_checkpoint({}).tensors
    before = {name: tensor.clone() for name, tensor in before.items()}
    weight = run.state.model.cortex.final_norm.gain
    handle = weight.register_hook(lambda gradient: gradient * math.nan)
    record = run.train_step()
    handle.remove()
    assert record.kind == "nonfinite"
    moved = [
        name for name, tensor in run.state.to_checkpoint({}).tensors.items() if not torch.equal(tensor, before[name])
    ]
    assert moved == ["model.clock.step"]
    assert run.state.progress.step == 2
    assert run.train_step().kind == "train"
    assert run.state.progress.nonfinite_streak == 0


def test_too_many_of_them_stop_the_run_with_its_checkpoint_kept(tiny_run: MakeRun) -> None:
    config = tiny_run(train={"max_nonfinite_steps": 3}, output={"checkpoint_every": 1})
    run, _ = trainer(config)
    run.train_step()
    run.writer.save(run.state, run.recorder)
    run.state.model.cortex.final_norm.gain.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(UserError, match=r"not finite in 3 steps in a row, up to step 4: lower train.learning_rate"):
        run.run()
    run.writer.wait()
    (kept,) = list_checkpoints(config.output.folder / "checkpoints")
    assert step_of(kept) == 1  # none was taken in the row of failures, so none pushed this one out
    assert load_checkpoint(kept).state["progress"]["nonfinite_streak"] == 0


def test_failing_steps_push_no_checkpoint_out_but_the_end_is_saved(tiny_run: MakeRun) -> None:
    config = tiny_run(train={"max_nonfinite_steps": 9}, output={"checkpoint_every": 1, "keep_checkpoints": 1})
    run, notes = trainer(config)
    weight, plain = run.state.model.cortex.final_norm.gain, run.train_step

    def failing_from_step_8() -> Record:
        if run.state.progress.step == 8:
            weight.register_hook(lambda gradient: gradient * math.nan)
        return plain()

    run.train_step = failing_from_step_8  # type: ignore[method-assign]
    run.run()
    assert [record.step for record in notes.records if record.kind == "nonfinite"] == [9, 10, 11, 12]
    assert [step_of(path) for path in list_checkpoints(config.output.folder / "checkpoints")] == [6, 8, 12]


def test_a_broken_model_steers_nothing(tiny_run: MakeRun) -> None:
    run, _ = trainer(tiny_run())
    run.state.control_post["fruit"] = 2.0
    with torch.no_grad():
        run.state.model.cortex.final_norm.gain.fill_(math.nan)
    run.state.progress.step = 8
    with pytest.raises(UserError, match="control perplexity of task 'fruit' is nan at step 8"):
        run.evaluator.update_replay()


def test_the_check_for_side_effects_stops_an_evaluation_that_moves_something(
    tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = trainer(tiny_run())
    plain = type(run.state.model).predict

    def careless(self: CortexNet, x: torch.Tensor, y: torch.Tensor) -> object:
        self.cortex.hippocampus.threshold.add_(1.0)
        return plain(self, x, y)

    monkeypatch.setattr(type(run.state.model), "predict", careless)
    with pytest.raises(EvaluationMovedState, match="threshold"):
        run.run()


def test_evaluating_draws_no_chance_even_if_the_model_does(tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = trainer(tiny_run())
    plain = type(run.state.model).predict
    monkeypatch.setattr(type(run.state.model), "predict", lambda self, x, y: (torch.rand(1), plain(self, x, y))[1])
    before = torch.get_rng_state()
    run.evaluator.evaluate(["fruit"])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("mode", "coefficient"), [("off", 0.0), ("fixed", 0.05)])
def test_replay_can_be_off_or_fixed(tiny_run: MakeRun, mode: str, coefficient: float) -> None:
    run, notes = trainer(tiny_run(control={"mode": mode}))
    run.run()
    assert not any(record.kind == "control" for record in notes.records)
    steps = [record.metrics for record in notes.records if record.kind == "train"]
    assert {step["replay/coefficient"] for step in steps} == {coefficient}
    assert (steps[-1]["train/loss_replay"] > 0) == (mode == "fixed")


def test_evaluation_equals_a_plain_forward(tiny_run: MakeRun) -> None:
    config = tiny_run(eval={"max_batches": None})
    run, _ = trainer(config)
    data = run.stream_data.tasks["fruit"]
    scores = score_task(run.state.model, data, "validation", config.eval, run.stream_data.tokenizer, run.state.device)
    run.state.model.eval()
    losses, hits, count = 0.0, 0, 0
    for batch in data.eval_batches("validation", 1):
        logits, aux = run.state.model(batch.x, targets=batch.y)
        losses += aux["loss_lm"].item() * batch.num_labels
        hits += int((logits.argmax(-1) == batch.y).sum())
        count += batch.num_labels
    assert scores["loss"] == pytest.approx(losses / count, rel=1e-5)
    assert scores["token_accuracy"] == pytest.approx(hits / count)
    assert control_perplexity(run.state.model, data, 4, run.state.device) == pytest.approx(
        math.exp(losses / count), rel=0.2
    )


def test_a_vocabulary_too_small_is_told(tiny_run: MakeRun) -> None:
    small = tiny_run(model={**tiny_run().model.model_dump(), "vocab_size": 290})
    with pytest.raises(UserError, match=r"model\.vocab_size=290 is smaller than the tokenizer's 300"):
        trainer(small)


def test_a_run_whose_packed_tokens_were_changed_saves_nothing_and_does_not_end(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    write_task(tmp_path / "data", "one", ["apple", "pear"])
    stream = {"data_root": tmp_path / "data", "cache": tmp_path / "cache",
              "tasks": [{"name": "one", "folder": "one", "steps": 6}]}  # fmt: skip
    config = tiny_run(stream=stream)
    running, _ = trainer(config)
    (tokens,) = (tmp_path / "cache" / "tasks").glob("one-*/train.tokens")
    content = bytearray(tokens.read_bytes())
    content[0] ^= 1
    tokens.write_bytes(content)
    with pytest.raises(UserError, match="were changed while they were read"):
        running.run()
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == []


def test_a_step_that_takes_no_time_by_the_clock_is_a_step(tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("loop", "observers"):  # the clock of the whole process belongs to other threads, too
        monkeypatch.setattr(f"trc2.training.{module}.time", SimpleNamespace(monotonic=lambda: 5.0))
    records = RunFolder(start_run(tiny_run(), QUIET)).records()
    assert records[-1].kind == "end"
