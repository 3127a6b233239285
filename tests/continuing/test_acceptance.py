"""The acceptance check of a continued run. The command that ends the run judges it, by the limit it began with."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command import trc2
from tests.conftest import QUIET
from trc2 import UserError, continue_from, load_run
from trc2.config import TaskConfig
from trc2.continuing.acceptance import judge_child, read_verdict
from trc2.continuing.continue_run import continue_run
from trc2.runs.folder import RunFolder
from trc2.training.resume import resume_run
from trc2.verify.kill_runner import run_in_child

LIMIT = 0.05
Command = Callable[..., list[str]]

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture
def command(trained: Path, colours: TaskConfig) -> Command:
    """`trc2 continue` with a learning rate at which the new task ruins the old ones."""

    def build(child: Path, *more: str) -> list[str]:
        task = ["--task", f"colours={colours.folder}", "--steps", "4", "--out", str(child)]
        return ["continue", str(trained), *task, "--max-forgetting", str(LIMIT), "train.learning_rate=3", *more]

    return build


def refused(parent: Path, child: Path, colours: TaskConfig) -> Path:
    """A child that its check refuses."""
    rate = ["train.learning_rate=3"]
    continue_run(parent, child, colours, QUIET, overrides=rate, limit=LIMIT)
    verdict = judge_child(child, print)
    assert verdict is not None
    assert not verdict.passed
    return child


def content(child: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((child / "acceptance.json").read_text())
    return {name: value for name, value in found.items() if name != "child"}


def test_interrupted_and_resumed_a_run_is_judged_as_if_undisturbed(command: Command, tmp_path: Path) -> None:
    whole, child = tmp_path / "whole", tmp_path / "child"
    assert trc2(*command(whole)).code == 3
    expected = content(whole)
    assert (expected["passed"], expected["limit"]) == (False, LIMIT)
    assert (expected["parent_step"], expected["child_step"]) == (12, 16)

    def attempt(folder: Path) -> None:
        os._exit(trc2(*command(folder)).code)

    for point in ("step:3", "end:1", "verdict:1", "verdict written:1"):
        shutil.rmtree(child, ignore_errors=True)
        assert run_in_child(attempt, child, point) < 0, point
        again = trc2(*command(child))
        assert (again.code, f"trc2 resume {child}" in again.err) == (2, True)
        done = trc2("resume", str(child), "--json")
        assert done.code == 3, point
        assert json.loads(done.out)["acceptance"]["passed"] is False
        assert content(child) == expected, point
    assert trc2("resume", str(child)).code == 3  # it is finished, and still refused


def test_a_stray_rank_does_not_skip_the_check(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    done = trc2(*command(tmp_path / "child", "--json"))
    assert (done.code, json.loads(done.out)["passed"]) == (3, False)


def test_check_judges_nothing_where_its_summary_could_not_be_written(
    trained: Path, colours: TaskConfig, tmp_path: Path
) -> None:
    child = refused(trained, tmp_path / "child", colours)
    (child / "summary.md").unlink(missing_ok=True)
    (child / "summary.md").mkdir()
    (child / "acceptance.json").write_text("{}")
    done = trc2("check", str(trained), str(child))
    assert (done.code, "summary.md" in done.err) == (2, True)
    assert (child / "acceptance.json").read_text() == "{}"


def test_check_judges_at_any_time_and_a_limit_never_grows(trained: Path, colours: TaskConfig, tmp_path: Path) -> None:
    child = refused(trained, tmp_path / "child", colours)
    (child / "acceptance.json").unlink()
    done = trc2("check", str(trained), str(child), "--json")
    assert (done.code, json.loads(done.out)["limit"]) == (3, LIMIT)
    assert "above" in (child / "summary.md").read_text()
    looser = trc2("check", str(trained), str(child), "--max-forgetting", "1e9", "--json")
    assert (looser.code, json.loads(looser.out)["limit"]) == (3, LIMIT)
    assert trc2("check", str(trained), str(trained)).code == 2  # it has no parent
    assert trc2("check", str(trained), str(tmp_path / "nowhere")).code == 2
    assert trc2("check", str(trained), str(child), "--max-forgetting", "inf").code == 2

    rate = ["train.learning_rate=3"]
    free = continue_run(trained, tmp_path / "free", colours, QUIET, overrides=rate)  # without a limit of its own
    assert trc2("check", str(trained), str(free), "--max-forgetting", "1e30").code == 0
    assert trc2("check", str(trained), str(free), "--max-forgetting", "0", "--json").code == 3
    assert trc2("check", str(trained), str(free)).code == 3  # the verdict's limit stays
    assert trc2("resume", str(free)).code == 3


@pytest.mark.parametrize("name", ["limit", "child_step", "max_drift"])
def test_a_verdict_with_text_for_a_number_counts_as_missing(
    name: str, trained: Path, colours: TaskConfig, tmp_path: Path
) -> None:
    child = refused(trained, tmp_path / "child", colours)
    path = child / "acceptance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: "x"}))
    done = trc2("export", str(child), str(tmp_path / "model"))
    assert (done.code, "was not judged" in done.err) == (2, True)


def test_a_refused_or_unjudged_run_is_exported_only_anyway(trained: Path, colours: TaskConfig, tmp_path: Path) -> None:
    child = refused(trained, tmp_path / "child", colours)
    done = trc2("export", str(child), str(tmp_path / "model"))
    assert (done.code, "--anyway" in done.err, (tmp_path / "model").exists()) == (2, True, False)
    done = trc2("export", str(child), str(tmp_path / "model"), "--anyway", "--json")
    assert "README.md" in json.loads(done.out)["files"]
    card = (tmp_path / "model" / "README.md").read_text()
    assert "refused by its acceptance check" in card
    assert "| fruit | 8 documents of fruit/test |" in card
    (child / "acceptance.json").unlink()
    with pytest.raises(UserError, match="was not judged at step 16"):
        load_run(child).export(tmp_path / "other")
    load_run(child).export(tmp_path / "other", anyway=True)
    assert load_run(child).check()["passed"] is False
    load_run(trained).export(tmp_path / "parent")  # it has no limit


def test_python_judges_what_it_resumes(trained: Path, colours: TaskConfig, tmp_path: Path) -> None:
    child = tmp_path / "child"

    def attempt(folder: Path) -> None:
        continue_from(
            trained, {"colours": colours}, folder=folder, max_forgetting=LIMIT, quiet=True, train={"learning_rate": 3.0}
        )

    assert run_in_child(attempt, child, "step:3") < 0
    verdict = load_run(child).resume(quiet=True).verdict()
    assert verdict is not None
    assert (verdict["passed"], verdict["limit"]) == (False, LIMIT)


def test_the_parent_is_the_checkpoint_from_which_the_child_went_on(
    trained: Path, colours: TaskConfig, tmp_path: Path
) -> None:
    child = refused(trained, tmp_path / "child", colours)
    moved = trained.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"trc2 check PARENT {child}"):
        load_run(child).check()
    assert trc2("check", str(moved), str(child)).code == 3
    other = shutil.copytree(moved, tmp_path / "other")
    newest = other / "checkpoints" / "step-00000012"
    tensors = bytearray((newest / "tensors.safetensors").read_bytes())
    tensors[-1] ^= 1
    (newest / "tensors.safetensors").write_bytes(bytes(tensors))  # damaged: the one before must not be taken
    done = trc2("check", str(other), str(child))
    assert (done.code, "step 12" in done.err) == (2, True)
    shutil.rmtree(newest)
    shutil.copytree(other / "checkpoints" / "step-00000006", newest)
    assert trc2("check", str(other), str(child)).code == 2
    verdict = read_verdict(RunFolder(child))
    assert verdict is not None
    assert verdict.parent_step == 12


def test_a_run_moved_with_its_parent_is_judged_from_anywhere(
    trained: Path, colours: TaskConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    continue_run(Path(trained.name), Path("child"), colours, QUIET, limit=9.0)
    home = tmp_path / "moved"
    home.mkdir()
    for name in (trained.name, "child"):
        (tmp_path / name).rename(home / name)
    monkeypatch.chdir("/")
    resume_run(home / "child", [], QUIET)
    verdict = judge_child(home / "child", print)
    assert verdict is not None
    assert verdict.passed


def test_a_damaged_file_of_trial_runs_does_not_stop_the_check(command: Command, tmp_path: Path) -> None:
    (tmp_path / "child.trials.json").write_text("{")
    done = trc2(*command(tmp_path / "child", "--replay-share", "0.1"))
    assert (done.code, "child.trials.json" in done.err) == (3, True)
    assert "trial_runs" not in content(tmp_path / "child")


# ----------------------------------------------------------------------------------------- text that a saved model knew


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    return load_run(trained).export(tmp_path / "model")


@pytest.fixture
def go_on(model: Path, colours: TaskConfig, tiny_data: Path) -> Command:
    def build(child: Path, *more: str, task: Path | str = colours.folder or "") -> list[str]:
        sizes = ["train.batch_size=2", "eval.batch_size=4", f"stream.cache={tiny_data / 'cache'}"]
        return ["continue", str(model), "--task", f"new={task}", "--steps", "1", "--out", str(child), *sizes, *more]

    return build


def write_rows(path: Path, names: range, words: tuple[str, ...] = ("fig", "pear", "plum")) -> Path:
    """Documents of 40 words each, one row and one number each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in names:
        rng = random.Random(name)
        rows.append(json.dumps({"text": f"{name}: " + " ".join(rng.choice(words) for _ in range(40))}))
    path.write_text("\n".join(rows) + "\n")
    return path


