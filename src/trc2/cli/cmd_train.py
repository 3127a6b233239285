"""`trc2 train`: a new run."""

from __future__ import annotations

from trc2.cli.app import Overrides, Recipe, app, out, show_summary


@app.command()
def train(
    recipe: Recipe = "demo",
    overrides: Overrides = None,
) -> None:
    """Train a model through a stream of tasks and measure what it forgets."""
    from trc2.config import load_recipe
    from trc2.train.start import start_run

    folder = start_run(load_recipe(recipe, overrides or []), out)
    show_summary(folder)
