"""`trc2 recall`: what a saved model was taught, and which documents it uses for a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import MAX_COUNT, AsJson, Saved, app, out, show, warn
from trc2.errors import UserError
from trc2.system.console import table_of


@app.command()
def recall(
    model: Saved,
    prompt: Annotated[
        str | None, typer.Option(help="Show where the tokens of this text come from.", show_default=False)
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Also show this many of the likeliest tokens after the prompt.", min=0, max=MAX_COUNT)
    ] = 20,
    page: Annotated[Path | None, typer.Option("--html", help="Write a page as well.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List taught documents, or show for every token of a text how much of it came from which document."""
    if prompt is None:
        if page is not None:
            raise UserError("--html shows a text: give one with --prompt.")
        _list_documents(model, as_json)
        return
    if page is not None and page.suffix.lower() != ".html":  # it replaces a file of this name
        raise UserError(f"--html {page} does not end in .html: name a page, such as recall.html.")
    from trc2.system.files import write_atomically
    from trc2.teaching.explain import explain, explanation_page, named_origins, recalled_sources

    tokens = explain(model, prompt, warn, max_new_tokens=max_new_tokens)
    rows = [
        [repr(t.text)[1:-1], "" if t.is_prompt else "new", f"{t.probability:.3f}", f"{t.from_store:.0%}",
         str(t.context) if t.origins else "–", named_origins(t)]
        for t in tokens
    ]  # fmt: skip
    heads = ["token", "", "probability", "from the store", "context", "documents"]
    data = {"schema": 1, "model": model, "tokens": [token.describe() for token in tokens]}
    sources = [f"{document}  {source}" for document, source in recalled_sources(tokens).items()]
    show(as_json, data, table_of(heads, rows, "llrrrl"), *sources)
    if page is not None:
        write_atomically(page, explanation_page(f"{model} recalls", tokens).encode())
        if not as_json:
            out.print(str(page), soft_wrap=True)


def _list_documents(model: str, as_json: bool) -> None:
    from trc2.teaching.teach import stored_documents

    store = stored_documents(model)
    documents = () if store is None else store.documents
    data = {"schema": 1, "model": model, "documents": [document.describe() for document in documents]}
    if store is None:
        show(as_json, data, f"{model} was taught no documents: use `trc2 teach {model} FILES`.")
        return
    rows = [[document.name, document.source, f"{len(document.tokens):,}"] for document in documents]
    total = f"{len(documents):,} documents, {store.num_tokens:,} tokens, {store.num_bytes:,} bytes."
    gate = "" if store.gate is None else f" Gate: {store.gate.reason}."
    show(as_json, data, table_of(["id", "source", "tokens"], rows, "llr"), total + gate)
