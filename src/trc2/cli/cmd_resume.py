"""`trc2 resume`: an interrupted run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import AsJson, app, err, out, show_summary
from trc2.cli.several import Processes, Restarts, launched


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The run folder.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Execution settings, e.g. output.log_every=5.")] = None,
    nproc: Processes = 1,
    max_restarts: Restarts = 0,
    as_json: AsJson = False,
) -> None:
    """Go on with an interrupted run, exactly as if it had not been interrupted."""
    from trc2.runs.folder import RunFolder
    from trc2.training.resume import resume_run

    if nproc > 1 and launched(nproc, max_restarts, RunFolder(folder).config()):
        return
    show_summary(resume_run(folder, overrides or [], err if as_json else out), as_json)
