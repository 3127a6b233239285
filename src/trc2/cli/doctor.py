"""`trc2 doctor`: is this machine ready?"""

from __future__ import annotations

from typing import Annotated

import typer

from trc2.cli.app import AsJson, app, out, progress, show

WIDE = 140  # columns of a terminal


@app.command()
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the speed probe of about ten seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at versions, devices, threads, memory, disk, extras and speed, with a line of advice each."""
    with progress("looking") as watch:
        from rich.table import Table

        from trc2.setup import doctor as checkup

        findings = []
        for finding in checkup.check_up(quick=quick):
            findings.append(finding)
            watch(f"looked at {finding.name}")
    is_narrow = out.width < WIDE  # then the advice stands below what was found, so that no word is broken
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column("what", no_wrap=True)
    for name in ("found",) if is_narrow else ("found", "advice"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        cells = [f"{finding.value}\n{finding.advice}"] if is_narrow else [finding.value, finding.advice]
        table.add_row(finding.name, *cells, style=None if finding.fine else "yellow")
    show(as_json, checkup.as_json(findings), table)
