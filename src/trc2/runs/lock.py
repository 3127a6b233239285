"""One process per run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from trc2.errors import UserError
from trc2.system.files import refuse_special, write_atomically

LOCK, OWNER = "lock", "lock.owner"  # a locked file cannot be read on Windows, so the owner has a file of its own


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the run folder, or raise an error that names the process which holds it.

    The operating system releases the lock when its process ends, so there are no stale locks. A link is refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"{folder} is in use by process {_owner(folder)}: wait until it ends, or stop it, and try again."
        ) from None
    try:
        write_atomically(folder / OWNER, str(os.getpid()).encode())
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the run folder right now."""
    if not (folder / LOCK).is_file():
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # a link, or a read-only folder: this function cannot have locked it
        return False
    lock.release()
    return False


def _owner(folder: Path) -> str:
    with suppress(OSError, ValueError):
        refuse_special(folder / OWNER)
        return str(int((folder / OWNER).read_text(encoding="ascii")))
    return "unknown"