def test_kept_text_that_is_trained_on_is_refused_before_training(go_on: Command, tmp_path: Path) -> None:
    keep = write_rows(tmp_path / "keep" / "old.jsonl", range(30)).parent
    limit = ["--keep", f"old={keep}", "--max-forgetting", "0.5"]
    done = trc2(*go_on(tmp_path / "child", *limit, task=keep))
    assert (done.code, "old/validation leaves" in done.err) == (2, True), done.err
    seeds = f"stream.replay_prefill_files=[{keep}]"
    assert trc2(*go_on(tmp_path / "child", *limit, seeds)).code == 2
    assert not (tmp_path / "child").exists()


def test_documents_that_are_trained_on_are_not_judged(go_on: Command, tmp_path: Path) -> None:
    keep = write_rows(tmp_path / "keep" / "old.jsonl", range(10)).parent  # too few to be replayed as well
    new = write_rows(tmp_path / "new.jsonl", range(6, 40))
    limit = ["--keep", f"old={keep}", "--max-forgetting", "1e9", "--json"]
    done = trc2(*go_on(tmp_path / "child", *limit, task=new))
    assert done.code == 0, done.err
    found = json.loads(done.out)["tasks"]["old"]
    assert (found["documents"], found["excluded"]) == (7, 3)  # of the 4 shared ones, one is held out of both
    assert "3 of 10 documents of old/validation" in done.out + done.err
    assert "7 documents of old/validation (3 left out" in (tmp_path / "child" / "summary.md").read_text()


