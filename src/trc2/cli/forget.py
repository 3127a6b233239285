"""`trc2 forget`: remove documents that a saved model was taught."""

from __future__ import annotations

from typing import Annotated

import typer

from trc2.cli.app import AsJson, Saved, app, progress, show, warn
from trc2.cli.teach import gate_sentences


@app.command()
def forget(
    model: Saved,
    document: Annotated[
        list[str] | None, typer.Option(help="The id of a document, from `trc2 recall MODEL`.", show_default=False)
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="A pattern of sources, e.g. 'notes/*'.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove taught documents exactly, as if they had never been taught.

    Only the store changes. What the weights learned in training stays in the weights.
    """
    from trc2.teaching.teach import forget as forget_documents

    with progress("forgetting"):
        change = forget_documents(model, warn, documents=document or [], sources=source or [])
    sentence = (
        f"Forgot {len(change.documents):,} documents. {len(change.store.documents):,} are left. The weights are "
        "untouched: what they learned in training stays."
    )
    show(as_json, {"schema": 1, "model": model, **change.describe()}, sentence, *gate_sentences(change))
