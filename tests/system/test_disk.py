"""A full disk, and one that cannot be written: one sentence, nothing lost, and it works once there is room.

Where the system allows it these are real small file systems. Elsewhere the system's own limit on the size of files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from tests.command import trc2
from tests.conftest import tiny_run_config
from tests.small_disk import SmallDisk
from trc2.config import RunConfig
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint
from trc2.training.setup import start_run
from trc2.verify.kill_tests import compare_runs

QUIET = Console(quiet=True)
MakeRun = Callable[..., RunConfig]


@pytest.fixture
def recipe(tiny_run: MakeRun, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_run(eval={"check_no_side_effects": False}).model_dump(mode="json")))
    return path


@pytest.fixture(scope="module")
def whole(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of that recipe on a disk with room."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return start_run(tiny_run_config(tiny_data, folder, eval={"check_no_side_effects": False}), QUIET)


def is_one_sentence(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    return len(lines) == 1 and "Traceback" not in text


@pytest.mark.parametrize("kilobytes", [4, 300, *(pytest.param(k, marks=pytest.mark.slow) for k in (40, 740))])
def test_a_run_on_a_full_disk_says_so_and_goes_on_to_the_bit_once_there_is_room(
    disk: SmallDisk, recipe: Path, whole: Path, kilobytes: int
) -> None:
    folder = disk.folder / "run"
    with disk.full(kilobytes):
        done = trc2("train", str(recipe), f"output.folder={folder}")
    assert done.code == 2, done.out
    assert is_one_sentence(done.err), done.err
    assert any(word in done.err for word in ("No space left", "File too large"))
    for path in list_checkpoints(folder / "checkpoints"):
        load_checkpoint(path)  # whatever has its name is whole
    command = (
        ["resume", str(folder)]
        if (folder / "config.yaml").exists()
        else ["train", str(recipe), f"output.folder={folder}"]
    )
    again = trc2(*command)
    assert again.code == 0, again.err
    assert compare_runs(whole, folder)[0] == []


def test_every_command_that_writes_says_in_one_sentence_that_the_disk_is_full_or_read_only(
    disk: SmallDisk, recipe: Path, tiny_run: MakeRun, trained: Path, tmp_path: Path
) -> None:
    run = trained
    there = disk.folder
    data = ["--folder", str(tmp_path / "nothing"), "--steps", "2"]
    shutil.copytree(tiny_run().stream.data_root / "fruit", tmp_path / "nothing")
    commands = {
        "train": ["train", str(recipe), f"output.folder={there / 'run'}"],
        "continue": ["continue", str(run), "--task", "more", *data, "--out", str(there / "child")],
        "export": ["export", str(run), str(there / "model")],
        "prepare": ["data", "prepare", str(recipe), f"stream.cache={there / 'cache'}"],
        "report": ["report", str(run), str(run), "--out", str(there / "report")],
    }
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for name, command in commands.items():
        with disk.full(4):
            full = trc2(*command)
        assert full.code == 2, (name, full)
        assert is_one_sentence(full.err), (name, full.err)
        disk.clear()
        with disk.read_only() as is_so:
            if is_so:
                refused = trc2(*command)
                assert refused.code == 2, (name, refused)
                assert is_one_sentence(refused.err), (name, refused.err)
                assert str(there) in refused.err, (name, refused.err)
        done = trc2(*command)
        assert done.code == 0, (name, done.err)
        disk.clear()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
