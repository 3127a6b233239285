"""`trc2 sweep`: a matrix of runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trc2.cli.app import MAX_COUNT, AsJson, Overrides, app, err, out, print_json, show
from trc2.errors import UserError

if TYPE_CHECKING:
    from trc2.sweep.local_launcher import Launcher


@app.command()
def sweep(
    matrix: Annotated[str, typer.Argument(help="A matrix's name or file.")],
    overrides: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="The folder for the runs. The default is runs/sweep/NAME.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Runs at a time. The runs divide the cores.")] = 1,
    launcher: Annotated[
        Literal["local", "ray"], typer.Option(help="The launcher that carries out the runs.")
    ] = "local",
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Threads of each run. The default is cores ÷ jobs, and 1 on Ray."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try failed runs again.")] = False,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Remove checkpoints of ended runs, also of earlier ones, and keep only the files that reports read.",
        ),
    ] = False,
    dry: Annotated[bool, typer.Option("--list", help="Only show the runs and their states.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a matrix of runs: backbones, sizes, ablations, strategies, seeds and orders of the tasks."""
    from trc2.sweep.matrix import load_matrix, recipe_name
    from trc2.sweep.run import run_sweep
    from trc2.sweep.status import standing

    loaded = load_matrix(matrix)
    cells = loaded.cells(overrides or [])
    target = folder or Path("runs/sweep") / recipe_name(matrix)
    if dry:
        runs = {cell.name: standing(cell, target) for cell in cells}
        lines = [f"{run.state:8} {run.step:>6}/{run.total}  {name}  {run.problem}" for name, run in runs.items()]
        show(as_json, {name: asdict(run) for name, run in runs.items()}, *lines)
        return
    shown = err if as_json else out
    standings = run_sweep(
        cells, target, _launcher(launcher, jobs, threads), shown, retry=retry, keep=not compact,
        matrix=recipe_name(matrix), title=loaded.title,
    )  # fmt: skip
    ended = sum(status.state == "ended" for status in standings.values())
    if as_json:
        print_json({name: asdict(status) for name, status in standings.items()})
    shown.print(f"{ended} of {len(cells)} runs have ended: `trc2 report {target}` reads them.", soft_wrap=True)
    if failed := [name for name, status in standings.items() if status.state == "failed"]:
        raise UserError(f"{len(failed)} runs failed ({', '.join(failed)}): mend the cause, then add --retry.")


def _launcher(name: str, jobs: int, threads: int | None) -> Launcher:
    from trc2.sweep.local_launcher import LocalLauncher

    if name == "local":
        return LocalLauncher(jobs, threads=threads)
    from trc2.sweep.ray_launcher import RayLauncher

    return RayLauncher(jobs, threads or 1)
