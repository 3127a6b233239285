"""`trc2 continue`: one more task for a finished run, and the gate after it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import MAX_COUNT, app, err, out, show_summary, warn
from trc2.cli.several import Processes, Restarts, launched
from trc2.console import shown
from trc2.errors import UserError
from trc2.ranks.torchrun import is_first_process


@app.command("continue")
def continue_(
    parent: Annotated[Path, typer.Argument(help="The finished run.")],
    task: Annotated[str, typer.Option(help="Name of the new task.")],
    folder: Annotated[Path | None, typer.Option("--out", help="New run folder; PARENT+TASK by default.")] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps for the new task.", min=1, max=MAX_COUNT)] = 100,
    builtin: Annotated[str | None, typer.Option(help="A built-in corpus: prose, code or arithmetic.")] = None,
    source: Annotated[str | None, typer.Option("--folder", help="A folder with train.jsonl and so on.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A Hugging Face dataset id.")] = None,
    subset: Annotated[str | None, typer.Option(help="The dataset's configuration.")] = None,
    format_: Annotated[str, typer.Option("--format", help="text, gsm8k, wikitext or a template.")] = "text",
    max_forgetting: Annotated[
        float | None,
        typer.Option(help="Exit with 3 unless every past task's perplexity surely rose by no more than this.", min=0),
    ] = None,
    replay_share: Annotated[
        float | None, typer.Option(help="Replay this share of every step's tokens from now on.", min=0, max=0.9)
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Try short branches first and print the cheapest replay share.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict, or the rehearsal, as JSON.")] = False,
    nproc: Processes = 1,
    max_restarts: Restarts = 0,
) -> None:
    """Teach a finished run one more task, in a new folder that points to its parent.

    Parent and child are compared task by task on held-out text, with 95 % intervals from a bootstrap over documents.
    Exit code 3 if --max-forgetting is given and a task is not surely within: the parent remains the model to use.
    """
    from trc2.config import TaskConfig
    from trc2.runs.folder import RunFolder
    from trc2.train.gate import judge
    from trc2.train.rehearsal import rehearse_shares
    from trc2.train.resume import continue_run, relative_forgetting

    if max_forgetting is not None and not math.isfinite(max_forgetting):
        raise UserError(f"--max-forgetting {max_forgetting} is no limit: give a number such as 0.05.")
    known = {"name": task, "steps": steps, "builtin": builtin, "dataset": dataset, "subset": subset, "format": format_}
    config = TaskConfig(**known, folder=None if source is None else str(Path(source).resolve()))
    home = parent.resolve()
    if not home.name:
        raise UserError(f"{parent} is not a run folder: name one.")
    target = folder or (parent if parent.name else home).with_name(f"{home.name}+{task}")
    if rehearse:
        if max_forgetting is None:
            raise UserError("--rehearse looks for a share that stays under a limit: give --max-forgetting too.")
        with out.status("rehearsing") as status:
            rehearsal = rehearse_shares(
                parent, config, max_forgetting, watch=lambda text: status.update(shown(text)), warn=warn
            )
        if as_json:
            print(json.dumps(rehearsal.describe(), indent=2))
            return
        for line in rehearsal.lines():
            out.print(line)
        return
    if nproc > 1 and launched(nproc, max_restarts, RunFolder(parent).config()):
        return
    continue_run(parent, target, config, err if as_json else out, replay_share)
    if not is_first_process():
        return
    if not as_json:
        show_summary(target)
    verdict = judge(parent, target, max_forgetting, warn)
    if as_json:
        print(json.dumps(verdict.describe(), indent=2))
    else:
        risen = relative_forgetting(target)
        out.print(f"The perplexity of past tasks rose by {risen:.1%} on average since their own training.")
        for found in verdict.tasks:
            bounds = f"{found.rise.low:+.1%} … {found.rise.high:+.1%}"
            text = f"{found.documents} documents of {found.task}/{found.split}"
            out.print(f"Against the parent, {text}: {found.rise.value:+.1%} ({bounds}).")
    if not verdict.passed:  # NaN is not within any limit
        failing = ", ".join(f"{found.task} is {found.word}" for found in verdict.tasks if not found.passed)
        err.print(
            f"gate: not within --max-forgetting {max_forgetting:.1%} ({failing}): keep using {parent}.",
            style="bold red", soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(3)
