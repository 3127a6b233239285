"""Real workers of torchrun: started, killed, started again, and refused in one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import trc2
from tests.distributed.several import together
from trc2.config import settings_text
from trc2.runs.folder import RunFolder
from trc2.runs.lock import is_locked
from trc2.training.setup import start_run
from trc2.verify.kill_tests import QUIET, WORDS, compare_runs, small_run, write_small_data

HERE = Path(__file__).parent


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A run with everything switched on that trains in seconds."""
    write_small_data(tmp_path / "data", WORDS)
    path = tmp_path / "small.yaml"
    path.write_text(settings_text(small_run(tmp_path).model_dump(mode="json")))
    return path


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_the_run_ends_as_if_nothing_had_been(recipe: Path, tmp_path: Path) -> None:
    """The last rank gets SIGKILL in its eleventh step. torchrun starts both again, and `train` goes on from step 9."""
    environment = {**os.environ, "DOOM": "step:11", "PYTHONPATH": os.pathsep.join(sys.path)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max-restarts=1"]
    torchrun += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--monitor-interval=0.1"]
    command = ["train", str(recipe), f"output.folder={tmp_path / 'killed'}", "output.check_ranks=true"]
    done = subprocess.run(
        [*torchrun, str(HERE / "doomed.py"), *command],
        env=environment, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    together(2, start_run, small_run(tmp_path).replace(output={"folder": tmp_path / "whole", "threads": 1}), QUIET)
    assert [record.step for record in RunFolder(tmp_path / "killed").all_records() if record.kind == "resume"] == [9]
    different, tensors, records = compare_runs(tmp_path / "whole", tmp_path / "killed")
    assert different in ([], ["state.rng"])  # checks of annotations draw from Python's generator
    assert (tensors > 100, records > 30) == (True, True)
    assert done.stdout.count("Forgetting at the end") == 1  # only the first rank speaks
    assert "Another process of this run was lost" in done.stderr
    assert "Traceback" not in done.stderr


def test_several_processes_are_refused_before_anything_is_written(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = trc2("train", str(recipe), f"output.folder={folder}", "--nproc", "3")
    assert (done.code, done.out) == (2, "")
    assert "micro_batches=2 cannot be divided over 3 processes: use 1 or 2 of them" in " ".join(done.err.split())
    assert not folder.exists()


@pytest.mark.slow
def test_nproc_starts_the_processes_and_exits_as_they_do(recipe: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trc2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    train = [*command, "train", str(recipe), f"output.folder={tmp_path / 'run'}", "--nproc", "2"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=150, check=False)

    assert run(*train).returncode == 0
    again = run(*train)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.count("already holds a run") == 1
    assert len(again.stderr.strip().splitlines()) == 1
    assert run(*command, "resume", str(tmp_path / "run"), "--nproc", "2").returncode == 0
    child = ["--task", "birds", "--builtin", "arithmetic", "--steps", "2", "--max-forgetting", "1e9"]
    assert run(*command, "continue", str(tmp_path / "run"), *child, "--nproc", "2").returncode == 0
    assert RunFolder(tmp_path / "run+birds").records()[-1].kind == "end"


def descendants(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in found]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent was killed")
@pytest.mark.parametrize("victim", ["launcher", "first worker"])
def test_workers_end_with_their_launcher_and_a_killed_first_worker_is_said(
    recipe: Path, tmp_path: Path, victim: str
) -> None:
    long = [f"stream.tasks.{n}.steps=4000" for n in range(len(small_run(tmp_path).stream.tasks))]  # type: ignore[union-attr]
    train = ["train", str(recipe), f"output.folder={tmp_path / 'run'}", "--nproc", "2", *long]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = subprocess.Popen(
        [sys.executable, "-m", "trc2", *train], env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    metrics_log = tmp_path / "run" / "metrics.jsonl"
    waited = time.monotonic() + 120
    while not (metrics_log.exists() and metrics_log.read_text().count('"train"') > 3) and time.monotonic() < waited:
        time.sleep(0.2)
    workers = descendants(launcher.pid)
    assert len(workers) == 2
    ranks = {worker: Path(f"/proc/{worker}/environ").read_bytes().split(b"\0") for worker in workers}
    first = next(worker for worker, variables in ranks.items() if b"RANK=0" in variables)
    os.kill(launcher.pid if victim == "launcher" else first, signal.SIGKILL)
    said = launcher.communicate(timeout=60)[1]
    waited = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < waited:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    if victim == "launcher":
        assert not is_locked(tmp_path / "run")
    else:
        assert launcher.returncode == 1
        assert "killed by signal 9" in said
        assert "Traceback" not in said
