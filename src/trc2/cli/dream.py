"""`trc2 dream`: text from the model itself, for replay where the old text is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trc2.cli.app import MAX_COUNT, MAX_SEED, AsJson, TopP, Trained, app, progress, show, warn
from trc2.errors import UserError


@app.command("dream")
def dream_(
    target: Trained,
    tokens: Annotated[
        int, typer.Option(help="Stop when the texts hold this many tokens.", min=1, max=MAX_COUNT)
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same texts.", min=0, max=MAX_SEED)] = 0,
    temperature: Annotated[float, typer.Option(help="1 draws by the model's own probabilities.")] = 1.0,
    top_p: TopP = 1.0,
    length: Annotated[int, typer.Option(help="The largest number of tokens of one text.", min=1, max=MAX_COUNT)] = 256,
    path: Annotated[Path, typer.Option("--out", help="A new .jsonl file.")] = Path("dreams.jsonl"),
    as_json: AsJson = False,
) -> None:
    """Sample texts from a model, without duplicates, as a file for stream.replay_prefill_files.

    Every row says which model, seed, temperature and place it came from.
    """
    from trc2.generate.sampling import Sampling, lay_out_for_decoding
    from trc2.generate.self_replay import dream
    from trc2.runs.target import find_target
    from trc2.system.files import make_folder, write_atomically
    from trc2.versions.find import model_folder

    if path.exists():
        raise UserError(f"{path} exists already: choose another --out.")
    if path.suffix != ".jsonl":
        raise UserError(f"--out {path} would not be found by its ending: call it something.jsonl.")
    # The text of the weights alone, without documents that the model was taught.
    net, tokenizer = find_target(str(model_folder(Path(target)))).trained_model(warn, with_recall=False)
    make_folder(path.parent)
    lay_out_for_decoding(net)
    settings = {"model": target, "seed": seed, "temperature": temperature, "top_p": top_p}
    rows, made = [], 0
    with progress("dreaming") as watch:
        for sample in dream(net, tokenizer, Sampling(length, temperature, top_p, seed), tokens=tokens):
            made += sample.tokens
            origin = {**settings, "round": sample.round, "row": sample.row, "tokens": sample.tokens}
            rows.append(json.dumps({"text": sample.text, "dream": origin}, ensure_ascii=False))
            watch(f"generated: {len(rows):,} texts, {made:,} tokens")
    if not rows:
        raise UserError(f"{target} generated empty texts only: try a higher --temperature.")
    if made < tokens:
        warn(f"The model repeats itself: {made:,} tokens in {len(rows):,} different texts are all that it generated.")
    write_atomically(path, ("\n".join(rows) + "\n").encode())
    data = {"schema": 1, "file": str(path), "texts": len(rows), "tokens": made}
    show(as_json, data, f"{len(rows):,} texts, {made:,} tokens: {path}")
