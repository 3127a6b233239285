"""`trc2 report`: one run summed up, several compared, and all of the paper's tables and figures from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trc2.cli.app import AsJson, app, out, print_json, show_summary, warn

if TYPE_CHECKING:
    from trc2.report.evidence import Evidence


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders of one stream, or folders that hold some.")],
    folder: Annotated[
        Path | None, typer.Option("--out", help="Where everything goes; by default beside the runs.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The arm that others are compared with, by its title; the most complete TRC².")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise a run; or compare several and write every table and figure that they can fill."""
    from trc2.errors import UserError
    from trc2.report.evidence import Evidence, holds_runs

    if len(folders) == 1 and not holds_runs(folders[0]):
        show_summary(folders[0], as_json, place=folder)
        return
    are_runs = not any(holds_runs(path) for path in folders)
    place = folder or (folders[0].parent if are_runs else folders[0])
    numbers = _compare(folders, place, as_json) if are_runs else {"schema": 1}
    try:
        evidence = Evidence.of(folders)
    except UserError as error:
        if not are_runs:
            raise
        warn(f"No report beside the comparison: {error}")
    else:
        numbers |= _write(evidence, place, reference, as_json)
    if as_json:
        print_json(numbers)


def _compare(folders: list[Path], place: Path, as_json: bool) -> dict[str, Any]:
    """Runs beside each other, unless they learnt the tasks in several orders: then only arms can be compared."""
    from rich.table import Table

    from trc2.report.names import order_of
    from trc2.report.numbers import comparison_numbers
    from trc2.report.summary import CAPTION, Comparison
    from trc2.runs.folder import RunFolder

    streams = [config for path in folders if (config := RunFolder(path).config()).stream is not None]
    sequences = {order_of(config) for config in streams}
    if len(sequences) > 1 and len({frozenset(order) for order in sequences}) == 1:
        return {"schema": 1}
    comparison = Comparison.of(folders)
    written = comparison.write(place)
    if as_json:
        return comparison_numbers(comparison)
    table = Table(title="What each run forgot", caption=CAPTION)
    for index, name in enumerate(comparison.header()):
        table.add_column(name, justify="right" if index else "left")
    for row in comparison.rows():
        table.add_row(*row)
    out.print(table)
    for sentence in comparison.reading():
        out.print(sentence)
    out.print("  ".join(str(path) for path in written), soft_wrap=True)
    return {}


def _write(evidence: Evidence, place: Path, reference: str | None, as_json: bool) -> dict[str, Any]:
    from trc2.report.dossier import write_dossier

    dossier = write_dossier(evidence, place, reference=reference)
    if as_json:
        return {"arms": len(evidence.arms), "written": [str(p) for p in dossier.written], "left_out": dossier.left_out}
    tables = sum(path.suffix == ".tex" for path in dossier.written)
    figures = sum(path.suffix == ".svg" for path in dossier.written)
    runs = f"{len(evidence.runs)} runs, {len(evidence.arms)} arms"
    missing = f"; {len(dossier.left_out)} left out, it says what each needs" if dossier.left_out else ""
    out.print(f"{runs}: {tables} tables and {figures} figures in {dossier.seconds:.1f} s{missing}.")
    out.print(str(dossier.index), soft_wrap=True)
    return {}
