"""`--stop-at`: a child that stops in time ends with the last checkpoint within the limit, killed or not."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command import trc2
from tests.conftest import QUIET, MakeRun, tiny_run_config, write_task
from trc2.config import TaskConfig
from trc2.continuing.acceptance import TaskVerdict, Verdict, judge_child, read_verdict
from trc2.continuing.advice import advice
from trc2.continuing.continue_run import continue_run
from trc2.errors import UserError
from trc2.metrics.paired import Interval
from trc2.report.run import read_run
from trc2.runs.folder import RunFolder
from trc2.runs.records import Record, current
from trc2.runs.stopping import Stop, StopRule, rises_since
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_runner import run_in_child
from trc2.verify.kill_tests import compare_runs

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
FAST = ("train.learning_rate=0.02", "eval.every_steps=2", "output.checkpoint_every=3", "model.replay_share=0")


@dataclass(frozen=True)
class Family:
    """A parent, a task that harms it, and a limit that the child keeps at step `good` and passes at step `bad`."""

    parent: Path
    task: TaskConfig
    limit: float
    good: int
    bad: int


@pytest.fixture(scope="module")
def family(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Family:
    root = tmp_path_factory.mktemp("family")
    write_task(root, "colours", ["red", "blue", "green", "grey"])
    task = TaskConfig(name="colours", folder=str(root / "colours"), steps=8)
    config = tiny_run_config(tiny_data, root / "parent", train={"learning_rate": 0.02})
    assert config.stream is not None
    tasks = [{**task.model_dump(), "steps": 30} for task in config.stream.tasks]
    model = {**config.model.model_dump(), "replay_batch_size": 4, "replay_share": 0.2}
    config = tiny_run_config(
        tiny_data, root / "parent", model=model, stream={"tasks": tasks}, eval={"every_steps": 30, "text_sequences": 0},
        train={"learning_rate": 0.02},
    )  # fmt: skip
    parent = start_run(config, QUIET)
    child = continue_run(parent, root / "probe", task, QUIET, overrides=FAST)
    folder = RunFolder(child)
    lineage = folder.lineage()
    assert lineage is not None
    rises = rises_since([r for r in folder.records() if r.kind == "eval"], lineage.step, lineage.watched)
    worst = {step: max(by_task.values()) for step, by_task in sorted(rises.items())}
    steps = list(worst)
    for earlier, later in itertools.pairwise(steps):
        peak = max(0.0, *(worst[step] for step in steps[: steps.index(later)]))
        if worst[later] > 1.02 * peak:
            return Family(parent, task, (peak + worst[later]) / 2, earlier, later)
    raise AssertionError(f"the child never becomes worse: {worst}")


def test_a_child_that_passes_the_limit_ends_with_the_checkpoint_before(family: Family, tmp_path: Path) -> None:
    parent, good, bad = family.parent, family.good, family.bad
    child = continue_run(parent, tmp_path / "child", family.task, QUIET, overrides=FAST, stop_at=family.limit)
    folder = RunFolder(child)
    stop = folder.stop()
    assert stop is not None
    assert (stop.step, stop.passed_at, stop.is_within) == (good, bad, True)
    verdict = judge_child(child, print, parent)
    assert verdict is not None
    assert (verdict.child_step, verdict.stop) == (good, stop)
    assert read_verdict(folder) == verdict
    assert json.loads((child / "acceptance.json").read_text())["stop"]["passed_at"] == bad
    newest = folder.newest_checkpoint(print)
    assert newest is not None
    assert newest.step == good
    records = folder.records()
    assert max(record.step for record in records) == good
    assert [record.metrics["stop/passed_at"] for record in records if record.kind == "stop"] == [bad]
    run = read_run(child)
    assert run.is_finished
    assert (run.spans[-1].task, run.spans[-1].end) == ("colours", good)
    assert run.score("perplexity", "colours", good) is not None

    grandchild = continue_run(child, tmp_path / "more", family.task.replace(name="more", steps=4), QUIET)
    spans = read_run(grandchild).spans
    assert [(span.task, span.end) for span in spans[-2:]] == [("colours", good), ("more", good + 4)]


@pytest.mark.parametrize("has_good", [True, False])
def test_killed_anywhere_it_stops_at_the_same_step_with_the_same_bytes(
    family: Family, tmp_path: Path, has_good: bool
) -> None:
    limit = family.limit if has_good else -0.99  # no evaluation is within the second one

    def begin(folder: Path) -> Path:
        return continue_run(family.parent, folder, family.task, QUIET, overrides=FAST, stop_at=limit)

    whole = begin(tmp_path / "whole")
    own = (family.good - RunFolder(whole).first_step) if has_good else 0

    def attempt(folder: Path) -> None:
        if folder.exists():
            resume_run(folder, [], QUIET)
        else:
            begin(folder)

    for point in (f"step:{own + 2}", "checkpoint rename:1", "stop:1", "stopped:1", "boundary:1"):
        child = tmp_path / "child"
        assert run_in_child(attempt, child, point) < 0, point
        run_in_child(attempt, child)
        assert RunFolder(child).stop() == RunFolder(whole).stop(), point
        assert compare_runs(whole, child)[0] == [], point
        shutil.rmtree(child)


def test_without_a_good_evaluation_the_child_is_refused(family: Family, tmp_path: Path) -> None:
    arguments = ["--task", f"colours={family.task.folder}", "--steps", "4", "--out", str(tmp_path / "child")]
    arguments += ["--stop-at", "0.01", "train.learning_rate=0.5", "train.warmup_steps=0", "eval.every_steps=1"]
    done = trc2("continue", str(family.parent), *arguments)
    assert done.code == 3, done.out + done.err
    assert "no evaluation was within --stop-at" in done.err
    verdict = read_verdict(RunFolder(tmp_path / "child"))
    assert verdict is not None
    assert verdict.stop is not None
    assert not verdict.stop.is_within
    assert verdict.stop.step == verdict.child_step == RunFolder(tmp_path / "child").first_step + 1
    assert "train.learning_rate=" in done.out
    assert trc2("export", str(tmp_path / "child"), str(tmp_path / "model")).code == 2


def test_a_killed_replacement_of_a_checkpoint_is_put_back(trained: Path) -> None:
    checkpoint = RunFolder(trained).checkpoints / "step-00000012"
    aside = checkpoint.with_name(f".{checkpoint.name}.0a.old")
    checkpoint.rename(aside)
    resume_run(trained, [], QUIET)
    assert checkpoint.is_dir()
    assert not aside.exists()


def test_a_schedule_that_anneals_at_the_end_is_refused(tiny_run: MakeRun, colours: TaskConfig, tmp_path: Path) -> None:
    parent = start_run(tiny_run(train={"schedule": "wsd"}), QUIET)
    with pytest.raises(UserError, match=r"train\.schedule=wsd"):
        continue_run(parent, tmp_path / "child", colours, QUIET, stop_at=0.1)


def _evaluation(step: int, **perplexities: float) -> Record:
    return Record("eval", step, "new", {f"eval/{name}/perplexity": value for name, value in perplexities.items()})


def test_the_rule_compares_with_the_scores_before_the_run() -> None:
    rule = StopRule(0.1, ("a", "b"), 10)
    records = [_evaluation(5, a=1.0), _evaluation(10, a=2.0, b=4.0), _evaluation(12, a=2.1, b=4.0)]
    records += [_evaluation(14, a=2.1, b=4.8), _evaluation(16, a=float("nan"), b=4.0)]
    rises = rises_since(records, 10, rule.tasks)
    assert rises[12] == {"a": pytest.approx(0.05), "b": 0.0}
    assert rule.last_good(records) == [12]
    assert not rule.is_within(rises[16]), "NaN is not within any limit"


def test_a_second_stop_record_supersedes_the_first_and_its_scores() -> None:
    stop = Stop(0.1, 4, 6, {"a": 0.2}).record("new")
    before = [_evaluation(4, a=1.0)]
    kept = current([*before, stop, _evaluation(4, a=2.0), Record("resume", 4, ""), stop, _evaluation(4, a=3.0)])
    assert [record.kind for record in kept] == ["eval", "stop", "eval"]
    assert kept[-1].metrics == {"eval/a/perplexity": 3.0}


def test_advice_comes_from_what_the_run_measured(family: Family, tmp_path: Path) -> None:
    parent = family.parent
    child = continue_run(parent, tmp_path / "child", family.task, QUIET, overrides=["eval.every_steps=8"])
    metrics, first = child / "metrics.jsonl", RunFolder(child).first_step
    with metrics.open("a") as file:  # 4 % a step: 5 % after 1.25 steps
        for step in (1, 2, 3, 4, 8):
            before = {t: read_run(parent).score("perplexity", t, first) or 0.0 for t in ("fruit", "tools")}
            risen = {task: value * (1 + 0.04 * step) for task, value in before.items()}
            file.write(_evaluation(first + step, **risen).to_json() + "\n")
    above = TaskVerdict("fruit", "test", 8, 80, Interval(0.32, 0.3, 0.4), 0.05)
    sentences = advice(child, Verdict("parent", "child", 0.05, (above,)))
    assert "after about 1: --steps 1." in sentences[0]
    rate = RunFolder(child).config().train.learning_rate
    assert f"train.learning_rate={rate * 0.17574:.2g}" in sentences[1]
    assert "--replay-share 0.4" in sentences[2]
    unsure = TaskVerdict("fruit", "test", 8, 80, Interval(0.04, 0.02, 0.06), 0.05)
    assert "about 32 held-out documents instead of 8" in advice(child, Verdict("p", "c", 0.05, (unsure,)))[0]
    within = TaskVerdict("fruit", "test", 8, 80, Interval(0.01, 0.0, 0.02), 0.05)
    assert advice(child, Verdict("parent", "child", 0.05, (within,))) == []
    lineage = json.loads((child / "parent.json").read_text())
    (child / "parent.json").write_text(json.dumps({**lineage, "watched": []}))  # of a model without old text
    harness = TaskVerdict("piqa", "", 8, 0, Interval(0.32, 0.3, 0.4), 0.05, "acc")
    assert advice(child, Verdict("parent", "child", 0.05, (harness,))) == []
