"""Setting up and resuming: folders in use, damage, signals, a full disk, and new tasks."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.conftest import QUIET, MakeRun, tiny_run_config, write_task
from trc2.config import RunConfig, TaskConfig
from trc2.continuing.continue_run import continue_run, relative_forgetting
from trc2.errors import UserError
from trc2.evaluation.score import score_target
from trc2.report.run import read_run
from trc2.runs import checkpoint as checkpoint_module
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint, step_of
from trc2.runs.folder import RunFolder
from trc2.runs.lineage import Lineage
from trc2.runs.lock import lock_folder
from trc2.runs.records import current, read_all_records
from trc2.runs.target import find_target
from trc2.stream.texts import keep_texts
from trc2.training.loop import Trainer
from trc2.training.resume import _put_back_generated, resume_run
from trc2.training.setup import Interrupted, start_run, warn_if_crowded
from trc2.verify.kill_tests import compare_runs

OUTPUT: dict[str, object] = {"checkpoint_every": 3, "keep_checkpoints": 3, "threads": 1}


def at(tiny_run: MakeRun, folder: Path, **changes: dict[str, object]) -> RunConfig:
    return tiny_run(output={"folder": folder, **OUTPUT, **changes.pop("output", {})}, **changes)


@pytest.fixture(scope="module")
def whole(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run, for comparison."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return start_run(tiny_run_config(tiny_data, folder, output={**OUTPUT, "folder": folder}), QUIET)


@pytest.fixture(scope="module")
def stopped_at_7(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was terminated in step 7."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        stop_after(tiny_run_config(tiny_data, folder, output={**OUTPUT, "folder": folder}), 7, monkeypatch)
    return folder


def stop_after(config: RunConfig, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until the given step as if SIGTERM had arrived in it."""
    plain = Trainer.train_step

    def interrupted(self: Trainer) -> object:
        record = plain(self)
        if self.state.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return record

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", interrupted)
        with pytest.raises(Interrupted, match=f"Stopped at step {step} and saved"):
            start_run(config, QUIET)


