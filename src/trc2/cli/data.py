"""`trc2 data`: commands about a stream's data."""

from __future__ import annotations

import typer

from trc2.cli.app import AsJson, Overrides, Recipe, app, err, out, show
from trc2.errors import UserError
from trc2.system.console import table_of

data_app = typer.Typer(help="Prepare and inspect data.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("prepare")
def data_prepare(
    recipe: Recipe,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Pack a stream's documents into token shards, or find them in the cache."""
    from trc2.config import load_recipe
    from trc2.training.setup import prepare_with_progress

    run = load_recipe(recipe, overrides or [])
    if run.stream is None:
        raise UserError(f"'{recipe}' has no stream of tasks: choose a recipe that has, such as demo.")
    prepared = prepare_with_progress(run, err if as_json else out)
    rows = []
    for name, task in prepared.tasks.items():
        for split, info in task.splits.items():
            shared = prepared.overlap.get(f"{name}/{split}", {})
            also_in = ", ".join(f"{other} {overlap:.1%}" for other, overlap in shared.items() if overlap > 0)
            rows.append([name, split, f"{info.documents:,}", f"{info.tokens:,}", f"{info.bytes:,}", also_in])
    heads = ("task", "split", "documents", "tokens", "bytes", "13-grams also in train of")
    title = f"{recipe}: fingerprint {prepared.fingerprint()[:16]}, {prepared.tokenizer.vocab_size} token ids"
    show(as_json, prepared.describe(), table_of(heads, rows, align="llrrrl", title=title))
