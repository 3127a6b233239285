"""`trc2 budget`: what a model costs, counted."""

from __future__ import annotations

from typing import Annotated

import typer

from trc2.cli.app import MAX_COUNT, AsJson, Overrides, Target, app, show


@app.command()
def budget(
    target: Target = "paper_compact",
    overrides: Overrides = None,
    paper: Annotated[bool, typer.Option("--paper", help="Show our numbers beside the paper's tables.")] = False,
    family: Annotated[str | None, typer.Option(help="Show one table of all backbones: lab or paper.")] = None,
    slots: Annotated[
        int | None,
        typer.Option(help="Filled memory slots. The default is all slots that are read.", min=0, max=MAX_COUNT),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show parameters, static memory and FLOPs per token, by subsystem."""
    from trc2.costs import tables
    from trc2.runs.target import find_target

    if family is not None:
        rows = tables.family_rows(family)
        show(as_json, {"schema": 1, "family": family, "recipes": rows}, tables.family_table(family, rows))
        return
    if paper:
        rows = tables.paper_rows()
        different = tables.paper_differences(rows)
        verdict = f"{different} numbers differ." if different else "All of the paper's printed numbers come out."
        show(as_json, {"schema": 1, "rows": rows, "different": different}, tables.paper_table(rows), verdict)
        raise typer.Exit(1 if different else 0)
    run = find_target(target, overrides or []).config
    numbers = tables.budget_json(target, run, run.model.read_slots if slots is None else slots)
    show(as_json, numbers, tables.budget_table(numbers, run), tables.counts_line(numbers))
