"""`trc2 eval`: scores of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trc2.cli.app import AsJson, Trained, app, show, warn
from trc2.system.console import table_of


@app.command("eval")
def evaluate(
    target: Trained,
    task: Annotated[list[str] | None, typer.Option(help="A task of the run. The default is all tasks.")] = None,
    file: Annotated[list[Path] | None, typer.Option(help="A .jsonl, .txt or .parquet file to score.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    format_: Annotated[str, typer.Option("--format", help="Text format of the files.")] = "text",
    again: Annotated[bool, typer.Option("--again", help="Read a test split a second time.")] = False,
    memory: Annotated[
        Literal["read", "off"],
        typer.Option(help="Read the episodic memory and taught documents, or leave both out."),
    ] = "read",
    as_json: AsJson = False,
) -> None:
    """Score a checkpoint on any task of its stream, or on any file."""
    from trc2.evaluation.score import score_target
    from trc2.runs.target import find_target
    from trc2.versions.find import held_out_files, model_folder

    # A version is not changed by an evaluation, so its model is scored on the held-out documents of its tasks.
    held_out = held_out_files(Path(target), task or [], has_files=bool(file))
    scores = score_target(
        find_target(str(model_folder(Path(target)))),
        tasks=[] if held_out is not None else task or [],
        files=[*(file or []), *(held_out or {}).values()],
        split=split,
        text_format=format_,
        again=again,
        memory=memory,
        warn=warn,
    )
    named = {str(path): name for name, path in (held_out or {}).items()}
    scores = {named.get(name, name): metrics for name, metrics in scores.items()}
    names = list(dict.fromkeys(name for metrics in scores.values() for name in metrics))
    rows = []
    for name, metrics in scores.items():
        cells = {key: f"{value:,}" if isinstance(value, int) else f"{value:.4g}" for key, value in metrics.items()}
        rows.append([name, *(cells.get(key, "–") for key in names)])
    title, caption = f"{target}, {split}", "perplexity per token"
    show(as_json, scores, table_of(["task", *names], rows, title=title, caption=caption))
