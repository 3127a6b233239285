"""The acceptance check of `continue` and its trial runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.command import trc2
from tests.conftest import QUIET, MakeRun, tiny_run_config
from trc2.config import TaskConfig
from trc2.continuing.acceptance import (
    Prediction,
    TaskVerdict,
    Verdict,
    document_losses,
    judge,
    judge_child,
    read_verdict,
)
from trc2.continuing.continue_run import continue_run, default_folder
from trc2.continuing.heldout import HeldOut, held_out_split
from trc2.continuing.trial_runs import Branch, TrialRuns, prediction, save_trial_runs, try_shares
from trc2.errors import UserError
from trc2.evaluation.tasks import evaluation_mode, tally
from trc2.metrics.paired import Interval
from trc2.report.run import read_run
from trc2.runs.folder import RunFolder
from trc2.stream.batches import SplitWindows
from trc2.stream.prepare import prepare_stream
from trc2.training.setup import start_run


@pytest.fixture(scope="module")
def parent(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose replay is a share of the tokens. Tests must not change it."""
    share: dict[str, object] = {"replay_batch_size": 4, "replay_share": 0.2}
    folder = tmp_path_factory.mktemp("parent") / "run"
    return start_run(tiny_run_config(tiny_data, folder, model=share, train={"micro_batches": 1}), QUIET)


def test_losses_of_documents_add_up_to_the_loss_of_the_split(parent: Path) -> None:
    folder = RunFolder(parent)
    config = folder.config()
    assert config.stream is not None
    task = prepare_stream(config.stream, tokenizer=folder.tokenizer()).tasks["fruit"]
    model, cpu = folder.model(print)[0], torch.device("cpu")
    assert held_out_split(task) == "test"
    losses, tokens = document_losses(model, HeldOut(task, "test", np.ones(8, dtype=bool)), config, cpu)
    assert len(losses) == 8
    second = document_losses(model, HeldOut(task, "test", np.arange(8) == 1), config, cpu)
    assert (second[0].tolist(), second[1].tolist()) == ([losses[1]], [tokens[1]])
    with evaluation_mode(model):
        whole = tally(model, SplitWindows(task, config.train.sequence_length).eval_batches("test", 4), cpu)
    assert losses.sum() == pytest.approx(whole.nll)
    assert tokens.sum() == whole.tokens


def test_a_child_is_judged_per_task_against_its_parent(parent: Path, colours: TaskConfig, tmp_path: Path) -> None:
    child = continue_run(parent, tmp_path / "child", colours, QUIET)
    verdict = judge(parent, child, 0.5, print)
    assert [task.task for task in verdict.tasks] == ["fruit", "tools"]
    for task in verdict.tasks:
        assert task.rise.low <= task.rise.value <= task.rise.high
        assert (task.split, task.documents) == ("test", 8)
    kept = judge_child(child, print, parent, 0.5)
    assert kept == read_verdict(RunFolder(child)) == verdict
    same = judge(parent, child, float(np.nextafter(max(t.rise.high for t in verdict.tasks), -1)), print)
    assert not same.passed


@pytest.mark.parametrize(
    ("rise", "limit", "word"),
    [
        (Interval(0.01, 0.0, 0.02), 0.05, "within"),
        (Interval(0.3, 0.2, 0.4), None, "within"),
        (Interval(0.3, 0.2, 0.4), 0.05, "above"),
        (Interval(0.1, 0.02, 0.2), 0.05, "above (not certain)"),
        (Interval(0.03, 0.01, 0.09), 0.05, "not sure"),
        (Interval(float("nan"), float("nan"), float("nan")), 0.05, "not sure"),
    ],
)
def test_the_word_of_a_verdict_says_how_sure_it_is(rise: Interval, limit: float | None, word: str) -> None:
    verdict = TaskVerdict("fruit", "test", 8, 100, rise, limit)
    assert verdict.word == word
    assert verdict.passed == (word == "within")


