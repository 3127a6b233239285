"""One process per run folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trc2.errors import UserError


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the run folder, or raise an error that names the process which holds it.

    The lock is the operating system's: it ends with the process that holds it, however that process ends, so there are
    no stale locks to clean up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Never through a link: what it points to would be overwritten.
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(handle, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise UserError(
                f"{folder} is in use by process {owner}: wait until it ends, or stop it, and try again."
            ) from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process holds the run folder right now."""
    try:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
