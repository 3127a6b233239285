"""`trc2 bench`: what a model costs, timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import AsJson, Overrides, Target, app, progress, show
from trc2.system.files import make_folder


@app.command()
def bench(
    target: Target = "demo",
    overrides: Overrides = None,
    against: Annotated[str | None, typer.Option(help="Time a Hugging Face model too: mixtral, llama or mamba.")] = None,
    scaling: Annotated[
        str | None, typer.Option(help="Measure instead how cost grows with tokens, batch, slots, experts or columns.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Rounds in which all alternatives take turns.", min=1, max=10_000)] = 5,
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch. The default is torch's own choice.", min=1, max=1024)
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where bench.json and bench.png go.")] = Path("runs/bench"),
    as_json: AsJson = False,
) -> None:
    """Measure speed, memory and utilisation of a recipe, as ratios from one interleaved run.

    The result is a table, JSON and a picture.
    """
    import torch

    from trc2.costs.comparison import bench_recipe, bench_scaling
    from trc2.costs.figures import draw_bars, draw_scaling, results_table, scaling_table
    from trc2.runs.target import find_target

    if threads is not None:
        torch.set_num_threads(threads)
    run = find_target(target, overrides or []).config
    make_folder(folder)
    with progress("building") as watch:
        if scaling is not None:
            report = bench_scaling(run, scaling, repeats=repeats, watch=watch)
        else:
            report = bench_recipe(run, repeats=repeats, against=against, watch=watch)
    (folder / "bench.json").write_text(json.dumps(report, indent=1))
    draw, table = (draw_bars, results_table) if scaling is None else (draw_scaling, scaling_table)
    draw(report, folder / "bench.png")
    show(as_json, report, table(target, report), f"{folder / 'bench.json'}  {folder / 'bench.png'}")
