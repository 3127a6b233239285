"""What the server must remember: uploaded files and jobs, in a database that survives a crash.

The database is SQLite in the data folder, or PostgreSQL by a URL. Several servers may use one database.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from trc2.errors import UserError, brief
from trc2.serving.wire import ApiError
from trc2.system.files import write_atomically

METADATA = sa.MetaData()
DATABASE, IDENTITY = "serve.db", "registry.id"  # in the data folder
ID = re.compile(r"[a-z]{1,16}-[0-9a-f]{1,64}")
REGISTRY = sa.Table(
    "registry",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),  # there is one row
    sa.Column("id", sa.String(64), nullable=False),  # the data folder has it too
)
FILES = sa.Table(
    "files",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),  # the order in which files came
    sa.Column("id", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
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
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("started_at", sa.BigInteger),
    sa.Column("finished_at", sa.BigInteger),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("model", sa.String(255), nullable=False),
    sa.Column("training_file", sa.String(64), nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("metadata", sa.JSON, nullable=False),
    sa.Column("hyperparameters", sa.JSON, nullable=False),
    sa.Column("arguments", sa.JSON, nullable=False),  # of `trc2 continue`. The same after a restart
    sa.Column("pid", sa.Integer),
    sa.Column("pid_started", sa.Float),  # when that process began: its number may be another program's by now
    sa.Column("wanted", sa.String(16)),  # paused or cancelled, as soon as its process has ended
    sa.Column("kills", sa.Integer),  # how often its process was killed since it last made progress
    sa.Column("checkpoint", sa.String(255)),  # the newest one when it was killed last
    sa.Column("text_bytes", sa.BigInteger),  # of its copy of the documents
    sa.Column("attempt", sa.String(255)),  # the name of the run in the versions folder
    sa.Column("fine_tuned_model", sa.String(255)),
    sa.Column("error", sa.JSON),
    sa.Column("result_files", sa.JSON),
)
EVENTS = sa.Table(
    "events",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("level", sa.String(8), nullable=False),
    sa.Column("message", sa.String(1000), nullable=False),
)


def open_database(folder: Path, url: str | None = None) -> sa.Engine:
    """The database of a data folder: a file in it, or PostgreSQL. A transaction is on the disk when it is committed."""
    try:
        address = sa.URL.create("sqlite", database=str(folder / DATABASE)) if url is None else sa.make_url(url)
        if address.drivername == "postgresql":
            address = address.set(drivername="postgresql+psycopg")
        if address.get_backend_name() not in ("sqlite", "postgresql"):
            raise UserError(
                f"--registry names a {address.get_backend_name()} database: use postgresql:// or sqlite://."
            )
        engine = sa.create_engine(address, pool_pre_ping=address.get_backend_name() != "sqlite")
    except sa.exc.ArgumentError:
        raise UserError("--registry is not a URL: write postgresql://USER@HOST/DATABASE.") from None
    except ModuleNotFoundError as error:
        raise UserError(
            f"The database's driver is not installed ({error}): use `pip install '.[postgres]'` in the checkout."
        ) from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
    try:
        _make_tables(engine)
        _check_identity(engine, folder)
    except sa.exc.OperationalError as error:
        engine.dispose()
        reason = brief(str(error.orig).splitlines()[0])
        raise UserError(
            f"The database of --registry cannot be used ({reason}): start it, or correct the URL."
        ) from None
    except BaseException:
        engine.dispose()
        raise
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _make_tables(engine: sa.Engine) -> None:
    """Make what is missing. Two servers that start at the same time may both try, and one of them fails once."""
    for attempt in range(5):
        try:
            METADATA.create_all(engine)
            return
        except (sa.exc.OperationalError, sa.exc.ProgrammingError, sa.exc.IntegrityError):
            if attempt == 4:
                raise
            time.sleep(0.2)


def _check_identity(engine: sa.Engine, folder: Path) -> None:
    """Reject a database that belongs to another data folder: files without a row there would be removed here."""
    path = folder / IDENTITY
    with engine.begin() as connection:
        identity = connection.execute(sa.select(REGISTRY.c.id)).scalar()
    if identity is None:
        identity = secrets.token_hex(16)
        try:
            with engine.begin() as connection:
                connection.execute(sa.insert(REGISTRY).values(number=1, id=identity))
        except sa.exc.IntegrityError:  # another server was faster
            with engine.begin() as connection:
                identity = connection.execute(sa.select(REGISTRY.c.id)).scalar()
    if not path.exists():
        write_atomically(path, str(identity).encode())
    elif path.read_text(encoding="ascii").strip() != identity:
        raise UserError(f"{folder} belongs to another database than that of --registry: name the one it was used with.")


@contextmanager
def alone(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that waits for those of other servers which are alone, too. It sees what they have written.

    Changing the one row of a table takes SQLite's lock for writing, and a lock on the row in PostgreSQL.
    """
    with engine.begin() as connection:
        connection.execute(sa.update(REGISTRY).values(id=REGISTRY.c.id))
        yield connection


def is_id(text: str) -> bool:
    """Whether a text can be the id of a file or a job."""
    return ID.fullmatch(text) is not None


def find(engine: sa.Engine, table: sa.Table, identity: str, kind: str, param: str) -> Any:
    """The row with an id."""
    row = None
    if is_id(identity):
        with engine.connect() as connection:
            row = connection.execute(sa.select(table).where(table.c.id == identity)).first()
    if row is None:
        raise ApiError(404, f"There is no {kind} with this id.", param=param, code="not_found")
    return row


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
            known = sa.select(table.c.number).where(table.c.id == after)
            place = connection.execute(known).scalar() if is_id(after) else None
            if place is None:
                raise ApiError(404, "There is no entry with the id in 'after'.", param="after", code="not_found")
            query = query.where(table.c.number < place if newest_first else table.c.number > place)
        order = table.c.number.desc() if newest_first else table.c.number
        rows = connection.execute(query.order_by(order).limit(limit + 1)).all()
    return Page(rows[:limit], len(rows) > limit)


def now() -> int:
    return int(time.time())
