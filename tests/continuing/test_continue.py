"""Going on with a finished run: killed at any moment, from any parent, past any gate."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import QUIET, MakeRun
from trc2.cli import app
from trc2.config import TaskConfig
from trc2.continuing.continue_run import continue_run, relative_forgetting
from trc2.errors import UserError
from trc2.metrics.paired import Interval
from trc2.report.run import read_run
from trc2.setup.speed_probe import Speed
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_runner import run_in_child
from trc2.verify.kill_tests import compare_runs

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


POINTS = ["inherit:1", "evaluation:1", "checkpoint:1", "checkpoint rename:1", "inherited:1", "step:1", "step:4"]


@pytest.mark.parametrize(("schedule", "points"), [("per_task", POINTS), ("stream", ["inherited:1", "step:4"])])
def test_killed_at_any_point_it_ends_as_if_it_never_was(
    tiny_run: MakeRun, tmp_path: Path, colours: TaskConfig, schedule: str, points: list[str]
) -> None:
    parent = start_run(tiny_run(train={"schedule": schedule}), QUIET)
    whole = continue_run(parent, tmp_path / "whole", colours, QUIET)

    def attempt(folder: Path) -> None:
        if folder.exists():
            resume_run(folder, [], QUIET)
        else:
            continue_run(parent, folder, colours, QUIET)

    for point in points:
        child = tmp_path / "child"
        assert run_in_child(attempt, child, point) < 0, point
        assert child.exists() == (point in ("step:1", "step:4"))  # whole or not at all
        run_in_child(attempt, child)
        assert compare_runs(whole, child)[0] == [], point
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        shutil.rmtree(child)


def test_a_child_that_lost_its_checkpoints_is_never_trained_from_nothing(
    trained: Path, tmp_path: Path, colours: TaskConfig
) -> None:
    child = continue_run(trained, tmp_path / "child", colours, QUIET)
    shutil.rmtree(child / "checkpoints")
    with pytest.raises(UserError, match="has no checkpoint to go on from"):
        resume_run(child, [], QUIET)


def test_a_run_is_not_written_among_the_texts_it_reads(tiny_run: MakeRun, trained: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "notes.txt").write_text("\n\n".join(f"note {number} of many" for number in range(200)))
    with pytest.raises(UserError, match="reads all text files there"):
        continue_run(trained, texts / "child", TaskConfig(name="notes", folder=str(texts), steps=2), QUIET)
    task = {"name": "notes", "folder": str(texts), "steps": 2}
    with pytest.raises(UserError, match="reads all text files there"):
        start_run(tiny_run(stream={"tasks": [task]}, output={"folder": texts / "runs" / "new"}), QUIET)
    assert [path.name for path in texts.iterdir()] == ["notes.txt"]


def test_a_refused_one_leaves_nothing_behind(trained: Path, tmp_path: Path) -> None:
    missing = TaskConfig(name="colours", folder=str(tmp_path / "nowhere"), steps=5)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UserError, match="nowhere"):
        continue_run(trained, tmp_path / "child", missing, QUIET)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty: choose another --out"):
        continue_run(trained, tmp_path / "full", missing, QUIET)


def test_a_parent_that_trained_only_some_tasks_learns_the_new_one(
    tiny_run: MakeRun, tmp_path: Path, colours: TaskConfig
) -> None:
    parent = start_run(tiny_run(stream={"only": ["tools"]}), QUIET)
    run = read_run(continue_run(parent, tmp_path / "child", colours, QUIET))
    assert [(span.task, span.start, span.end) for span in run.spans] == [("tools", 0, 6), ("colours", 6, 10)]
    trained = [record.step for record in run.records if record.kind == "train" and record.task == "colours"]
    assert trained == [7, 8, 9, 10]
    assert run.summary()["cl/perplexity/forgetting/tools"] >= 0.0


def test_a_joint_parent_is_refused_because_none_of_its_tasks_has_an_end(
    tiny_run: MakeRun, tmp_path: Path, colours: TaskConfig
) -> None:
    parent = start_run(tiny_run(stream={"mode": "joint"}), QUIET)
    with pytest.raises(UserError, match=r"stream\.mode=joint"):
        continue_run(parent, tmp_path / "child", colours, QUIET)


def test_a_model_whose_perplexity_is_not_a_number_never_passes_the_check(
    trained: Path, tmp_path: Path, colours: TaskConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = continue_run(trained, tmp_path / "child", colours, QUIET)
    assert math.isfinite(relative_forgetting(child))
    path = child / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "eval"][-1]
    for broken in ("nan", "inf"):
        last["metrics"]["eval/fruit/perplexity"] = broken
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert not relative_forgetting(child) <= 1e300

    arguments = ["continue", str(trained), "--task", "colours", "--folder", colours.folder or "", "--steps", "2"]
    for number, value in enumerate([math.nan, math.inf]):
        monkeypatch.setattr(
            "trc2.continuing.acceptance.paired_rise", lambda *_, value=value: Interval(value, value, value)
        )
        out = ["--out", str(tmp_path / f"gated {number}"), "--max-forgetting", "1e9"]
        assert CliRunner().invoke(app, [*arguments, *out]).exit_code == 3


def test_a_new_task_comes_last_in_an_order_too(tiny_run: MakeRun, tmp_path: Path, colours: TaskConfig) -> None:
    names = [task.name for task in tiny_run().stream.tasks]  # type: ignore[union-attr]
    parent = start_run(tiny_run(stream={"order": names[::-1]}), QUIET)
    child = continue_run(parent, tmp_path / "child", colours, QUIET)
    assert [span.task for span in read_run(child).spans] == [*names[::-1], "colours"]


def test_minutes_become_steps_of_each_task(
    trained: Path, tmp_path: Path, colours: TaskConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trc2.setup.speed_probe.measure_speed", lambda run, seconds: Speed(step=2.1, scoring=0.1))
    arguments = ["continue", str(trained), "--task", f"colours={colours.folder}", "--minutes", "0.25"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "child")])
    assert done.exit_code == 0, done.output
    config = read_run(tmp_path / "child").config
    assert config.stream is not None
    assert config.stream.tasks[-1].steps == 5  # 15 s, 70 % of them for training, 2.1 s a step