def test_one_folder_of_old_text_is_divided_into_a_replayed_and_a_judged_part(go_on: Command, tmp_path: Path) -> None:
    keep = write_rows(tmp_path / "keep" / "old.jsonl", range(40)).parent
    done = trc2(*go_on(tmp_path / "child", "--keep", f"old={keep}", "--max-forgetting", "1e9", "--json"))
    assert done.code == 0, done.err
    child = RunFolder(tmp_path / "child")
    splits = child.data()["tasks"]["old"]["splits"]
    judged, replayed = splits["validation"]["documents"], splits["train"]["documents"]
    assert judged + replayed == 40
    assert min(judged, replayed) >= 10
    assert child.data()["seeds"][0]["sha256"] == splits["train"]["sha256"]
    assert child.data()["overlap"]["old/validation"]["old"] == 0.0
    found = json.loads(done.out)["tasks"]["old"]
    assert (found["documents"], found["excluded"]) == (judged, 0)
    assert trc2(*go_on(tmp_path / "none", "--keep", f"old={keep}", "--replay-share", "0")).code == 0
    whole = RunFolder(tmp_path / "none").data()["tasks"]["old"]["splits"]
    assert (whole["validation"]["documents"], whole["train"]["documents"]) == (40, 0)  # nothing is replayed
    again = continue_run(child.path, tmp_path / "again", TaskConfig(name="more", folder=str(keep), steps=1), QUIET)
    assert [task.task for task in judge_child(again, print).tasks] == ["old", "new"]  # type: ignore[union-attr]


def test_a_check_that_cannot_be_passed_is_refused_before_training(go_on: Command, tmp_path: Path) -> None:
    one = write_rows(tmp_path / "keep" / "old.jsonl", range(1)).parent
    done = trc2(*go_on(tmp_path / "child", "--keep", f"old={one}", "--max-forgetting", "1e9"))
    assert (done.code, "1 of 1 documents" in done.err) == (2, True), done.err
    assert not (tmp_path / "child").exists()
    assert trc2(*go_on(tmp_path / "child", "--keep", f"old={one}")).code == 0  # nothing is decided
    three = write_rows(tmp_path / "three" / "old.jsonl", range(3)).parent  # far less than a step takes
    done = trc2(*go_on(tmp_path / "other", "--keep", f"old={three}", "--max-forgetting", "1e9", "--json"))
    assert (done.code, json.loads(done.out)["tasks"]["old"]["documents"]) == (0, 3), done.err


def test_trial_runs_that_find_no_share_exit_with_three_and_leave_one_file(go_on: Command, tmp_path: Path) -> None:
    keep = write_rows(tmp_path / "keep" / "old.jsonl", range(10)).parent  # too few to be replayed
    child, path = tmp_path / "child", tmp_path / "child.trials.json"
    settings = ["--keep", f"old={keep}", "--max-forgetting", "0", "train.learning_rate=3"]

    def attempt(folder: Path) -> None:
        os._exit(trc2(*go_on(folder, *settings, "--try-shares")).code)

    assert run_in_child(attempt, child, "step:1") < 0
    before = sorted(one.name for one in tmp_path.iterdir() if not one.name.startswith("."))
    done = trc2(*go_on(child, *settings, "--try-shares", "--json"))
    assert done.code == 3, done.err
    found = json.loads(done.out)
    assert (found["cheapest"], found["has_old_text"], found["learning_rate"]) == (None, False, 3.0)
    assert [branch["share"] for branch in found["branches"]] == [0.0]  # a share would replay the new text
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([*before, path.name])
    first = path.read_bytes()
    told = trc2(*go_on(child, *settings, "--try-shares"))
    assert "train.learning_rate=1" in " ".join(told.out.split())
    assert path.read_bytes() == first
    real = trc2(*go_on(child, *settings, "--replay-share", "0.1", "eval.text_sequences=0"))
    assert (real.code, "child.trials.json" in real.err, "--replay-share 0.1" in real.err) == (3, True, True)
