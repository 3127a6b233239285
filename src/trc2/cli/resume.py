"""`trc2 resume`: an interrupted run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import AsJson, Processes, Restarts, app, err, launched, out, show_summary, warn
from trc2.cli.check import exit_unless_accepted, tell_verdict
from trc2.system.torchrun import is_first_process


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The run folder.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Execution settings, e.g. output.log_every=5.")] = None,
    nproc: Processes = 1,
    max_restarts: Restarts = 0,
    as_json: AsJson = False,
) -> None:
    """Go on with an interrupted run, exactly as if it had not been interrupted.

    A run that `trc2 continue` made ends with its acceptance check: exit code 3 if it forgot more than its limit.
    """
    from trc2.continuing.acceptance import judge_child
    from trc2.runs.folder import RunFolder
    from trc2.training.resume import resume_run

    if nproc > 1 and launched(nproc, max_restarts, RunFolder(folder).config()):
        return
    resume_run(folder, overrides or [], err if as_json else out)
    if not is_first_process():
        return
    verdict = judge_child(folder, warn)
    show_summary(folder, as_json, {} if verdict is None else {"acceptance": verdict.describe()})
    if verdict is not None:
        if not as_json:
            tell_verdict(folder, verdict)
        exit_unless_accepted(verdict)
