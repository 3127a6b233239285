"""What lies in the cache: made by one process at a time, and not believed unless it is what was written."""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from trc2.errors import UserError
from trc2.system.files import refuse_special, write_atomically

CACHE_SCHEMA = 2  # part of every key: with another number everything is made again
HASH_CHUNK = 2**20
STAMPS = "verified.json"

Found = TypeVar("Found")
Waiting = Callable[[], None]
"""Told once if another process is making the same thing."""


@contextmanager
def sole_maker(entry: Path, waiting: Waiting) -> Iterator[None]:
    """Only one process at a time makes an entry of the cache; look again inside whether another one has made it.

    What a killed process left of its attempt is removed first. The lock dies with its process; its empty file stays,
    because two processes must never hold locks on two files of one name.
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
    """Where an entry is made before it gets its name; to be used inside `sole_maker`."""
    return entry.with_name(f".{entry.name}.partial")


def _remove_leftovers(entry: Path) -> None:
    """All names that begin with the entry's own after a dot are unfinished: partial_of, write_atomically and so on."""
    for path in entry.parent.glob(f".{glob.escape(entry.name)}.*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remembered(path: Path, make: Callable[[], str], read: Callable[[str], Found], waiting: Waiting) -> Found:
    """A text that is made once and kept with its checksum; where it is missing or damaged it is made again."""
    found = _recall(path, read)
    if found is None:
        with sole_maker(path, waiting):
            found = _recall(path, read)
            if found is None:
                text = make()
                content = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "text": text})
                write_atomically(path, content.encode())
                found = read(text)
    return found


def _recall(path: Path, read: Callable[[str], Found]) -> Found | None:
    if not path.is_file():  # a pipe of this name would be waited for
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        is_whole = hashlib.sha256(kept["text"].encode()).hexdigest() == kept["sha256"]
        return read(kept["text"]) if is_whole else None
    except Exception:  # a damaged file can be anything, and the libraries that read it raise anything
        return None


def is_whole(folder: Path, checksums: dict[str, str]) -> bool:
    """Whether the files of a folder still have these checksums.

    A file is read only if it is not the one that was found whole before: same size, times and inode. Where that
    cannot be written down, as in a cache without write permission, it is read every time.
    """
    known = _read_stamps(folder)
    stamps: dict[str, list[int | str]] = {}
    for name, checksum in checksums.items():
        try:
            status = (folder / name).stat()
            if not stat.S_ISREG(status.st_mode):
                return False
            stamps[name] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, checksum]
            if stamps[name] != known.get(name) and file_checksum(folder / name) != checksum:
                return False
        except FileNotFoundError:
            return False
    if stamps != known:
        with suppress(OSError):
            _remove_leftovers(folder / STAMPS)  # of a process that was killed; one that lives tries again next time
            write_atomically(folder / STAMPS, json.dumps(stamps).encode())
    return True


def _read_stamps(folder: Path) -> dict[str, object]:
    if not (folder / STAMPS).is_file():
        return {}
    try:
        stamps = json.loads((folder / STAMPS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def file_checksum(path: Path) -> str:
    """The sha256 of a file, of which only a megabyte is held at a time."""
    refuse_special(path)
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK):
            checksum.update(chunk)
    return checksum.hexdigest()


def known_checksums(paths: Sequence[Path], home: Path | None) -> list[str]:
    """The sha256 of files, each read once: what it was is kept in `home` for as long as the file stays untouched.

    Where nothing can be kept, as in a cache without write permission, the files are read every time.
    """
    if home is None:
        return [file_checksum(path) for path in paths]
    names = [str(path.resolve()) for path in paths]
    note = home / f"{digest(names)}.json"
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # not there, or damaged
        refuse_special(note)
        content = json.loads(note.read_text(encoding="utf-8"))
        known = content if isinstance(content, dict) else {}
    found: dict[str, list[Any]] = {}
    for name, path in zip(names, paths, strict=True):
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        kept = known.get(name)
        is_known = isinstance(kept, list) and kept[:-1] == stamp and isinstance(kept[-1], str)
        found[name] = [*stamp, kept[-1] if is_known and kept else file_checksum(path)]
    if found != known:
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            write_atomically(note, json.dumps(found).encode())
    return [found[name][-1] for name in names]


def digest(content: Any) -> str:
    """A name for settings and checksums: what differs has another one."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def expanded(path: Path | str) -> Path:
    """A path with its `~` filled in."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path} names the home folder of nobody here: write the path out.") from None
