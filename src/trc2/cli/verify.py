"""`trc2 verify`: the claims about a model, measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import MAX_SEED, AsJson, Overrides, Target, app, out, print_json, progress, warn
from trc2.system.files import make_folder, write_atomically


@app.command()
def verify(
    target: Target = "paper_compact",
    overrides: Overrides = None,
    folder: Annotated[Path, typer.Option("--out", help="Where verify.json and verify.png go.")] = Path("runs/verify"),
    seed: Annotated[int, typer.Option(help="Seed of weights, probes and kills.", min=0, max=MAX_SEED)] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Prove exact resume instead, by killing a run.")] = False,
    kills: Annotated[int, typer.Option(help="How often --resume kills.", min=1, max=1_000_000)] = 20,
    device: Annotated[
        str | None, typer.Option(help="Also check training, resume, decoding and ranks on a device, e.g. cuda.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove causality and state semantics of a model. With --resume, prove exact resume.

    The result is a table, JSON and a picture. The exit code is 0 if every check holds, 1 if one fails, 2 on bad input.
    """
    if resume:
        _verify_resume(folder, kills, seed, as_json)
    from trc2.runs.target import find_target
    from trc2.system.plot_style import style
    from trc2.verify import ModelUnderTest, run_checks
    from trc2.verify.figure import as_table, draw, notes, summary
    from trc2.versions.find import model_folder

    net = find_target(str(model_folder(Path(target))), overrides or []).model(warn, seed)
    make_folder(folder)
    with progress("starting") as watch:
        report = run_checks(net, target, seed, watch=lambda name: watch(f"checking {name}"))
        if device is not None:
            from trc2.verify.device import device_checks

            more = device_checks(ModelUnderTest(net, seed), device, watch)
            report = replace(report, checks=(*report.checks, *more))
    (folder / "verify.json").write_text(json.dumps(report.to_json(), indent=2))
    with style():
        write_atomically(folder / "verify.png", draw(report.to_json()).drawing.png())
    if as_json:
        print_json(report.to_json())
        raise typer.Exit(0 if report.passed else 1)
    out.print(as_table(report, out.width))
    for note in notes(report):
        out.print(note, style="dim")
    out.print(summary(report), style="green" if report.passed else "bold red")
    out.print(f"{folder / 'verify.json'}  {folder / 'verify.png'}")
    raise typer.Exit(0 if report.passed else 1)


def _verify_resume(folder: Path, kills: int, seed: int, as_json: bool) -> None:
    import tempfile

    from trc2.verify.kill_tests import verify_resume

    make_folder(folder)
    with progress("starting") as watch, tempfile.TemporaryDirectory() as scratch:
        report = verify_resume(Path(scratch), kills, seed, watch=watch)
    (folder / "resume.json").write_text(json.dumps(report.to_json(), indent=2))
    if as_json:
        print_json(report.to_json())
        raise typer.Exit(0 if report.passed else 1)
    for difference in report.differences[:20]:
        out.print(f"differs: {difference}", style="bold red", soft_wrap=True)
    out.print(
        f"{report.kills:,} kills of {len(report.ended)} commands ({', '.join(report.ended)}), "
        f"{sum(report.ended.values()):,} ends, {len(report.differences)} differences to the undisturbed ones, "
        f"{report.seconds / 60:.1f} minutes: {folder / 'resume.json'}",
        style="green" if report.passed else "bold red", soft_wrap=True,
    )  # fmt: skip
    raise typer.Exit(0 if report.passed else 1)
