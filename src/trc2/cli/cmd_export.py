"""`trc2 export`: a run as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trc2 import __version__
from trc2.cli.app import app, out, warn


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    folder: Annotated[Path, typer.Argument(help="A new folder for the model.")],
    with_replay: Annotated[
        bool, typer.Option("--with-replay", help="Take the replay stores along; they hold training text.")
    ] = False,
) -> None:
    """Write a run's newest checkpoint as a model folder: safetensors, JSON, tokenizer and model card."""
    from trc2.hf.export import export_run

    written = export_run(run, folder, __version__, with_replay=with_replay, warn=warn)
    out.print("  ".join(str(path) for path in written), soft_wrap=True)