def test_a_wide_interval_is_not_accepted_and_the_exit_code_is_three(
    parent: Path, colours: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--task", "colours", "--folder", str(colours.folder), "--steps", "2", "--json")
    monkeypatch.setattr("trc2.continuing.acceptance.paired_rise", lambda *_: Interval(0.1, -0.1, 0.3))
    done = trc2("continue", str(parent), *arguments, "--out", str(tmp_path / "b"), "--max-forgetting", "0.2",
                "--replay-share", "0.0")  # fmt: skip
    assert done.code == 3
    assert json.loads(done.out)["passed"] is False
    assert "fruit is not sure" in done.err
    assert RunFolder(tmp_path / "b").config().model.replay_share == 0.0


@pytest.mark.slow
def test_trial_runs_find_the_cheapest_share_and_leave_nothing(parent: Path, colours: TaskConfig) -> None:
    before = sorted(parent.parent.iterdir())
    easy = try_shares(parent, colours.replace(steps=10), 1e9)
    assert (easy.cheapest, easy.branch_steps, len(easy.branches)) == (0.0, 5, 1)
    hard = try_shares(parent, colours.replace(steps=10), -0.99, shares=(0.0, 0.5))
    assert hard.cheapest is None
    assert [branch.share for branch in hard.branches] == [0.0, 0.5]
    assert "No share up to 50%" in hard.lines()[-1]
    assert sorted(parent.parent.iterdir()) == before
    done = trc2("continue", str(parent), "--task", "colours", "--folder", str(colours.folder), "--steps", "5",
                "--try-shares", "--max-forgetting", "99", "--json")  # fmt: skip
    predicted = json.loads(done.out)["branches"][0]["predicted"]
    assert json.loads(done.out)["cheapest"] == 0.0
    went = trc2("continue", str(parent), "--task", "colours", "--folder", str(colours.folder), "--steps", "5",
                "--replay-share", "0", "--json")  # fmt: skip
    found = json.loads(went.out)["trial_runs"]
    assert found["predicted"] == predicted
    child = default_folder(parent, [colours])
    seen = judge(parent, child, None, print, split="validation").worst
    assert seen == pytest.approx(predicted, abs=1e-6), "a branch of all steps is the run itself"
    assert trc2("continue", str(parent), "--task", "x", "--folder", str(colours.folder), "--try-shares").code == 2


def test_a_refused_child_does_not_block_its_name_and_names_do_not_grow(parent: Path, colours: TaskConfig) -> None:
    command = ["continue", str(parent), "--task", f"colours={colours.folder}", "--steps", "2"]
    first = parent.with_name(f"{parent.name}+colours")
    for name in (first.name, f"{first.name}-2"):
        refused = trc2(*command, "--max-forgetting", "0", "train.learning_rate=0.5")
        assert (refused.code, read_verdict(RunFolder(parent.with_name(name))) is not None) == (3, True)
    assert trc2(*command).code == 0
    assert trc2(*command).code == 2  # a child that was not refused is not replaced
    child = parent.with_name(f"{first.name}-3")
    assert read_verdict(RunFolder(child)) is not None
    assert default_folder(child, [colours]) == parent.with_name(f"{first.name}-4")
    assert default_folder(child, [colours.replace(name="fruit")]).name == f"{first.name}-3+fruit"


def test_trial_runs_predict_the_same_child_only(tmp_path: Path, colours: TaskConfig) -> None:
    rises = [TaskVerdict("fruit", "test", 3, 9, Interval(0.1, 0.0, 0.2), 0.5)]
    branch = Branch(0.05, Verdict("parent", "child", 0.5, tuple(rises)), 0.4)
    task = colours.replace(steps=10)
    child, parent = tmp_path / "child", Path("parent")
    save_trial_runs(TrialRuns("parent", ("train.seed=3",), (task.name,), 0.5, 10, 5, (branch,)), child)
    same = (parent, child, [task], 0.05, ["train.seed=3"])
    assert prediction(*same) == Prediction(0.05, 0.4)
    assert branch.ceiling == pytest.approx(0.4 + 0.1), "the upper end of the interval, as the gate will ask"
    others = (Path("other"), tmp_path / "other", [task.replace(steps=20)], 0.1, [])
    for place, other in enumerate(others):
        assert prediction(*same[:place], other, *same[place + 1 :]) is None
    assert prediction(parent, child, [task], None) is None
    told = Verdict("parent", "child", 0.5, tuple(rises), Prediction(0.05, 0.4)).describe()["trial_runs"]
    assert told == {"share": 0.05, "predicted": 0.4, "happened": 0.1}


def test_a_parent_with_a_weight_of_replay_goes_on_with_a_share(
    trained: Path, colours: TaskConfig, tmp_path: Path
) -> None:
    child = continue_run(trained, tmp_path / "child", colours, QUIET, 0.1)
    run = read_run(child)
    assert run.config.model.replay_share == 0.1
    own = [record.metrics for record in run.records if record.kind == "train" and record.task == colours.name]
    assert {metrics["replay/share"] for metrics in own} == {0.1}


def test_a_parent_without_replay_has_no_share(tiny_run: MakeRun, colours: TaskConfig) -> None:
    plain = tiny_run(model={**tiny_run().model.model_dump(), "replay": False})
    folder = start_run(plain, QUIET)
    with pytest.raises(UserError, match="has no replay, so no share of it can be set"):
        continue_run(folder, folder.with_name("child"), colours, QUIET, 0.1)
