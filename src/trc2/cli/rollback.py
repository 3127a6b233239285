"""`trc2 rollback`: back to an earlier version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import AsJson, app, show, warn
from trc2.cli.promote import Notify, Reason


@app.command()
def rollback(
    versions: Annotated[Path, typer.Argument(help="The versions folder.")],
    to: Annotated[
        str | None,
        typer.Option(help="The name or number of a version. The default is the version before the accepted one."),
    ] = None,
    reason: Reason = "",
    notify: Notify = None,
    as_json: AsJson = False,
) -> None:
    """Make an earlier version the accepted one again. Nothing is removed, and `--to` also leads forward."""
    from trc2.system import notify as notification
    from trc2.versions.registry import Versions

    notification.check_command(notify)
    registry = Versions(versions)
    version = registry.rollback(to, reason=reason)
    content = {"schema": 1, "versions": str(versions), "accepted": version.describe()}
    show(as_json, content, f"{version.name} is accepted now. Its model: {version.model}")
    facts = {"event": "rollback", "version": version.name, "model": version.model, "versions": versions}
    notification.notify(notify, content, facts, warn)
