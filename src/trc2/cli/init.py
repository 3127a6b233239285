"""`trc2 init`: a recipe for your own text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trc2.cli.app import AsJson, app, err, out, print_json, warn
from trc2.errors import UserError

if TYPE_CHECKING:
    from trc2.config import RunConfig
    from trc2.stream.packed import PreparedStream


@app.command()
def init(
    folders: Annotated[
        list[str],
        typer.Argument(
            help="Folders of text, or files. Each one is a task, in this order. NAME=FOLDER also names the task."
        ),
    ],
    minutes: Annotated[float, typer.Option(help="How long training may take.", min=0.1, max=100_000)] = 10.0,
    model: Annotated[
        str | None,
        typer.Option(help="A model you have: a Hugging Face folder, or a name on the hub. Otherwise a new TRC²."),
    ] = None,
    recipe: Annotated[Path, typer.Option("--out", help="The recipe to write.")] = Path("my.yaml"),
    as_json: AsJson = False,
) -> None:
    """Write a recipe that trains on your folders, sized for this machine and the time you have."""
    from trc2.setup.recipe_sizing import look_at, propose, recipe_text
    from trc2.system.files import make_folder, write_atomically
    from trc2.training.setup import prepare_with_progress

    shown = err if as_json else out
    corpora = look_at(folders)
    if recipe.exists() or recipe.is_symlink():  # a link that leads nowhere would be replaced
        raise UserError(f"{recipe} exists already: choose another --out, or remove it.")
    make_folder(recipe.parent)
    folder = Path("runs") / (recipe.stem or "my")
    with err.status("measuring how fast this machine trains") as status:

        def prepare(config: RunConfig) -> PreparedStream:
            status.stop()
            return prepare_with_progress(config, shown)

        own = None if model is None else str(Path(model).resolve()) if Path(model).is_dir() else model
        proposal = propose(corpora, 60 * minutes, folder, prepare, pretrained=own)
    command = f"trc2 init {' '.join(folders)} --minutes {minutes:g}{f' --model {model}' if model else ''}"
    write_atomically(recipe, recipe_text(proposal, corpora, " ".join(command.split())).encode())
    speed, config = proposal.speed, proposal.config
    caution = proposal.caution()
    if caution is not None:
        warn(caution)
    if as_json:
        print_json({
            "schema": 1, "recipe": str(recipe), "seconds": proposal.seconds, "steps": proposal.steps,
            "tokens_per_second": speed.tokens_per_second(config), "d_model": config.model.d_model,
            "columns": config.model.depth, "tasks": {corpus.name: corpus.size for corpus in corpora},
            "waiting": speed.waiting,
        })  # fmt: skip
        return
    size = f"{config.model.depth} {'columns' if model is None else 'layers'} of width {config.model.d_model}"
    shown.print(f"{size}, {proposal.steps} steps at {speed.tokens_per_second(config):,.0f} tokens/s.")
    if proposal.seconds < 40 * minutes:
        shown.print(
            "More steps would read this text more than ten times, so the recipe takes less than the given time. "
            "More text would help more than more steps."
        )
    shown.print(
        f"{recipe}: about {proposal.seconds / 60:.1f} minutes. Begin with `trc2 train {recipe}`.", soft_wrap=True
    )
