"""`trc2 lm-eval`: tasks of the lm-evaluation-harness."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from trc2.cli.app import MAX_COUNT, AsJson, app, show, warn
from trc2.system.console import table_of


@app.command("lm-eval")
def lm_eval(
    folder: Annotated[str, typer.Argument(help="A run, an export, or any causal model of transformers.")],
    tasks: Annotated[str, typer.Option(help="Tasks of the harness, or your own, with commas between them.")],
    include: Annotated[
        Path | None,
        typer.Option(help="A folder with tasks as .yaml files. The files can run code, so use only trusted ones."),
    ] = None,
    num_fewshot: Annotated[
        int | None,
        typer.Option(min=0, max=1000, help="Examples before a question. The default is the task's own number."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, help="Documents per task. The default is all.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Texts scored at once.")] = 8,
    memory: Annotated[Literal["read", "off"], typer.Option(help="Whether an episodic memory is read.")] = "read",
    as_json: AsJson = False,
) -> None:
    r"""Score a model on tasks of the lm-evaluation-harness (pip install '.\[lm-eval]' in the checkout)."""
    from trc2.errors import UserError
    from trc2.evaluation.lm_eval import score_tasks
    from trc2.runs.target import find_target
    from trc2.system.precision import choose_device
    from trc2.versions.find import model_folder

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise UserError("--tasks names none: give at least one task, such as hellaswag.")
    net, tokenizer = find_target(str(model_folder(Path(folder)))).trained_model(warn)
    scores = score_tasks(
        net.to(choose_device("auto")).eval(), tokenizer, names, include=include, num_fewshot=num_fewshot, limit=limit,
        rows=batch_size, reads_memory=memory == "read",
    )  # fmt: skip
    rows = [
        [s.task, f"{s.metric} {'↑' if s.is_higher_better else '↓'}", f"{s.value:.4g}", f"{s.error:.2g}"] for s in scores
    ]
    data = [{name: value for name, value in asdict(score).items() if name != "documents"} for score in scores]
    heads = ("task", "metric", "value", "± standard error")
    show(as_json, data, table_of(heads, rows, align="llrr", title=folder))
