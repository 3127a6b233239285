"""`trc2 train`: a new run."""

from __future__ import annotations

from trc2.cli.app import AsJson, Overrides, Processes, Recipe, Restarts, app, err, launched, out, show_summary


@app.command()
def train(
    recipe: Recipe = "demo",
    overrides: Overrides = None,
    nproc: Processes = 1,
    max_restarts: Restarts = 0,
    as_json: AsJson = False,
) -> None:
    """Train a model through a stream of tasks and measure what it forgets."""
    from trc2.config import load_recipe
    from trc2.training.resume import train_or_resume

    config = load_recipe(recipe, overrides or [])
    if launched(nproc, max_restarts, config):
        return
    show_summary(train_or_resume(config, err if as_json else out), as_json)
