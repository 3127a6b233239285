"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Either the old file or the whole new one is there, whatever happens in between, whoever else writes it too."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    write_durably(partial, content)
    os.replace(partial, path)


def write_durably(path: Path, content: bytes) -> None:
    """Write and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
