"""A PostgreSQL server of Debian that is there for the tests, without a network address."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def find_control() -> str | None:
    """The program that starts PostgreSQL. None if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return str(found[-1]) if found else shutil.which("pg_ctl")


@contextmanager
def run_postgres(control: str) -> Iterator[str]:
    """The folder of the server's socket. The server ends with the block."""
    folder = Path(tempfile.mkdtemp(prefix="trc2-pg-"))
    options: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    if os.geteuid() == 0:  # it does not run as root
        shutil.chown(folder, "postgres")
        options |= {"user": "postgres", "group": "postgres", "extra_groups": []}
    data = str(folder / "data")
    try:
        subprocess.run([control, "initdb", "-D", data, "-o", "-A trust -U trc2 --no-sync"], **options)
        settings = f"-k {folder} -c listen_addresses='' -c fsync=off"
        subprocess.run([control, "start", "-w", "-D", data, "-l", str(folder / "log"), "-o", settings], **options)
        try:
            yield str(folder)
        finally:
            subprocess.run([control, "stop", "-m", "immediate", "-D", data], **options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(folder: str) -> str:
    """The URL of a new database."""
    import psycopg

    name = f"d{secrets.token_hex(8)}"
    with psycopg.connect(host=folder, user="trc2", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://trc2@/{name}?host={folder}"
