"""`trc2 train`: a new run."""

from __future__ import annotations

from typing import Annotated

import typer

from trc2.cli.app import Overrides, app, out, show_summary
from trc2.cli.several import Processes, Restarts, launched


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file; it must have a stream of tasks.")] = "demo",
    overrides: Overrides = None,
    nproc: Processes = 1,
    max_restarts: Restarts = 0,
) -> None:
    """Train a model through a stream of tasks and measure what it forgets."""
    from trc2.config import load_recipe
    from trc2.train.resume import start_or_go_on

    config = load_recipe(recipe, overrides or [])
    if launched(nproc, max_restarts, config):
        return
    show_summary(start_or_go_on(config, out))
