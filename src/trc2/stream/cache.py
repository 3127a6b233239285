"""Entries of the cache: one process at a time makes an entry, and every entry is checked before it is used."""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from trc2.errors import UserError
from trc2.system.files import refuse_special, write_atomically

CACHE_SCHEMA = 3  # part of every key: with another number everything is made again
HASH_CHUNK = 2**20
STAMPS = "verified.json"

T = TypeVar("T")
Waiting = Callable[[], None]
"""Called once if another process is making the same entry."""


@contextmanager
def sole_maker(entry: Path, waiting: Waiting) -> Iterator[None]:
    """Lock an entry of the cache. Inside, look again whether another process has made the entry.

    Leftovers of a killed process are removed first. The empty lock file stays, because two processes must never hold
    locks on two files of one name.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(entry.with_name(f"{entry.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        _remove_leftovers(entry)
        yield
    finally:
        lock.release()


def partial_of(entry: Path) -> Path:
    """The path at which an entry is made before it gets its name. For use inside `sole_maker`."""
    return entry.with_name(f".{entry.name}.partial")


def _remove_leftovers(entry: Path) -> None:
    """Remove unfinished files: names that begin with a dot and the entry's name, as of `write_atomically`."""
    for path in entry.parent.glob(f".{glob.escape(entry.name)}.*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remembered(path: Path, make: Callable[[], str], read: Callable[[str], T], waiting: Waiting) -> T:
    """A text that is made once and kept with its checksum. If it is missing or damaged, it is made again."""
    value = _recall(path, read)
    if value is None:
        with sole_maker(path, waiting):
            value = _recall(path, read)
            if value is None:
                text = make()
                content = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "text": text})
                write_atomically(path, content.encode())
                value = read(text)
    return value


def _recall(path: Path, read: Callable[[str], T]) -> T | None:
    if not path.is_file():  # reading a pipe of this name would block
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        is_whole = hashlib.sha256(kept["text"].encode()).hexdigest() == kept["sha256"]
        return read(kept["text"]) if is_whole else None
    except Exception:  # a damaged file can be anything, and the libraries that read it raise anything
        return None


def is_whole(folder: Path, checksums: dict[str, str]) -> bool:
    """Whether the files of a folder still have these checksums. Files that did not change since are not read again."""
    try:
        current = _checksums({name: folder / name for name in checksums}, folder / STAMPS)
        return all(
            checksum == current[name] or checksum == file_checksum(folder / name)
            for name, checksum in checksums.items()
        )
    except (FileNotFoundError, UserError):  # a file is missing, or is a pipe or a device
        return False


def known_checksums(paths: Sequence[Path], home: Path | None) -> list[str]:
    """The sha256 of files. `home` is the folder that keeps the checksums of files that do not change."""
    names = [str(path.resolve()) for path in paths]
    note = None if home is None else home / f"{digest(names)}.json"
    checksums = _checksums(dict(zip(names, paths, strict=True)), note)
    return [checksums[name] for name in names]


def _checksums(files: dict[str, Path], note: Path | None) -> dict[str, str]:
    """The sha256 of files. A file is read unless the note has its checksum with the same size, times and inode.

    If the note cannot be written, as in a cache without write permission, the files are read every time.
    """
    known: dict[str, Any] = {}
    if note is not None and note.is_file():
        with suppress(OSError, ValueError):  # damaged
            content = json.loads(note.read_text(encoding="utf-8"))
            known = content if isinstance(content, dict) else {}
    stamps: dict[str, list[Any]] = {}
    for name, path in files.items():
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        match known.get(name):
            case [*earlier, str(checksum)] if earlier == stamp:
                stamps[name] = [*stamp, checksum]
            case _:
                stamps[name] = [*stamp, file_checksum(path)]
    if note is not None and stamps != known:
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(note)  # of a process that was killed. A live one tries again next time
            write_atomically(note, json.dumps(stamps).encode())
    return {name: stamp[-1] for name, stamp in stamps.items()}


def file_checksum(path: Path) -> str:
    """The sha256 of a file, read in pieces of a megabyte."""
    refuse_special(path)
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK):
            checksum.update(chunk)
    return checksum.hexdigest()


def digest(content: Any) -> str:
    """A hash of settings and checksums, for names and keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def expanded(path: Path | str) -> Path:
    """A path with its `~` filled in."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path} names the home of a user that is not known here: write the whole path.") from None
