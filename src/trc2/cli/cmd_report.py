"""`trc2 report`: one run summed up, or several compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import app, out, show_summary


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders of one stream.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Where comparison.md and comparison.png go.")] = None,
) -> None:
    """Summarise a run, or compare several: tables, pictures, and a reading computed from the numbers."""
    from rich.table import Table

    from trc2.report.summary import CAPTION, Comparison

    if len(folders) == 1:
        show_summary(folders[0])
        return
    comparison = Comparison.of(folders)
    table = Table(title="What each run forgot", caption=CAPTION)
    for index, name in enumerate(comparison.header()):
        table.add_column(name, justify="right" if index else "left")
    for row in comparison.rows():
        table.add_row(*row)
    out.print(table)
    for sentence in comparison.reading():
        out.print(sentence)
    written = comparison.write(folder or folders[0].parent)
    out.print("  ".join(str(path) for path in written), soft_wrap=True)
