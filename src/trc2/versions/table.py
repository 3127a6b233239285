"""The table of a versions folder: one line for each event, each with a hash of itself and of the line before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from trc2.errors import UserError
from trc2.stream.cache import digest
from trc2.system.files import reading, refuse_link, sync_folder, write_atomically

SCHEMA = 1
Kind = Literal["promote", "hold", "rollback", "prune"]
MOVES = ("promote", "rollback")  # the newest of these names the accepted version


@dataclass(frozen=True)
class Event:
    """Something that happened to a version.

    `promote` and `hold` add a version, and `manifest` is the sha256 of its version.json. A version that is held waits
    until a person moves to it. `removed` is what a `prune` took away: "checkpoint" or "all".
    """

    number: int
    kind: Kind
    version: str
    time: str
    reason: str = ""
    manifest: str = ""
    removed: str = ""


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def read_events(path: Path) -> list[Event]:
    """All events, oldest first. A line that is not what was written is an error."""
    with reading(path):
        return list(_parse(path.read_bytes()))


@lru_cache(maxsize=2)  # a command reads the table ten times, and the table grows every week
def _parse(table: bytes) -> tuple[Event, ...]:
    events: list[Event] = []
    lines = table.split(b"\n")
    if lines.pop() or not table:
        raise ValueError("its last line has no end" if table else "it is empty")
    before = ""
    for number, line in enumerate(lines, 1):
        content = json.loads(line)
        checksum = content.pop("checksum")
        if checksum != digest([before, content]) or content.pop("schema") != SCHEMA or content["number"] != number:
            raise ValueError(f"line {number} is not what was written")
        event = Event(**content)
        if event.kind not in get_args(Kind):
            raise ValueError(f"line {number} has the unknown kind {event.kind!r}")
        events.append(event)
        before = checksum
    return tuple(events)


def add_event(path: Path, event: Event) -> None:
    """Add a line. The whole table is replaced in one step, so no line is ever torn."""
    refuse_link(path)
    table = path.read_bytes() if path.exists() else b""
    before = json.loads(table.splitlines()[-1])["checksum"] if table else ""
    content = {"schema": SCHEMA, **asdict(event)}
    line = json.dumps({**content, "checksum": digest([before, content])}) + "\n"
    write_atomically(path, table + line.encode())
    sync_folder(path.parent)


def accepted(events: Sequence[Event]) -> str | None:
    """The name of the accepted version. None before the first."""
    return next((event.version for event in reversed(events) if event.kind in MOVES), None)


def check_reason(reason: str) -> None:
    """A reason is one line of the table."""
    if "\n" in reason or len(reason) > 1000:
        raise UserError("The reason has several lines or more than 1,000 characters: give one short line.")


def version_names(events: Sequence[Event]) -> list[str]:
    """The names of all versions, in the order in which they were added."""
    return [event.version for event in events if event.manifest]


def gone_names(events: Sequence[Event]) -> set[str]:
    """The names of the versions of which pruning left only the description."""
    return {event.version for event in events if event.removed == "all"}


def next_number(events: Sequence[Event]) -> int:
    """The number of the next version."""
    return max((int(name.split("-")[0]) for name in version_names(events)), default=0) + 1
