"""What the server must remember: uploaded files and jobs, in a database that survives a crash."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from trc2.serving.wire import ApiError

METADATA = sa.MetaData()
FILES = sa.Table(
    "files",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),  # the order in which files came
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", sa.Integer, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("filename", sa.String(255), nullable=False),
    sa.Column("purpose", sa.String(32), nullable=False),
    sa.Column("kind", sa.String(8), nullable=False),  # rows or text
    sa.Column("documents", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
)
JOBS = sa.Table(
    "jobs",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", sa.Integer, nullable=False),
    sa.Column("started_at", sa.Integer),
    sa.Column("finished_at", sa.Integer),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("model", sa.String(255), nullable=False),
    sa.Column("training_file", sa.String(64), nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("metadata", sa.JSON, nullable=False),
    sa.Column("hyperparameters", sa.JSON, nullable=False),
    sa.Column("arguments", sa.JSON, nullable=False),  # of `trc2 continue`; the same after a restart
    sa.Column("pid", sa.Integer),
    sa.Column("attempt", sa.String(255)),  # the name of the run in the versions folder
    sa.Column("fine_tuned_model", sa.String(255)),
    sa.Column("error", sa.JSON),
)
EVENTS = sa.Table(
    "events",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.Integer, nullable=False),
    sa.Column("level", sa.String(8), nullable=False),
    sa.Column("message", sa.String(1000), nullable=False),
)


def open_database(path: Path) -> sa.Engine:
    """A database in one file. A transaction is on the disk when it is committed."""
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))

    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    sa.event.listen(engine, "connect", prepare)
    METADATA.create_all(engine)
    return engine


@dataclass(frozen=True)
class Page:
    """Some rows of a table, and whether there are more after them."""

    rows: Sequence[Any]
    has_more: bool


def page(
    engine: sa.Engine, table: sa.Table, *, after: str | None, limit: int, newest_first: bool, where: Sequence[Any] = ()
) -> Page:
    """Rows after the one with the id `after`, in the order in which they came or from the newest on."""
    with engine.connect() as connection:
        query = sa.select(table).where(*where)
        if after is not None:
            place = connection.execute(sa.select(table.c.number).where(table.c.id == after)).scalar()
            if place is None:
                raise ApiError(404, "There is no entry with the id in 'after'.", param="after", code="not_found")
            query = query.where(table.c.number < place if newest_first else table.c.number > place)
        order = table.c.number.desc() if newest_first else table.c.number
        rows = connection.execute(query.order_by(order).limit(limit + 1)).all()
    return Page(rows[:limit], len(rows) > limit)


def now() -> int:
    return int(time.time())
