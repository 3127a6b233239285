from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trc2.errors import UserError
from trc2.runs.lock import is_locked, lock_folder

HOLD = """
import sys, time
from pathlib import Path
from trc2.runs.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "held"
    return process


def test_a_second_process_is_refused_with_the_number_of_the_first_until_that_dies(tmp_path: Path) -> None:
    process = hold(tmp_path)
    try:
        for _ in range(2):  # asking must not erase who holds it
            assert is_locked(tmp_path)
            with pytest.raises(UserError, match=f"in use by process {process.pid}:"), lock_folder(tmp_path):
                pass
    finally:
        process.kill()
        process.communicate()
    assert not is_locked(tmp_path)
    with lock_folder(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_one_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(UserError, match=f"in use by process {os.getpid()}"):  # noqa: SIM117
        with lock_folder(tmp_path):
            pass


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lock", "lock.owner"])
def test_what_a_link_points_to_is_never_overwritten(name: str, tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.write_text("kept")
    folder.mkdir()
    (folder / name).symlink_to(precious)
    try:
        with lock_folder(folder):
            pass
    except OSError:
        assert name == "lock"
    assert precious.read_text() == "kept"
    assert not is_locked(folder)
