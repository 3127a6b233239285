"""The observer that writes metrics.jsonl."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from trc2.files import about
from trc2.runs.records import Record, repair


class Diary:
    """Appends every record to metrics.jsonl at once, so that a killed run loses no record.

    It is only ever appended to. So a checkpoint can remember how long it was and its hash (`mark`), and a later reader
    can check that the records the checkpoint builds on are still there.
    """

    def __init__(self, path: Path) -> None:
        repair(path)
        self.path = path
        with about(path):
            content = path.read_bytes() if path.exists() else b""
            self.file = path.open("ab", buffering=0)
        self.size, self.hash = len(content), hashlib.sha256(content)

    def see(self, record: Record) -> None:
        line = record.to_json().encode() + b"\n"
        with about(self.path):
            if self.file.write(line) != len(line):  # what is torn is cut off by whoever appends next
                raise OSError(28, os.strerror(28))
        self.size += len(line)
        self.hash.update(line)

    def mark(self) -> dict[str, Any]:
        """Length and hash of everything written so far."""
        return {"bytes": self.size, "sha256": self.hash.hexdigest()}

    def sync(self) -> None:
        """Wait until the disk has everything written so far."""
        with about(self.path):
            os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()
