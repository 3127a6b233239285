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
    from trc2.costs import tables
    from trc2.runs.target import find_target

    if family is not None:
        rows = tables.family_rows(family)
        if as_json:
            print_json({"schema": 1, "family": family, "recipes": rows})
        else:
            out.print(tables.family_table(family, rows))
        return
    if paper:
        rows = tables.paper_rows()
        different = tables.paper_differences(rows)
        if as_json:
            print_json({"schema": 1, "rows": rows, "different": different})
        else:
            out.print(tables.paper_table(rows))
            out.print(f"{different} numbers differ." if different else "All of the paper's printed numbers come out.")
        raise typer.Exit(1 if different else 0)
    run = find_target(target, overrides or []).config
    if as_ratios:
        from trc2.costs.ratios import ratio_rows, ratio_table

        if as_json:
            print_json({"schema": 1, "target": target, "ratios": ratio_rows(target, run)})
        else:
            out.print(ratio_table(target, run))
        return
    numbers = tables.budget_json(target, run, run.model.read_slots if slots is None else slots)
    if as_json:
        print_json(numbers)
        return
    out.print(tables.budget_table(numbers, run))
    out.print(tables.counts_line(numbers))
