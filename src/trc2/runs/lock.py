"""One process per run folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from trc2.errors import UserError
from trc2.system.files import refuse_special, write_atomically

SHARE_SECONDS = 60  # to wait for another process that cleans up
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


@contextmanager
def share_folder(folder: Path, when_alone: Callable[[], None]) -> Iterator[None]:
    """Hold a folder together with other processes of the same kind.

    `when_alone` is called first if no other process holds the folder, and the others wait until it returns. Windows
    has no shared locks, so there a second process is refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        with lock_folder(folder):
            when_alone()
            yield
        return
    import fcntl

    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _wait_for_share(handle, folder)
        else:
            when_alone()
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _wait_for_share(handle: int, folder: Path) -> None:
    import fcntl

    for _ in range(10 * SHARE_SECONDS):
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.1)
    raise UserError(f"{folder} is in use by process {_owner(folder)}: wait until it ends, or stop it, and try again.")


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
