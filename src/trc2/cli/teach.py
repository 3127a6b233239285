"""`trc2 teach`: documents that a saved model reads from now on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trc2.cli.app import AsJson, Saved, app, progress, show, warn

if TYPE_CHECKING:
    from trc2.teaching.teach import Change


@app.command()
def teach(
    model: Saved,
    files: Annotated[list[Path], typer.Argument(help="Files or folders of text.")],
    keep: Annotated[
        list[Path] | None, typer.Option(help="A file or folder of text that must not get worse.", show_default=False)
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="Text format of rows, e.g. '{title}: {text}'.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Let a saved model read documents from now on, without training.

    They are stored in the folder recall/ of the model. The weights do not change. See docs/recall.md.
    """
    from trc2.teaching.documents import read_documents
    from trc2.teaching.teach import teach as teach_documents

    with progress("teaching"):
        change = teach_documents(
            model, read_documents(files, warn, format_), warn, keep=read_documents(keep or [], warn, format_)
        )
    tokens = sum(len(document.tokens) for document in change.documents)
    known = f" {change.known} were known already." if change.known else ""
    sentence = (
        f"Taught {len(change.documents):,} documents with {tokens:,} tokens in {change.seconds:.1f} s.{known} "
        f"The store holds {len(change.store.documents):,} documents in {change.store.num_bytes:,} bytes."
    )
    show(as_json, {"schema": 1, "model": model, **change.describe()}, sentence, *gate_sentences(change))


def gate_sentences(change: Change) -> list[str]:
    """How the gate was found, and what it does."""
    if change.gate is None:
        return []
    if change.gain is None or change.keep_rise is None:
        return [f"Gate: {change.gate.reason}."]
    return [
        f"Gate: {change.gate.reason}. Loss of taught documents by counts of the others: {-change.gain:+.3f} nats. "
        f"Loss of the text to keep: {change.keep_rise:+.4f} nats."
    ]
