"""`trc2 runs`: all runs and versions below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import AsJson, app, show
from trc2.errors import UserError
from trc2.system.console import table_of


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="A folder that holds runs, or a versions folder.")] = Path(),
    picture: Annotated[Path | None, typer.Option(help="Also draw them as a tree, into this .png file.")] = None,
    as_json: AsJson = False,
) -> None:
    """List runs and versions with parents, scores, verdicts and sizes."""
    from trc2.system.files import write_atomically
    from trc2.system.numbers import short
    from trc2.versions.listing import SCHEMA, draw_tree, list_runs

    if picture is not None and picture.suffix.lower() != ".png":  # it replaces a file of this name
        raise UserError(f"--picture {picture} does not end in .png: name a picture, such as runs.png.")
    rows = list_runs(folder)
    if picture is not None:
        write_atomically(picture, draw_tree(rows))
    cells = [
        [
            row.name, row.state, _short(row.parent), " ".join(row.tasks) or "–",
            "\n".join(f"{task} {'–' if value is None else short(value)}" for task, value in row.scores.items()) or "–",
            "–" if row.rise is None else f"{row.rise:+.1%}", f"{row.bytes / 1e6:,.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    heads = ["name", "state", "goes on from", "taught", "perplexity", "worst rise", "MB"]
    used = [place for place in range(len(heads)) if not cells or any(line[place] != "–" for line in cells)]
    heads, align = [heads[place] for place in used], "".join("wllllrr"[place] for place in used)
    cells = [[line[place] for place in used] for line in cells]
    caption = "worst rise: of an old text's perplexity against the parent" if "worst rise" in heads else None
    table = table_of(heads, cells, align, title=str(folder), caption=caption)
    notes = [f"{row.name} is damaged: {row.problem}." for row in rows if row.problem]
    empty = [] if rows else [f"{folder} holds neither runs nor versions."]
    show(as_json, {"schema": SCHEMA, "folder": str(folder), "runs": [row.describe() for row in rows]},
         *([table] if rows else []), *notes, *empty)  # fmt: skip


def _short(parent: str | None) -> str:
    """A version by its number, so that the table is not too wide. `--json` has the whole name."""
    from trc2.versions.registry import NAME

    if parent is None:
        return "–"
    home, _, name = parent.rpartition("/")
    return f"{home}/{name.split('-')[0]}".lstrip("/") if NAME.fullmatch(name) else parent
