"""`trc2 plan`: what a run needs, on paper."""

from __future__ import annotations

from typing import Annotated

import typer

from trc2.cli.app import AsJson, Overrides, Target, app, show
from trc2.errors import UserError


@app.command()
def plan(
    target: Target = "paper_d768_l4",
    overrides: Overrides = None,
    devices: Annotated[int, typer.Option(help="The largest number of devices.", min=1, max=65_536)] = 1024,
    memory: Annotated[
        float, typer.Option(help="Memory of one device in GB. 32 is a V100 of the paper.", min=1e-3, max=1e6)
    ] = 32,
    flops: Annotated[float, typer.Option(help="Peak TFLOP/s of one device.", min=1e-3, max=1e6)] = 125,
    utilisation: Annotated[
        float | None,
        typer.Option(
            help="Share of the peak that the model reaches. The default is the share that the paper's rows suggest."
        ),
    ] = None,
    bandwidth: Annotated[float, typer.Option(help="GB/s from a device to the others.", min=1e-3, max=1e6)] = 25,
    as_json: AsJson = False,
) -> None:
    """Estimate memory, messages and hours of a run on 1 to 1024 devices.

    The table says whether the run needs DDP, FSDP or recomputing. The folder of a Hugging Face model is planned without
    its weights, for training all of them and for adapters.
    """
    from trc2.costs.devices import Device, all_needs, needs_json, usual_utilisation, ways_to_train
    from trc2.costs.tables import needs_notes, needs_tables
    from trc2.runs.target import planned_config

    if utilisation is not None and not 0 < utilisation <= 1:
        raise UserError(f"--utilisation {utilisation} is not a share: give a number above 0, at most 1, such as 0.3.")
    run = planned_config(target, overrides or [])
    reached = usual_utilisation(run.model) if utilisation is None else utilisation
    device = Device(memory * 1e9, flops * 1e12, reached, bandwidth * 1e9)
    is_guess = utilisation is None
    ways = ways_to_train(run)
    rows = {name: all_needs(way, device, devices) for name, way in ways.items()}
    first = next(iter(rows.values()))
    data = needs_json(target, run, device, first, is_guess=is_guess)
    if len(ways) > 1:
        data["ways"] = {name: needs_json(target, ways[name], device, rows[name], is_guess=is_guess) for name in ways}
    tables = [
        table
        for name, way in ways.items()
        for table in needs_tables(f"{target}, {name}" if name else target, way, rows[name])
    ]
    show(as_json, data, *tables, *needs_notes(run, device, first, is_guess=is_guess))
