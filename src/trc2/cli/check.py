"""`trc2 check`: the acceptance check of a continued run, at any time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trc2.cli.app import AsJson, app, err, out, print_json, show_summary, warn
from trc2.errors import UserError

if TYPE_CHECKING:
    from trc2.continuing.acceptance import Verdict

REFUSED = 3  # the exit code, not imported from trc2.continuing.acceptance: `trc2 --help` must not wait


@app.command()
def check(
    parent: Annotated[Path, typer.Argument(help="The run, saved model or versions folder that the child continues.")],
    child: Annotated[Path, typer.Argument(help="The finished run that `trc2 continue` made.")],
    max_forgetting: Annotated[
        float | None,
        typer.Option(help="Judge by this limit. A limit that is larger than the child's own is not used.", min=0),
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(help="Run this command after the verdict, with the verdict as JSON on its standard input."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge whether a continued run may take its parent's place, and write the verdict into its folder.

    Parent and child are compared task by task on held-out text. The parent must be, to the bit, what the child began
    with. Exit code 3 if a task is not surely within the limit: the parent remains the model to use.
    """
    from trc2.continuing.acceptance import judge_child
    from trc2.runs.folder import RunFolder
    from trc2.system.notify import check_command
    from trc2.versions.find import folder_to_continue

    check_command(notify)
    parent = folder_to_continue(parent)
    run = RunFolder(child)
    run.config()  # a folder that is not a run is refused
    run.refuse_summary_folders()
    lineage = run.lineage()
    if lineage is None:
        raise UserError(f"{child} does not go on from another run or model: name one that `trc2 continue` made.")
    if max_forgetting is not None and lineage.limit is not None and max_forgetting > lineage.limit:
        warn(f"{child} keeps the limit of {lineage.limit:.1%} with which it began: a larger one is not used.")
    verdict = judge_child(child, warn, parent, max_forgetting, again=True)
    assert verdict is not None
    send_verdict(notify, child, verdict)
    show_verdict(child, verdict, as_json=as_json)


def send_verdict(command: str | None, child: Path, verdict: Verdict) -> None:
    """Run the command of --notify."""
    from trc2.system.notify import notify

    facts: dict[str, object] = {
        "event": "verdict",
        "verdict": "accepted" if verdict.passed else "refused",
        "child": child,
    }
    facts |= {"parent": verdict.parent, "limit": verdict.limit, "worst": f"{verdict.worst:.6g}"}
    notify(command, verdict.describe(), facts, warn)


def show_verdict(child: Path, verdict: Verdict, *, as_json: bool, with_summary: bool = False) -> None:
    """Write the run's summary, which contains the verdict, and show the verdict. Show the summary too if asked."""
    from trc2.report.summary import write_summary

    if as_json or not with_summary:
        write_summary(child)
    else:
        show_summary(child)
    if as_json:
        print_json(verdict.describe())
    else:
        tell_verdict(child, verdict)
    exit_unless_accepted(verdict)


def exit_unless_accepted(verdict: Verdict) -> None:
    """Exit with 3 and say why if the acceptance check refused a run. NaN is not within any limit."""
    if verdict.passed:
        return
    limits = f"not within {verdict.limits}" if verdict.limits else "not accepted"
    err.print(
        f"acceptance check: {limits} ({verdict.failing}): keep using {verdict.parent}.",
        style="bold red", soft_wrap=True,
    )  # fmt: skip
    raise typer.Exit(REFUSED)


def tell_verdict(child: Path, verdict: Verdict) -> None:
    """Print the verdict, and how much of its parent's tasks the child forgot."""
    from trc2.continuing.advice import advice, stop_sentence
    from trc2.continuing.continue_run import relative_forgetting
    from trc2.runs.folder import RunFolder

    lineage = RunFolder(child).lineage()
    if lineage is not None and lineage.is_run and not lineage.starts_over:
        risen = relative_forgetting(child)
        out.print(f"The perplexity of past tasks rose by {risen:.1%} on average since their own training.")
    elif not verdict.tasks:
        out.print(
            f"{verdict.parent} is a saved model, which does not say what it learned, so what was forgotten is unknown: "
            "name text it should go on knowing by --keep NAME=FOLDER, or let it generate some by --dream.",
            style="yellow",
        )
    if verdict.stop is not None:
        out.print(stop_sentence(verdict.stop, 0 if lineage is None else lineage.first_step), soft_wrap=True)
    if verdict.interpolation is not None:
        out.print(f"Its weights are {verdict.interpolation:g} of the way from the parent to the end of the training.")
    if verdict.prediction is not None:
        trial, became = verdict.prediction, f"{verdict.worst:+.1%}"
        out.print(f"Trial runs with {trial.share:.0%} replay: {trial.predicted:+.1%} predicted; it became {became}.")
    for task in verdict.tasks:
        bounds = f"{task.rise.low:+.1%} … {task.rise.high:+.1%}"
        worse = ":" if task.measure == "perplexity" else " lost"
        out.print(f"Against the parent, {task.text}{worse} {task.rise.value:+.1%} ({bounds}), {task.word}.")
    for drift in verdict.drifts:
        bounds = f"{drift.nats.low:.3g} … {drift.nats.high:.3g}"
        limit = "" if drift.limit is None else f", {'within' if drift.passed else 'not within'} {drift.limit:g}"
        out.print(f"Predictions moved by {drift.nats.value:.3g} nats a token ({bounds}{limit}) on {drift.text}.")
    if lineage is not None and not lineage.is_run and verdict.tasks:
        out.print(verdict.not_measured)
    for sentence in advice(child, verdict):
        out.print(sentence, soft_wrap=True)
