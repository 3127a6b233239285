"""`trc2 train`: a new run."""

from __future__ import annotations

from trc2.cli.app import AsJson, Overrides, Recipe, app, err, out, show_summary


@app.command()
def train(
    recipe: Recipe = "demo",
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a model through a stream of tasks and measure what it forgets."""
    from trc2.config import load_recipe
    from trc2.train.start import start_run

    folder = start_run(load_recipe(recipe, overrides or []), err if as_json else out)
    show_summary(folder, as_json)
