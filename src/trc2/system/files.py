"""Files that appear whole or not at all, and one sentence about damaged ones."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trc2.errors import UserError, brief, sentence_of

PARTIAL = ".partial"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader sees the old file or the whole new one, also after a crash."""
    refuse_folder(path)
    with suppress(OSError):
        _remove_leftovers(path)
    if sys.platform == "win32":  # an open file cannot be renamed there
        partial = _partial_of(path)
        try:
            write_durably(partial, content)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        return
    with _locked_partial(path) as (handle, partial), about(partial), open(handle, "wb", closefd=False) as file:
        file.write(content)
        file.flush()
        os.fsync(handle)
        os.replace(partial, path)


def _prefix_of(path: Path) -> str:
    return f".{path.name[:200]}."


def _partial_of(path: Path) -> Path:
    return path.with_name(f"{_prefix_of(path)}{secrets.token_hex(4)}{PARTIAL}")


def is_partial(path: Path, of: Path) -> bool:
    """Whether this is what a killed `write_atomically` of a file may leave beside it."""
    return path.parent == of.parent and path.name.startswith(_prefix_of(of)) and path.name.endswith(PARTIAL)


@contextmanager
def _locked_partial(path: Path) -> Iterator[tuple[int, Path]]:
    """A new partial file with a lock on it, which the system releases when its writer is killed."""
    import fcntl

    while True:
        partial = _partial_of(path)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if not os.fstat(handle).st_nlink:  # another writer took it for a leftover before it was locked
                continue
            yield handle, partial
            return
        finally:
            os.close(handle)
            partial.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove partial files of this file whose writers were killed."""
    if sys.platform == "win32":
        return
    import fcntl

    for entry in list(os.scandir(path.parent)):
        if not is_partial(path.with_name(entry.name), path):
            continue
        handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(entry.path)
        except BlockingIOError:
            pass  # its writer is alive
        finally:
            os.close(handle)


def refuse_folder(path: Path) -> None:
    """Refuse a folder where a file is to be written, before anything is."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def refuse_root(folder: Path, what: str) -> None:
    """Refuse to search the whole disk, which would take hours."""
    if folder.resolve() == Path(folder.resolve().anchor):
        raise UserError(f"{folder} is the root of the file system: name the folder that holds the {what}.")


def write_durably(path: Path, content: bytes) -> None:
    """Write and wait until the disk has it."""
    with about(path), path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """Make a folder for results before they are computed, so that a bad path fails early."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Add the path to errors inside the block. The error of a full disk, for example, does not name the file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder: a new file is lost without its name."""
    if sys.platform == "win32":  # folders cannot be opened there. NTFS keeps a journal of names
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_folder(partial: Path, folder: Path) -> None:
    """Give a finished folder its name. An earlier folder or file of this name is moved away first, then removed."""
    old = folder.with_name(f".{folder.name[:200]}.{secrets.token_hex(4)}.old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    sync_folder(folder.parent)
    if old.is_dir():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


@contextmanager
def filled(folder: Path) -> Iterator[Path]:
    """A folder to write into, which gets the name of a new folder when the block ends well, whole or not at all.

    Until then it is hidden beside its place, where the next call finds and removes what a killed one left. An empty
    folder that is there already, such as a mount point or the current folder, stays: the hidden folder is inside, and
    in the end its files are moved out one by one.
    """
    refuse_taken(folder)
    target = folder.resolve()
    partial = _partial_folder(target)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if partial.parent == target:
            for path in sorted(partial.iterdir()):
                os.replace(path, target / path.name)
            sync_folder(target)
        else:
            replace_folder(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_taken(folder: Path) -> None:
    """Refuse a place for `filled` that is neither new nor empty: anything else belongs to somebody."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose a new folder.")
    if folder.is_dir() and any(path.name != _partial_folder(folder.resolve()).name for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose a new folder.")


def _partial_folder(target: Path) -> Path:
    return (target if target.is_dir() else target.parent) / f".{target.name[:200]}{PARTIAL}"


def refuse_special(path: Path) -> None:
    """Reading a pipe or a device such as /dev/zero may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is a pipe or a device, not a file: copy what it holds into a file.")


def refuse_link(path: Path) -> None:
    """A link in a folder from elsewhere may point to any file of the user's, so nothing is written through it."""
    if path.is_symlink():
        raise UserError(f"{path} is a link, and nothing is written through links: put the file itself in its place.")


@contextmanager
def reading(path: Path | str, remedy: str = "restore it from a copy") -> Iterator[None]:
    """Errors of parsers and of the system while a file is read become one sentence with the file's path.

    Only for blocks that read and parse: every library has errors of its own, down to plain `Exception`.
    """
    try:
        if isinstance(path, Path):
            refuse_special(path)
        yield
    except (UserError, MemoryError):
        raise
    except OSError as error:
        if error.errno is not None:
            raise UserError(sentence_of(error, path)) from error
        raise UserError(f"{path} is damaged ({brief(error)}): {remedy}.") from error
    except Exception as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {brief(error)}): {remedy}.") from error


def to_json(value: object, indent: int | None = None) -> str:
    """JSON text. JSON has no NaN or infinity, so they are written as the strings "nan", "inf" and "-inf"."""
    return json.dumps(finite(value), indent=indent)


def finite(value: object) -> object:
    """The same value with every float that JSON lacks as a string, at any depth."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
