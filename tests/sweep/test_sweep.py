"""A sweep ends what it began, however often it is stopped, and one bad run stops nothing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests.command import trc2
from trc2.config import RunConfig, settings_text
from trc2.errors import UserError
from trc2.report.run import read_run
from trc2.report.runs import read_runs
from trc2.runs.folder import RunFolder
from trc2.runs.lock import is_locked, lock_folder
from trc2.runs.records import Record
from trc2.sweep.local_launcher import LocalLauncher
from trc2.sweep.matrix import Matrix
from trc2.sweep.progress import seconds_left
from trc2.sweep.run import run_sweep
from trc2.sweep.status import Standing, note_failure, standing
from trc2.system.console import clock
from trc2.training.setup import Interrupted, start_run
from trc2.verify.kill_tests import compare_runs

QUIET = Console(quiet=True)
MakeRun = Callable[..., RunConfig]


@pytest.fixture
def recipe(tiny_run: MakeRun, tmp_path: Path) -> str:
    """The file of the recipe that `trained_once` has trained, which takes a second."""
    path = tmp_path / "tiny.yaml"
    path.write_text(settings_text(tiny_run(train={"micro_batches": 1}).model_dump(mode="json")))
    return str(path)


def test_a_failed_run_is_kept_and_shown_and_the_others_end(recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    nowhere = {"nowhere": ["stream.data_root=nowhere"]}
    cells = Matrix(grids=[{"recipes": [recipe]}, {"recipes": [recipe], "ablations": nowhere}]).cells()
    outcome = run_sweep(cells, out, LocalLauncher(2, cores=2), QUIET, keep=False)
    assert {name: found.state for name, found in outcome.items()} == {
        "tiny+s0": "ended",
        "tiny+nowhere+s0": "failed",
    }
    assert "nowhere" in outcome["tiny+nowhere+s0"].problem
    assert json.loads((out / "tiny+nowhere+s0" / "failure.json").read_text())["exit_code"] == 2
    first = shlex.split((out / ".logs" / "tiny+s0.log").read_text().splitlines()[0])
    assert first == ["$", "trc2", *cells[0].command(out / "tiny+s0"), "output.threads=1"]
    assert json.loads((out / "tiny+s0" / "environment.json").read_text())["threads"] == 1
    assert sorted(path.name for path in (out / "tiny+s0").iterdir()) == [
        "budget.json", "config.yaml", "data.json", "environment.json", "metrics.jsonl.gz", "variant.json",
    ]  # fmt: skip

    alone = start_run(cells[0].config.replace(output={"folder": tmp_path / "alone", "threads": 1}), QUIET)
    assert read_run(alone).tables == read_run(out / "tiny+s0").tables
    assert len(read_runs([out]).runs) == 1

    assert (alone / "checkpoints").is_dir()
    shutil.rmtree(out / "tiny+s0")
    shutil.move(alone, out / "tiny+s0")  # a run that ended outside a sweep is made small, if no process holds it
    with lock_folder(out / "tiny+s0"):
        run_sweep(cells, out, LocalLauncher(2, cores=2), QUIET, keep=False)
        assert (out / "tiny+s0" / "checkpoints").is_dir()
    again = run_sweep(cells, out, LocalLauncher(2, cores=2), QUIET, keep=False)
    assert again["tiny+nowhere+s0"] == outcome["tiny+nowhere+s0"]
    assert not (out / "tiny+s0" / "checkpoints").exists()
    assert (out / "tiny+s0" / "metrics.jsonl.gz").is_file()

    outcome = run_sweep(cells, out, LocalLauncher(2, cores=2), QUIET)
    before = (out / "tiny+s0" / "metrics.jsonl.gz").stat().st_mtime_ns
    again = run_sweep(cells, out, LocalLauncher(2, cores=2), QUIET)
    assert again == outcome  # nothing left to do: neither the ended nor the failed one is touched
    assert (out / "tiny+s0" / "metrics.jsonl.gz").stat().st_mtime_ns == before


class Noting:
    """Notes what it should start, and says that every run failed."""

    slots, threads, most_threads = 1, 4, 4

    def __init__(self) -> None:
        self.started: dict[str, tuple[list[str], int]] = {}
        self.open: list[str] = []

    def start(self, name: str, arguments: list[str], threads: int, log: Path) -> None:
        self.started[name] = arguments, threads
        self.open.append(name)

    def ended(self) -> dict[str, int]:
        codes = dict.fromkeys(self.open, 2)
        self.open.clear()
        return codes

    def stop(self) -> None:
        pass


def test_output_threads_of_a_run_wins_and_its_folder_says_what_the_matrix_calls_it(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    recipe, out, launcher = tmp_path / "tiny.yaml", tmp_path / "sweep", Noting()
    values = tiny_run().model_dump(mode="json")
    values["output"].pop("threads")
    recipe.write_text(settings_text(values))
    matrix = Matrix(
        title="threads", grids=[{"recipes": [str(recipe)], "ablations": {"own": ["output.threads=2"], "free": []}}]
    )
    with pytest.raises(UserError, match=r"output.threads=8.*add output.threads=4"):
        run_sweep(matrix.cells(["output.threads=8"]), out, launcher, QUIET)
    run_sweep(matrix.cells(), out, launcher, QUIET, matrix="mine", title=matrix.title)
    assert {name: (words[-1], threads) for name, (words, threads) in launcher.started.items()} == {
        "tiny+own+s0": ("output.threads=2", 2),
        "tiny+free+s0": ("output.threads=4", 4),
    }
    assert RunFolder(out / "tiny+own+s0").variant() == {
        "schema": 1, "matrix": "mine", "title": "threads", "order": [], "seed": 0,
        "axes": {"recipe": "tiny", "size": "", "ablation": "own", "strategy": ""},
    }  # fmt: skip


def test_a_run_that_was_stopped_is_resumed(recipe: str, trained_once: Path, tmp_path: Path) -> None:
    out, launcher = tmp_path / "sweep", Noting()
    folder = RunFolder(Path(shutil.copytree(trained_once, out / "tiny+s0")))
    lines = folder.metrics_file.read_text().splitlines(keepends=True)
    folder.metrics_file.write_text("".join(lines[: len(lines) // 2]))
    cells = Matrix(grids=[{"recipes": [recipe]}]).cells()
    assert standing(cells[0], out).state == "begun"
    run_sweep(cells, out, launcher, QUIET)
    assert launcher.started == {"tiny+s0": (["resume", str(folder), "output.threads=1"], 1)}


@pytest.mark.slow
def test_killed_or_interrupted_it_goes_on_mid_run(recipe: str, tmp_path: Path) -> None:
    out, file = tmp_path / "sweep", tmp_path / "matrix.yaml"
    # Long enough that it cannot end between the signal and the step that heeds it, however quick the machine is.
    often = ["output.checkpoint_every=5", "stream.tasks.0.steps=60", "stream.tasks.1.steps=60", "eval.every_steps=60"]
    file.write_text(f"grids: [{{recipes: [{recipe}], settings: {json.dumps(often)}}}]")
    cells = Matrix(grids=[{"recipes": [recipe], "settings": often}]).cells()
    metrics_log = RunFolder(out / "tiny+s0").metrics_file

    def when_it_grows(process: int, number: signal.Signals) -> None:
        size, deadline = metrics_log.stat().st_size if metrics_log.exists() else 0, time.monotonic() + 120
        while not (metrics_log.exists() and metrics_log.stat().st_size > size) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process, number)

    command = [sys.executable, "-m", "trc2", "sweep", str(file), "--out", str(out), "--jobs", "2"]
    sweep = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    when_it_grows(sweep.pid, signal.SIGKILL)
    assert sweep.wait() == -signal.SIGKILL
    while is_locked(out / "tiny+s0"):  # its run saves and stops
        time.sleep(0.01)

    interrupter = threading.Thread(target=when_it_grows, args=(os.getpid(), signal.SIGINT))
    interrupter.start()
    with pytest.raises(Interrupted, match="go on with the same `trc2 sweep`"):
        run_sweep(cells, out, LocalLauncher(2, cores=2), QUIET)
    interrupter.join()
    assert standing(cells[0], out).state == "begun"

    run_sweep(cells, out, LocalLauncher(2, cores=2), QUIET)
    output = {**cells[0].config.output.model_dump(), "folder": tmp_path / "undisturbed"}
    undisturbed = start_run(cells[0].config.replace(output=output), QUIET)
    differences = compare_runs(undisturbed, out / "tiny+s0")[0]
    assert differences in ([], ["state.rng"])  # pytest's process has drawn from the global generators, a child not


def test_a_folder_with_another_run_of_that_name_is_refused(recipe: str, trained_once: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    folder = RunFolder(Path(shutil.copytree(trained_once, out / "tiny+s0")))
    other = folder.config().replace(train={**folder.config().train.model_dump(), "seed": 5})
    folder.config_file.write_text(settings_text(other.model_dump(mode="json")))
    with pytest.raises(UserError, match="holds a run with other settings than the matrix asks for"):
        run_sweep(Matrix(grids=[{"recipes": [recipe]}]).cells(), out, LocalLauncher(1), QUIET)


def test_the_list_says_where_runs_stand(recipe: str, trained_once: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "sweep", tmp_path / "matrix.yaml"
    file.write_text(f"grids: [{{recipes: [{recipe}], seeds: [0, 1]}}]")
    shutil.copytree(trained_once, out / "tiny+s0")
    shown = trc2("sweep", str(file), "--out", str(out), "--list").out
    assert "ended        12/12  tiny+s0" in shown
    assert "waiting       0/12  tiny+s1" in shown


def test_jobs_divide_the_cores_and_a_run_has_at_most_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [LocalLauncher(jobs, cores=8).threads for jobs in (1, 2, 3, 8)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [LocalLauncher(jobs, cores=8).threads for jobs in (2, 4)] == [3, 2]
    assert LocalLauncher(2, cores=8, threads=1).threads == 1
    with pytest.raises(UserError, match="--jobs 3 is more than this machine's 2 cores"):
        LocalLauncher(3, cores=2)
    with pytest.raises(UserError, match=r"--threads 5 .* at most --threads 4"):
        LocalLauncher(2, cores=8, threads=5)


def test_the_time_left_is_that_of_the_runs_left(tiny_run: MakeRun) -> None:
    from trc2.sweep.matrix import Cell, Variant

    cells = {name: Cell(name, "demo", (), 0, Variant(tiny_run())) for name in "abc"}
    waiting, begun = Standing("waiting", 0, 100), Standing("begun", 50, 100, seconds=25.0)
    assert seconds_left({"a": waiting}, cells, 1) is None
    assert seconds_left({"a": begun}, cells, 1) == pytest.approx(25.0)
    assert seconds_left({"a": begun, "b": waiting}, cells, 1) == pytest.approx(75.0)
    assert seconds_left({"a": begun, "b": waiting, "c": waiting}, cells, 2) == pytest.approx(62.5)
    assert (clock(None), clock(65), clock(3720)) == ("time left unknown", "1:05 left", "1:02 h left")


def test_an_end_that_a_resume_went_back_on_is_no_end(recipe: str, tiny_run: MakeRun, tmp_path: Path) -> None:
    (cell,) = Matrix(grids=[{"recipes": [recipe]}]).cells()
    folder = start_run(cell.config.replace(output={"folder": tmp_path / "out" / cell.name, "threads": 1}), QUIET)
    assert standing(cell, tmp_path / "out").state == "ended"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(Record("resume", 6, "").to_json() + "\n")
    found = standing(cell, tmp_path / "out")
    assert (found.state, found.step) == ("begun", 6)


def test_a_run_that_was_killed_says_by_which_signal(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("sky: 3 files taken\n")
    assert note_failure(tmp_path / "run", -9, tmp_path / "log") == "killed by signal 9 (Killed)"
    assert "sky: 3 files" in json.loads((tmp_path / "run" / "failure.json").read_text())["output"]
