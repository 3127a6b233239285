"""`trc2 budget`: what a model costs, counted."""

from __future__ import annotations

from typing import Annotated

import typer

from trc2.cli.app import MAX_COUNT, AsJson, Overrides, Target, app, out, print_json


@app.command()
def budget(
    target: Target = "paper_compact",
    overrides: Overrides = None,
    paper: Annotated[bool, typer.Option("--paper", help="Our numbers beside the paper's tables.")] = False,
    as_ratios: Annotated[
        bool, typer.Option("--ratios", help="Is it a scale model of the paper? Horizons and stores ÷ the stream.")
    ] = False,
    family: Annotated[str | None, typer.Option(help="One table of all backbones: lab or paper.")] = None,
    slots: Annotated[
        int | None, typer.Option(help="Filled memory slots; all that are read by default.", min=0, max=MAX_COUNT)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Parameters, static memory and FLOPs per token, by subsystem."""
    from trc2.config import family_names
    from trc2.costs.tables import (
        budget_json,
        budget_table,
        counts_line,
        family_rows,
        family_table,
        paper_rows,
        paper_table,
    )
    from trc2.runs.target import find_target

    if family is not None:
        rows = family_rows(family_names(family))
        if as_json:
            print_json({"schema": 1, "family": family, "recipes": rows})
        else:
            out.print(family_table(f"The {family} family", rows))
        return
    if paper:
        table, different = paper_table()
        if as_json:
            print_json({"schema": 1, "rows": paper_rows(), "different": different})
            raise typer.Exit(0 if not different else 1)
        out.print(table)
        verdict = "All of the paper's printed numbers come out." if not different else f"{different} numbers differ."
        out.print(verdict)
        raise typer.Exit(0 if not different else 1)
    run = find_target(target, overrides or []).config
    if as_ratios:
        from trc2.costs.ratios import ratio_rows, ratio_table

        if as_json:
            print_json({"schema": 1, "target": target, "ratios": ratio_rows(target, run)})
        else:
            out.print(ratio_table(target, run))
        return
    filled = run.model.read_slots if slots is None else slots
    if as_json:
        print_json(budget_json(target, run, filled))
        return
    out.print(budget_table(target, run, filled))
    out.print(counts_line(run))
