"""`trc2 continue`: one more task for a finished run, and the gate after it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import MAX_COUNT, app, err, out, show_summary
from trc2.cli.several import Processes, Restarts, launched
from trc2.errors import UserError


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
        float | None, typer.Option(help="Exit with 3 if past tasks' perplexity rose by more than this fraction.", min=0)
    ] = None,
    nproc: Processes = 1,
    max_restarts: Restarts = 0,
) -> None:
    """Teach a finished run one more task, in a new folder that points to its parent.

    Exit code 3 if --max-forgetting is given and exceeded: the parent then remains the model to use.
    """
    from trc2.config import TaskConfig
    from trc2.runs.folder import RunFolder
    from trc2.train.resume import continue_run, relative_forgetting

    if max_forgetting is not None and not math.isfinite(max_forgetting):
        raise UserError(f"--max-forgetting {max_forgetting} is no limit: give a number such as 0.05.")
    known = {"name": task, "steps": steps, "builtin": builtin, "dataset": dataset, "subset": subset, "format": format_}
    config = TaskConfig(**known, folder=None if source is None else str(Path(source).resolve()))
    home = parent.resolve()
    if not home.name:
        raise UserError(f"{parent} is not a run folder: name one.")
    target = folder or (parent if parent.name else home).with_name(f"{home.name}+{task}")
    if nproc > 1 and launched(nproc, max_restarts, RunFolder(parent).config()):
        return
    continue_run(parent, target, config, out)
    show_summary(target)
    risen = relative_forgetting(target)
    out.print(f"The perplexity of past tasks rose by {risen:.1%} on average since their own training.")
    if max_forgetting is not None and not risen <= max_forgetting:  # NaN is not within any limit
        err.print(
            f"gate: that is not within --max-forgetting {max_forgetting:.1%}: keep using {parent}.",
            style="bold red", soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(3)
