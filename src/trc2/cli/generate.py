"""`trc2 generate`: text from a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trc2.cli.app import MAX_COUNT, MAX_SEED, TopP, Trained, app, warn
from trc2.errors import plain


@app.command()
def generate(
    target: Trained,
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    max_new_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.", min=1, max=MAX_COUNT)] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token, 1 is the usual draw.")] = 1.0,
    top_p: TopP = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.", min=0, max=MAX_SEED)] = 0,
    memory: Annotated[
        Literal["read", "off"], typer.Option(help="Whether the episodic memory and taught documents are read.")
    ] = "read",
    policy: Annotated[
        Literal["auto", "now", "off"],
        typer.Option("--compile", help="Compile decoding on a CPU: if it pays, before the first token, or never."),
    ] = "auto",
) -> None:
    """Continue a prompt, token by token."""
    from trc2.generate.sampling import Sampling, lay_out_for_decoding, stream_text
    from trc2.runs.target import find_target
    from trc2.versions.find import model_folder

    net, tokenizer = find_target(str(model_folder(Path(target)))).trained_model(warn)
    lay_out_for_decoding(net, policy)
    print(plain(prompt), end="", flush=True)
    sampling = Sampling(max_new_tokens, temperature, top_p, seed)
    for piece in stream_text(net, tokenizer, prompt, sampling, read_memory=memory == "read"):
        print(plain(piece), end="", flush=True)
    print()
