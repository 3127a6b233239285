"""`trc2 diff`: what one model gained and lost against another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import AsJson, app, progress, show, warn


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="A versions folder, a version in it, a run or a saved model.")],
    second: Annotated[
        Path,
        typer.Argument(
            help="The model to compare with the first, in one of the same forms. The sentences say what this "
            "model gained and lost."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Say what the second model gained and lost against the first, per task, with 95 % intervals.

    Both are scored on the same held-out documents. Text that only one of them learned is compared apart.
    """
    from trc2.versions.difference import compare

    with progress("scoring both models"):
        difference = compare(first, second, warn=warn)
    show(as_json, difference.describe(), *difference.lines())
