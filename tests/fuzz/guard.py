"""A process that writes below one folder only: a mutated path must never reach the machine's own files."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

DEVICES = ("/dev/null", "/dev/full")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def guard(root: Path) -> None:
    """From now on, and for good, everything else is as if it were not ours to write."""
    inside = f"{os.path.realpath(root)}{os.sep}"

    def refuse(path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            real = os.path.realpath(os.fsdecode(path))
            if not real.startswith(inside) and real not in DEVICES:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fsdecode(path))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(arguments[2], int) and arguments[2] & WRITING:
                refuse(arguments[0])
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.utime"):
            refuse(arguments[0])
        elif event in ("os.rename", "os.link"):
            refuse(arguments[0])
            refuse(arguments[1])
        elif event == "os.symlink":
            refuse(arguments[1])

    sys.addaudithook(hook)
