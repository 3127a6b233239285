"""Files that appear whole or not at all, and nothing that is left of a killed writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trc2.errors import UserError
from trc2.system.files import filled, write_atomically

KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
import trc2.system.files as files
files.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path(sys.argv[1]), b"new")
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_next_write_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b"old")
    (tmp_path / ".table.json.notes").write_text("not ours")
    (tmp_path / ".other.json.00000000.partial").write_text("of another file")
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 4
    assert path.read_bytes() == b"old"
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert names(tmp_path) == [".other.json.00000000.partial", ".table.json.notes", "table.json"]


def test_writers_at_once_do_not_remove_each_other(tmp_path: Path) -> None:
    path, contents = tmp_path / "table.json", [bytes([65 + number]) * 5000 for number in range(4)]

    def write(content: bytes) -> None:
        for _ in range(25):
            write_atomically(path, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_bytes() in contents
    assert names(tmp_path) == ["table.json"]
    assert os.stat(path).st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_is_filled_whole_or_not_at_all_and_an_empty_one_stays_itself(tmp_path: Path, is_there: bool) -> None:
    target = tmp_path / "deep" / "model"
    if is_there:  # it may be a mount point, or the current folder
        target.mkdir(parents=True)
        inode = target.stat().st_ino
    with pytest.raises(OSError, match="full"), filled(target) as partial:  # noqa: PT012
        (partial / "a").write_text("half")
        raise OSError("full")
    assert (names(target) if is_there else names(target.parent)) == []
    partial.mkdir()  # as a killed writer leaves it
    (partial / "a").write_text("half")
    with filled(target) as partial:
        (partial / "b").write_text("b")
        (partial / "inner").mkdir()
        assert not (target / "b").exists()
    assert (names(target), names(target.parent)) == (["b", "inner"], ["model"])
    if is_there:
        assert target.stat().st_ino == inode
    with pytest.raises(UserError, match="is not empty"), filled(target):
        pass
    with pytest.raises(UserError, match="is a file"), filled(target / "b"):
        pass