@pytest.mark.parametrize("step", [2, 6, 8])
def test_a_terminated_run_saves_and_goes_on_to_the_bit(
    tiny_run: MakeRun, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    stop_after(at(tiny_run, tmp_path / "parted"), step, monkeypatch)
    assert step_of(list_checkpoints(tmp_path / "parted" / "checkpoints")[-1]) == step
    resume_run(tmp_path / "parted", ["output.log_every=7"], QUIET)
    differences, tensors, records = compare_runs(whole, tmp_path / "parted")
    assert differences == []
    assert tensors > 100
    assert records > 20


def test_a_run_stopped_before_its_first_step_says_that_nothing_was_saved(
    tiny_run: MakeRun, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trc2.training.evaluation import Evaluator

    plain = Evaluator.evaluate

    def interrupted(self: Evaluator, names: list[str]) -> None:
        plain(self, names)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "evaluate", interrupted)
        with pytest.raises(Interrupted, match="Stopped at step 0, before anything was saved: go on with `trc2 resume"):
            start_run(at(tiny_run, tmp_path / "parted"), QUIET)
    resume_run(tmp_path / "parted", [], QUIET)
    assert compare_runs(whole, tmp_path / "parted")[0] == []


@pytest.mark.parametrize("name", ["config.yaml", "notes.txt", "summary.md"])
def test_a_folder_with_files_of_others_is_refused_and_they_stay(tiny_run: MakeRun, name: str) -> None:
    folder = tiny_run().output.folder
    folder.mkdir()
    (folder / name).write_text("mine")
    with pytest.raises(UserError, match=f"such as {name}: choose another output.folder"):
        start_run(tiny_run(), QUIET)
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"


def test_the_description_of_a_run_that_was_killed_before_its_first_record_is_replaced(tiny_run: MakeRun) -> None:
    folder = tiny_run().output.folder
    with lock_folder(folder):
        (folder / "config.yaml").write_text("half")
        (folder / "failure.json").write_text("{}")
    assert start_run(tiny_run(), QUIET) == folder
    assert (folder / "metrics.jsonl").is_file()


def test_training_refuses_a_folder_with_checkpoints(tiny_run: MakeRun, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (tmp_path / "run" / "lock").write_text("another process")
    with pytest.raises(UserError, match="already holds a run"):
        start_run(at(tiny_run, tmp_path / "run"), QUIET)
    assert (tmp_path / "run" / "lock").read_text() == "another process"


def test_whatever_refuses_a_run_leaves_nothing_and_the_retry_works(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new" / "deep" / "run"
    refused = (
        {"output": {"report_to": ["trackio"]}},  # not installed: refused after all else is ready
        {"stream": {"tasks": [{"name": "gone", "folder": "gone"}]}},
        {"model": {"vocab_size": 10}},
        {"train": {"batch_size": 100_000}},
    )
    for changes in refused:
        with pytest.raises(UserError):
            start_run(at(tiny_run, folder, **changes), QUIET)
        assert not (tmp_path / "new").exists(), changes

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("trc2.training.setup.prepare_stream", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start_run(at(tiny_run, folder), QUIET)
    assert not (tmp_path / "new").exists()
    assert start_run(at(tiny_run, folder), QUIET) == folder


def test_who_comes_a_moment_too_late_removes_nothing(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_meanwhile(folder: Path) -> AbstractContextManager[None]:
        folder.mkdir()
        (folder / "of the other").touch()
        raise UserError(f"{folder} is in use by process 1")

    monkeypatch.setattr("trc2.training.setup.lock_folder", taken_meanwhile)
    with pytest.raises(UserError, match="in use"):
        start_run(at(tiny_run, tmp_path / "run"), QUIET)
    assert (tmp_path / "run" / "of the other").exists()


def test_old_tasks_need_no_files_once_they_are_packed(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    for name in ("fruit", "tools"):
        write_task(root, name, [f"{name} {number}" for number in range(4)])
    own = {"data_root": root, "cache": root / "cache"}
    start_run(at(tiny_run, tmp_path / "whole", stream=own), QUIET)
    stop_after(at(tiny_run, tmp_path / "parted", stream=own), 8, monkeypatch)
    shutil.rmtree(root / "fruit")
    (root / "tools" / "train.jsonl").unlink()
    said = io.StringIO()
    resume_run(tmp_path / "parted", [], Console(file=said, width=200))
    assert "fruit: its files are gone. The packed tokens" in said.getvalue()
    assert compare_runs(tmp_path / "whole", tmp_path / "parted")[0] == []
    scores = score_target(find_target(str(tmp_path / "whole")), warn=print, tasks=["fruit"])
    assert scores["fruit"]["perplexity"] > 1
    write_task(tmp_path, "colours", ["red", "blue"])
    task = TaskConfig(name="colours", folder=str(tmp_path / "colours"), steps=2)
    continue_run(tmp_path / "whole", tmp_path / "child", task, QUIET)
    assert read_run(tmp_path / "child").is_finished
    packed = next((root / "cache" / "tasks").glob("fruit-*/train.tokens"))
    packed.write_bytes(packed.read_bytes()[::-1])  # what is not as it was packed is not used
    with pytest.raises(UserError, match="fruit, which is not a folder or file"):
        score_target(find_target(str(tmp_path / "whole")), warn=print, tasks=["fruit"])


@pytest.mark.parametrize(("threads", "is_told"), [(2, True), (1, False)])  # two threads would wait for each other
def test_crowded_cores_are_told(monkeypatch: pytest.MonkeyPatch, threads: int, is_told: bool) -> None:
    monkeypatch.setattr("trc2.training.setup.busy_cores", lambda: 7.0)
    monkeypatch.setattr("trc2.training.setup.available_cores", lambda: 8)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    text = io.StringIO()
    warn_if_crowded(Console(file=text, width=300))
    assert ("several times faster" in text.getvalue()) is is_told


def test_comparing_sees_a_single_different_bit(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "b")
    assert compare_runs(whole, tmp_path / "b")[0] == []
    saved = load_checkpoint(list_checkpoints(tmp_path / "b" / "checkpoints")[-1])
    saved.tensors["model.cortex.hippocampus.threshold"].add_(1e-7)
    checkpoint_module.save_checkpoint(tmp_path / "b" / "checkpoints", saved)
    assert compare_runs(whole, tmp_path / "b")[0] == ["model.cortex.hippocampus.threshold"]


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    stopped_at_7: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(stopped_at_7, tmp_path / "run")
    newest, before, *_ = reversed(list_checkpoints(tmp_path / "run" / "checkpoints"))
    (newest / "tensors.safetensors").write_bytes((newest / "tensors.safetensors").read_bytes()[:-5])
    found = RunFolder(tmp_path / "run").newest_checkpoint(print)
    assert found is not None
    assert found.step == step_of(before)
    assert "Trying the one before" in capsys.readouterr().out
    for path in list_checkpoints(tmp_path / "run" / "checkpoints"):
        (path / "state.json").unlink()
    with pytest.raises(UserError, match="None of the 3 checkpoints"):
        resume_run(tmp_path / "run", [], QUIET)


def test_learning_may_not_change_on_resume_but_execution_may(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(at(tiny_run, tmp_path / "run"), 4, monkeypatch)
    with pytest.raises(UserError, match=r"train\.learning_rate from 0\.001 to 0\.5"):
        resume_run(tmp_path / "run", ["train.learning_rate=0.5"], QUIET)
    with pytest.raises(UserError, match=r"model\.thalamus from True to False"):
        resume_run(tmp_path / "run", ["model.thalamus=false"], QUIET)
    for section in ("stream=null", "model=transformer", "strategy=ewc"):
        with pytest.raises(UserError, match="which changes what is learned"):
            resume_run(tmp_path / "run", [section], QUIET)
    resume_run(tmp_path / "run", ["output.keep_checkpoints=1", f"stream.cache={tmp_path / 'other'}"], QUIET)


def test_a_run_and_its_children_keep_the_text_that_the_run_began_with(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    for name in ("fruit", "tools", "colours"):
        write_task(root, name, [f"{name} {number}" for number in range(4)])
    own = {"data_root": root, "cache": root / "cache"}
    start_run(at(tiny_run, tmp_path / "whole", stream=own), QUIET)
    stop_after(at(tiny_run, tmp_path / "parted", stream=own), 8, monkeypatch)
    write_task(root, "fruit", ["other", "words"])
    said = io.StringIO()
    resume_run(tmp_path / "parted", [], Console(file=said, width=200))
    assert "fruit: its files give other text now. The packed tokens" in said.getvalue()
    assert compare_runs(tmp_path / "whole", tmp_path / "parted")[0] == []
    task = TaskConfig(name="colours", folder=str(root / "colours"), steps=2)
    continue_run(tmp_path / "whole", tmp_path / "child", task, QUIET)
    parent, child = (RunFolder(tmp_path / name).data()["tasks"] for name in ("whole", "child"))
    assert child["fruit"]["splits"] == parent["fruit"]["splits"]
    shutil.rmtree(root / "cache" / "tasks")  # as for a version of the package that packs the same files in another way
    with pytest.raises(UserError, match=r"\(fruit/train, fruit/validation, fruit/test\).* go on from its export"):
        continue_run(tmp_path / "whole", tmp_path / "later", task, QUIET)
    assert not (tmp_path / "later").exists()


def test_changed_data_is_refused_with_what_changed(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    for name in ("fruit", "tools"):
        write_task(data, name, ["x", "y"])
    own = {"data_root": data, "cache": data / "cache"}
    stop_after(at(tiny_run, tmp_path / "run", stream=own), 4, monkeypatch)
    path = data / "tools" / "train.jsonl"
    path.write_text(path.read_text() + '{"text": "a new line"}\n')
    shutil.rmtree(data / "cache" / "tasks")
    with pytest.raises(UserError, match=r"has changed since the run began \(tools/train\)"):
        resume_run(tmp_path / "run", [], QUIET)


def test_a_full_disk_loses_nothing_that_was_saved(
    tiny_run: MakeRun, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = checkpoint_module.write_durably, []

    def full(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) > 4:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        plain(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "write_durably", full)
        with pytest.raises(UserError, match="No space left on device: make room and resume from the last one"):
            start_run(at(tiny_run, tmp_path / "run"), QUIET)
    found = RunFolder(tmp_path / "run").newest_checkpoint(lambda message: None)
    assert found is not None
    assert found.step == 3
    resume_run(tmp_path / "run", [], QUIET)
    assert compare_runs(whole, tmp_path / "run")[0] == []


def test_saving_does_not_wait_for_the_disk(tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trc2.runs.checkpoint import Checkpoint
    from trc2.training.checkpoint_writer import CheckpointWriter

    release = threading.Event()
    plain = checkpoint_module.write_durably
    monkeypatch.setattr(
        checkpoint_module, "write_durably", lambda path, content: (release.wait(5), plain(path, content))
    )
    writer = CheckpointWriter(tmp_path, 2)
    tensor = torch.zeros(3)
    begun = time.monotonic()
    writer.write(Checkpoint(1, {"a": tensor}, {}))
    assert time.monotonic() - begun < 1.0
    tensor.add_(1.0)  # training goes on. The checkpoint keeps what was
    release.set()
    writer.wait()
    assert load_checkpoint(list_checkpoints(tmp_path)[-1]).tensors["a"].tolist() == [0.0, 0.0, 0.0]


def test_a_finished_run_learns_one_more_task_and_keeps_its_references(whole: Path, tmp_path: Path) -> None:
    write_task(tmp_path, "colours", ["red", "blue", "green"])
    parent = Path(shutil.copytree(whole, tmp_path / "parent"))
    before = sorted((path.name, path.stat().st_mtime_ns) for path in parent.rglob("*") if path.is_file())
    task = TaskConfig(name="colours", folder=str(tmp_path / "colours"), steps=5)
    child = continue_run(parent, tmp_path / "child", task, QUIET)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in parent.rglob("*") if path.is_file()) == before
    run, old = read_run(child), read_run(parent)
    assert [s.task for s in run.spans] == ["fruit", "tools", "colours"]
    assert run.is_finished
    table = run.tables["perplexity"]
    for name in ("fruit", "tools"):
        for step in (0, 6, 12):
            assert table.scores[step][name] == old.tables["perplexity"].scores[step][name]
    assert {0, 12, 17} <= {step for step in table.steps if table.has(step, "colours")}
    assert set(run.summary()) >= {"cl/perplexity/aufc/fruit", "cl/perplexity/aufc/tools"}
    assert json.loads((child / "parent.json").read_text())["step"] == 12
    assert relative_forgetting(child) >= 0.0
    assert RunFolder(child).config().train.schedule == "per_task"
    with pytest.raises(UserError, match="already holds a run"):
        continue_run(parent, child, TaskConfig(name="new", builtin="code"), QUIET)


def test_an_unfinished_run_cannot_be_continued_and_a_finished_one_not_resumed(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(at(tiny_run, tmp_path / "run"), 4, monkeypatch)
    with pytest.raises(UserError, match="is not finished: `trc2 resume"):
        continue_run(tmp_path / "run", tmp_path / "more", TaskConfig(name="new", builtin="code"), QUIET)
    resume_run(tmp_path / "run", [], QUIET)
    count = len(current(read_all_records(tmp_path / "run" / "metrics.jsonl")))
    resume_run(tmp_path / "run", [], QUIET)
    assert len(current(read_all_records(tmp_path / "run" / "metrics.jsonl"))) == count


def test_other_versions_of_libraries_are_said_and_kept(trained: Path) -> None:
    shutil.rmtree(list_checkpoints(trained / "checkpoints")[-1])
    file = trained / "environment.json"
    made = json.loads(file.read_text())
    now = made["versions"]["torch"]
    made["versions"]["torch"] = "1.0"
    file.write_text(json.dumps(made))
    console = Console(file=io.StringIO(), width=400)
    resume_run(trained, [], console)
    assert f"torch 1.0 → {now}" in console.file.getvalue()  # type: ignore[attr-defined]
    kept = json.loads(file.read_text())
    assert kept["versions"]["torch"] == "1.0"
    assert [again["versions"]["torch"] for again in kept["resumed"]] == [now]
    (record,) = [record for record in RunFolder(trained).all_records() if record.kind == "resume"]
    assert record.metrics == {"changed/torch": 1.0}
    shutil.rmtree(list_checkpoints(trained / "checkpoints")[-1])
    resume_run(trained, [], QUIET)
    assert json.loads(file.read_text()) == kept


def test_generated_text_is_put_back_to_the_byte(tmp_path: Path) -> None:
    kept = keep_texts("dream", ["one\u2028line", "next\x85line", "two\nlines"], tmp_path / "cache")
    text = (kept / "train.jsonl").read_bytes()
    tasks = [{"name": "dream", "folder": str(kept)}, {"name": "new", "folder": "new"}]
    config = tiny_run_config(tmp_path, tmp_path / "run", stream={"tasks": tasks})
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    Lineage("model", 0, ("new",), is_run=False, kept=("dream",), generated="dream").write(folder.parent_file)
    folder.dream_file.write_bytes(text)
    shutil.rmtree(kept)
    _put_back_generated(folder, config)
    assert (kept / "train.jsonl").read_bytes() == text


def test_a_generated_text_that_the_run_does_not_have_is_named(trained: Path) -> None:
    folder = RunFolder(trained)
    Lineage("model", 0, ("new",), is_run=False, generated="nothing").write(folder.parent_file)
    with pytest.raises(UserError, match="'nothing'"):
        resume_run(trained, [], QUIET)


def test_a_run_that_lost_its_parent_file_is_refused(whole: Path, tmp_path: Path) -> None:
    write_task(tmp_path, "colours", ["red", "blue", "green"])
    task = TaskConfig(name="colours", folder=str(tmp_path / "colours"), steps=2)
    child = continue_run(Path(shutil.copytree(whole, tmp_path / "parent")), tmp_path / "child", task, QUIET)
    shutil.rmtree(child / "checkpoints")  # without its parent.json, it would begin with new weights
    (child / "parent.json").unlink()
    lost = r"goes on from another run, but its parent\.json is missing: .* or remove the folder and run `trc2 continue`"
    with pytest.raises(UserError, match=lost):
        resume_run(child, [], QUIET)
    with pytest.raises(UserError, match=lost):
        continue_run(tmp_path / "parent", child, task, QUIET)
    shutil.rmtree(child)
    continue_run(tmp_path / "parent", child, task, QUIET)
