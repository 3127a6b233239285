"""`trc2 report`: one run summarised, or several compared in tables, figures and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trc2.cli.app import AsJson, app, out, print_json, show_summary
from trc2.system.console import table_of

if TYPE_CHECKING:
    from trc2.report.runs import RunTable


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders of one stream, or folders that hold some.")],
    folder: Annotated[
        Path | None, typer.Option("--out", help="The folder for all files. The default is beside the runs.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The title of the variant that others are compared with. The default is the first variant."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise a run, or compare several and write every table and figure that they can fill."""
    from trc2.errors import UserError
    from trc2.report.run import read_run
    from trc2.report.runs import RunTable, find_runs, holds_runs
    from trc2.versions.find import find_version

    if len(folders) == 1 and (version := find_version(folders[0])) is not None:
        version.check(["run"])
        place = folder or version.folder.parent / "reports" / version.name  # nothing is written into a version
        show_summary(version.folder / "run", as_json, place=place)
        return
    if len(folders) == 1 and not holds_runs(folders[0]):
        show_summary(folders[0], as_json, place=folder)
        return
    are_runs = not any(holds_runs(path) for path in folders)
    runs = [read_run(path) for path in find_runs(folders)]
    for run in runs if are_runs else []:
        if not run.is_finished:
            raise UserError(
                f"{run.folder} stopped at step {run.last_step} of {run.end}: finish it with `trc2 resume {run.folder}` "
                "before comparing."
            )
    table = RunTable(runs, reference)
    _write(table, folder or (folders[0].parent if are_runs else folders[0]), as_json)


def _write(table: RunTable, place: Path, as_json: bool) -> None:
    from trc2.report.report import FEW_RUNS, RUN_CAPTION, findings, run_rows, write_report
    from trc2.report.summary import numbers_of

    written = write_report(table, place)
    if as_json:
        print_json({
            "schema": 1,
            "runs": [numbers_of(run) for run in table.by_name.values()],
            "findings": findings(table),
            "variants": len(table.variants),
            "written": [str(path) for path in written.written],
            "left_out": written.left_out,
        })  # fmt: skip
        return
    if len(table.runs) <= FEW_RUNS:
        rows = run_rows(table)
        cells = ([str(name), *row] for name, row in rows.iterrows())
        out.print(table_of(["run", *rows.columns], cells, title="What each run forgot", caption=RUN_CAPTION))
    for sentence in findings(table):
        out.print(sentence)
    runs = f"{len(table.runs)} runs, {table.runs.variant.nunique()} variants"
    missing = f" {len(written.left_out)} were left out. report.md says what each needs." if written.left_out else ""
    parts = f"{written.count('.tex')} tables and {written.count('.svg')} figures"
    out.print(f"{runs}: {parts} in {written.seconds:.1f} s.{missing}")
    out.print("  ".join(str(path) for path in written.written if path.parent == place), soft_wrap=True)
