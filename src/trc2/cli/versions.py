"""`trc2 versions`: the versions of a server or a folder, and which of them is accepted."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from trc2.cli.app import AsJson, app, show
from trc2.cli.promote import Reason
from trc2.cli.teach import Tokens
from trc2.errors import UserError
from trc2.system.console import table_of

SCHEMA = 1


@app.command()
def versions(
    where: Annotated[
        str, typer.Argument(help="A versions folder, or the address of a server, such as http://HOST:8000.")
    ],
    promote: Annotated[
        str | None, typer.Option(help="Make this version the accepted one, by its name or number.")
    ] = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Go back to the version that the accepted one replaced.")
    ] = False,
    reason: Reason = "",
    tokens: Tokens = None,
    as_json: AsJson = False,
) -> None:
    """List versions with what each learned and its verdict, newest first. Optionally move to another one before."""
    from trc2.serving.client import Client, find_token, is_url

    if promote is not None and rollback:
        raise UserError("--promote and --rollback lead to two versions: give one of them.")
    if reason and promote is None and not rollback:
        raise UserError("--reason says why another version is accepted: give --promote or --rollback too.")
    if is_url(where):
        client = Client(where, find_token(tokens, "ask" if promote is None and not rollback else "admin"))
        if promote is not None:
            client.promote(promote, reason)
        elif rollback:
            client.rollback(reason)
        rows = client.versions()
    else:
        if tokens is not None:
            raise UserError(f"--tokens is for a server, but {where} is not an address: leave it out.")
        rows = _of_folder(Path(where), promote, rollback=rollback, reason=reason)
    latest = next((row["id"] for row in rows if row["is_latest"]), None)
    heads = ["version", "made", "from", "taught", "worst rise", "check"]
    caption = "*: accepted; worst rise: of an old text's perplexity against the parent"
    table = table_of(heads, map(_cells, rows), "wwwlrl", title=where, caption=caption)
    content = {"schema": SCHEMA, "versions": where, "latest": latest, "data": rows}
    show(as_json, content, table, f"{latest} is accepted now.")


def _of_folder(folder: Path, promote: str | None, *, rollback: bool, reason: str) -> list[dict[str, Any]]:
    """The versions of a folder in the shape that a server sends them."""
    from trc2.versions.registry import Versions

    registry = Versions(folder)
    if promote is not None or rollback:
        registry.rollback(promote, reason=reason)
    accepted = registry.accepted_name()
    return [
        version.row(is_latest=version.name == accepted) for version in reversed(registry.all()) if version.has_model
    ]


def _cells(row: dict[str, Any]) -> list[str]:
    verdict = row.get("verdict")
    compared = [task for task in (verdict or {}).get("tasks", {}).values() if task["measure"] == "perplexity"]
    worst = max((float(task["rise"]) for task in compared), default=None)
    check = "–" if verdict is None or verdict.get("limit") is None else "passed" if verdict["passed"] else "refused"
    check = "damaged" if row.get("is_damaged") else check
    return [
        f"{row['id']}{' *' if row['is_latest'] else ''}",
        f"{datetime.fromtimestamp(row['created_at']):%Y-%m-%d}",
        (row.get("parent") or "–").partition("-")[0],
        " ".join(row.get("tasks") or []) or "–",
        "–" if worst is None else f"{worst:+.1%}",
        f"{check}, waits" if row["is_held"] else check,
    ]
