"""`trc2 promote`: a run or model becomes the accepted version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trc2.cli.app import AsJson, app, show, warn
from trc2.errors import UserError

if TYPE_CHECKING:
    from trc2.versions.entry import Version
    from trc2.versions.pruning import Pruned
    from trc2.versions.registry import Versions

Notify = Annotated[
    str | None,
    typer.Option(help="Run this command afterwards, with JSON on its standard input and TRC2_… in its environment."),
]
Reason = Annotated[str, typer.Option(help="A line for the table of events.")]
KeepModels = Annotated[
    int | None,
    typer.Option(help="Afterwards remove the files of older versions, except this many.", min=1),
]


@app.command()
def promote(
    versions: Annotated[Path, typer.Argument(help="The versions folder. --first makes a new one.")],
    run: Annotated[Path, typer.Argument(help="A finished run, or a folder with a saved model.")],
    first: Annotated[bool, typer.Option("--first", help="Begin a versions folder with this run or model.")] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Promote the run even if it was refused or not judged, or continues another version."
        ),
    ] = False,
    reason: Reason = "",
    keep_models: KeepModels = None,
    notify: Notify = None,
    as_json: AsJson = False,
) -> None:
    """Add a run that passed its acceptance check to a versions folder, as the accepted version.

    Older versions keep their model and lose the checkpoint that `trc2 continue` needs, except the last three.
    """
    from trc2.system.notify import check_command
    from trc2.versions.registry import Versions

    check_command(notify)
    registry = Versions(versions)
    version = registry.promote(run, first=first, anyway=anyway, reason=reason, warn=warn)
    tell_promotion(registry, version.name, keep_models, notify, as_json=as_json)


def prune(registry: Versions, keep_models: int | None) -> list[Pruned]:
    """Prune by the rule. What was decided before stands and is told, even if old files cannot be removed now."""
    try:
        return registry.prune(keep_models=keep_models)
    except (UserError, OSError) as problem:
        warn(f"Nothing was pruned: {problem}")
        return []


def waiting_line(registry: Versions, version: Version) -> str:
    """What a person does with a version that is held."""
    return f"{version.name} waits: `trc2 versions {registry.folder} --promote {version.number}` accepts it."


def tell_promotion(
    registry: Versions,
    name: str,
    keep_models: int | None,
    command: str | None,
    *,
    as_json: bool,
    verdict: dict[str, Any] | None = None,
) -> None:
    """Prune by the rule, say what is accepted now or waits for a person, and notify."""
    from trc2.system.notify import notify

    pruned = prune(registry, keep_models)
    version = registry.get(name)
    state = "held" if version.is_held else "accepted"
    content: dict[str, Any] = {"schema": 1, "versions": str(registry.folder), state: version.describe()}
    content["pruned"] = [{"version": one.version, "removed": one.removed, "bytes": one.bytes} for one in pruned]
    if verdict is not None:
        content["verdict"] = verdict
    lines = [f"{version.name} is accepted now. Its model: {version.model}"]
    if version.is_held:
        lines = [waiting_line(registry, version)]
    lines += [f"Pruned {one.version}: {one.removed}, {one.bytes / 1e6:,.1f} MB." for one in pruned]
    show(as_json, content, *lines)
    event = "hold" if version.is_held else "promote"
    facts = {"event": event, "version": version.name, "model": version.model, "versions": registry.folder}
    notify(command, content, facts, warn)
