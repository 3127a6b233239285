"""Many processes, one cache: each entry is made once and is whole, or is made again."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_task
from trc2.config import StreamConfig
from trc2.stream import cache
from trc2.stream.cache import file_checksum, is_whole, partial_of, remembered, sole_maker
from trc2.stream.prepare import WAITING, prepare_stream

PROCESSES = 6


def stream(root: Path) -> StreamConfig:
    tasks = [{"name": name, "folder": name} for name in ("one", "two")]
    return StreamConfig(tasks=tasks, data_root=root, cache=root / "cache", tokenizer={"vocab_size": 400})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_task(tmp_path, "one", ["a", "b", "c"], documents=400)
    write_task(tmp_path, "two", ["d", "e", "f"], documents=400)
    return tmp_path


def prepare_in_process(root: Path, together: Barrier, answers: Any) -> None:
    together.wait()
    try:
        answers.put(prepare_stream(stream(root)).fingerprint())
    except BaseException as error:
        answers.put(repr(error))


def die_at(root: Path, moment: str) -> None:
    """A process that is killed when it reports this moment."""

    def watch(text: str) -> None:
        if text.startswith(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    prepare_stream(stream(root), watch)


def unfinished(root: Path) -> list[Path]:
    return list((root / "cache").rglob(".*"))


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # else every process imports this file, and torch with it
    return context


def test_processes_that_meet_in_a_cold_cache_all_find_the_same(
    root: Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    together, answers = processes.Barrier(PROCESSES), processes.Queue()
    started = [processes.Process(target=prepare_in_process, args=(root, together, answers)) for _ in range(PROCESSES)]
    for process in started:
        process.start()
    found = {answers.get(timeout=120) for _ in started}
    for process in started:
        process.join()
    assert found == {prepare_stream(stream(root)).fingerprint()}
    assert unfinished(root) == []
    assert sorted(path.suffix for path in (root / "cache" / "tasks").iterdir()) == ["", "", ".lock", ".lock"]
    assert [path.suffix for path in sorted((root / "cache" / "tokenizers").iterdir())] == [".json", ".lock"]


@pytest.mark.parametrize("moment", ["reading", "packing one/train", "packing two/validation", "packing two/test"])
def test_a_killed_process_leaves_nothing_that_hinders_the_next(
    root: Path, processes: multiprocessing.context.ForkServerContext, moment: str
) -> None:
    process = processes.Process(target=die_at, args=(root, moment))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (moment == "reading") == (unfinished(root) == [])
    prepared = prepare_stream(stream(root))
    assert unfinished(root) == []
    assert prepared.fingerprint() == prepare_stream(stream(root).replace(cache=root / "fresh")).fingerprint()


def test_who_waits_for_another_process_says_so(root: Path) -> None:
    prepared = prepare_stream(stream(root))
    (prepared.tasks["one"].folder / "manifest.json").unlink()
    told: list[str] = []
    holds, go = threading.Event(), threading.Event()

    def hold() -> None:
        with sole_maker(prepared.tasks["one"].folder, lambda: None):
            holds.set()
            go.wait(60)

    def watch(text: str) -> None:
        told.append(text)
        go.set()

    other = threading.Thread(target=hold)
    other.start()
    holds.wait(60)
    assert prepare_stream(stream(root), watch).fingerprint() == prepared.fingerprint()
    other.join()
    assert told[0] == f"one: {WAITING}"


def test_what_is_left_of_an_earlier_attempt_is_removed_before_the_next(tmp_path: Path) -> None:
    entry = tmp_path / "tasks" / "one-12"
    partial_of(entry).mkdir(parents=True)
    (partial_of(entry) / "train.tokens").touch()
    (tmp_path / "tasks" / ".one-12.abcd.old").mkdir()
    (tmp_path / "tasks" / ".one-12.abcd.partial").touch()
    others = [tmp_path / "tasks" / name for name in (".one-123.partial", "one-12.json")]
    for path in others:
        path.touch()
    with sole_maker(entry, lambda: None):
        left = sorted(path for path in entry.parent.iterdir() if path.suffix != ".lock")
    assert left == sorted(others)


def test_a_remembered_text_is_made_once_and_again_when_it_is_damaged(tmp_path: Path) -> None:
    path, made = tmp_path / "kept" / "x.json", []

    def make() -> str:
        made.append(1)
        return json.dumps([1, "é"])

    for _ in range(3):
        assert remembered(path, make, json.loads, lambda: None) == [1, "é"]
    assert len(made) == 1
    path.write_text(path.read_text().replace("[1", "[2"))
    assert remembered(path, make, json.loads, lambda: None) == [1, "é"]
    assert len(made) == 2


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.tokens"
    path.write_bytes(bytes(3_000_000))
    checksums = {path.name: file_checksum(path)}
    hashed: list[Path] = []
    monkeypatch.setattr(cache, "file_checksum", lambda path: hashed.append(path) or file_checksum(path))
    for _ in range(3):
        assert is_whole(tmp_path, checksums)
    assert len(hashed) == 1
    path.touch()
    assert is_whole(tmp_path, checksums)
    assert len(hashed) == 2
    assert not is_whole(tmp_path, {path.name: "0" * 64})
    path.write_bytes(bytes(2_999_999) + b"1")
    assert not is_whole(tmp_path, checksums)
    path.unlink()
    assert not is_whole(tmp_path, checksums)


def test_a_large_file_is_read_once_until_it_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, home, read = tmp_path / "weights", tmp_path / "cache", list[Path]()
    plain = cache.file_checksum
    monkeypatch.setattr(cache, "file_checksum", lambda path: (read.append(path), plain(path))[1])
    file.write_bytes(b"one")
    first = cache.known_checksums([file], home)[0]
    assert first == hashlib.sha256(b"one").hexdigest()
    assert cache.known_checksums([file], home)[0] == first
    assert len(read) == 1
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert cache.known_checksums([file], home)[0] == hashlib.sha256(b"two").hexdigest()
    next(home.iterdir()).write_text("damaged")
    assert cache.known_checksums([file], home)[0] == hashlib.sha256(b"two").hexdigest()
    assert len(read) == 3
    assert cache.known_checksums([file], file / "nowhere")[0] == hashlib.sha256(b"two").hexdigest()
