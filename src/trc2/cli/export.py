"""`trc2 export`: a run as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trc2 import __version__
from trc2.cli.app import AsJson, app, show, warn


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The run folder, or a versions folder.")],
    folder: Annotated[Path, typer.Argument(help="A new folder for the model.")],
    with_replay: Annotated[
        bool, typer.Option("--with-replay", help="Include the replay stores. They hold training text.")
    ] = False,
    with_store: Annotated[
        bool, typer.Option("--with-store", help="Include documents that the parent model was taught.")
    ] = False,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge/--adapter", help="Merge adapters into the weights, or write them alone as a PEFT folder."
        ),
    ] = True,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Export the run even if the acceptance check refused it or has not judged it yet."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's newest checkpoint as a model folder: safetensors, JSON, tokenizer and model card.

    A run of model=hf gives a folder of the model's own architecture, which transformers opens without trc2.
    """
    from trc2.hf.export import export_run
    from trc2.versions.find import copy_model, folder_to_continue

    written = copy_model(run, folder) if merge and not with_replay and not with_store else None
    if written is None:  # not a version, or not as the version holds it
        source = folder_to_continue(run)
        written = export_run(
            source, folder, __version__, with_replay=with_replay, with_store=with_store, merge=merge, anyway=anyway,
            warn=warn,
        )  # fmt: skip
    data = {"schema": 1, "run": str(run), "folder": str(folder), "files": [path.name for path in written]}
    show(as_json, data, "  ".join(map(str, written)))
