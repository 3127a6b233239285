"""When the old data is gone: what a small Llama keeps of prose while it learns code, with what to replay.

    python benchmarks/dreams.py --out results/dreams --seeds 0 1 2

A Llama is trained on prose and exported. From then on only the exported folder exists, except where a variant says so:

- nothing: code alone.
- dreams: text sampled from the exported model itself fills the reservoir. A fifth of every step's tokens is replayed.
- real5: real prose fills the reservoir. 5 % of every step's tokens is replayed.
- controlled: `trc2 continue` of the run with its stores. The controller steers the share, from 5 % on.

Writes results.json, table.md and dreams.png.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from trc2 import RunConfig, __version__
from trc2.config import TaskConfig
from trc2.continuing.continue_run import continue_run
from trc2.generate.sampling import Sampling
from trc2.generate.self_replay import dream
from trc2.hf.export import export_run
from trc2.runs.folder import RunFolder
from trc2.runs.target import find_target
from trc2.stats.intervals import mean_interval
from trc2.stream.builtin import documents
from trc2.stream.tokenizer import train_bpe
from trc2.system.plot_style import Figure, ink, palette, style
from trc2.training.setup import start_run

VARIANTS = ("nothing", "dreams", "real5", "controlled")
VOCAB, LENGTH = 2048, 128
STEPS = {"prose": 200, "code": 100}
QUIET = Console(quiet=True)


def llama(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=VOCAB, max_position_embeddings=256, bos_token_id=0, eos_token_id=0, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    texts = [document.text for corpus in ("prose", "code") for document in documents(corpus, "train")]
    (folder / "tokenizer.json").write_text(train_bpe(texts, VOCAB).to_json())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def config_of(model: dict[str, Any], seed: int, folder: Path, stream: dict[str, Any]) -> RunConfig:
    stores = {"replay_chunk_length": 64, "replay_recent_chunks": 256, "replay_long_chunks": 2048}
    return RunConfig(
        model={"name": "hf", "replay_long_fraction": 1.0, **stores, **model},
        stream={"control_batches": 2, **stream},
        train={"sequence_length": LENGTH, "batch_size": 16, "learning_rate": 2e-3, "warmup_steps": 10, "seed": seed},
        control={"every_steps": 10},
        eval={"every_steps": 20, "batch_size": 32, "max_batches": 4, "text_sequences": 0, "test": False},
        output={"folder": folder, "threads": torch.get_num_threads(), "checkpoint_every": 10_000},
    )


def rows_of(texts: Iterable[str], path: Path) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def dreamt(model: Path, seed: int) -> Iterator[str]:
    net, tokenizer = find_target(str(model)).trained_model(print)
    return (found.text for found in dream(net, tokenizer, Sampling(LENGTH, seed=seed), tokens=60_000))


def one_seed(seed: int, root: Path) -> dict[str, list[dict[str, float]]]:
    """Perplexity of both tasks over the steps of every variant. All variants begin with the same weights."""
    prose, code = (TaskConfig(name=name, builtin=name, steps=steps) for name, steps in STEPS.items())
    llama(root / "start", seed)
    first = start_run(config_of({"pretrained": str(root / "start")}, seed, root / "prose", {"tasks": (prose,)}), QUIET)
    export_run(first, root / "llama", __version__)
    files = {
        "nothing": (),
        "dreams": (rows_of(dreamt(root / "llama", seed), root / "dreams.jsonl"),),
        "real5": (rows_of((d.text for d in documents("prose", "train")), root / "prose.jsonl"),),
    }
    shares = {"dreams": 0.2, "real5": 0.05}
    for variant, seeds in files.items():
        model = {"pretrained": str(root / "llama"), "replay": variant in shares, "replay_share": shares.get(variant)}
        stream = {"tasks": (prose, code), "only": ("code",), "replay_prefill_files": seeds}
        config = config_of(model, seed, root / variant, stream)
        start_run(config.replace(control=config.control.replace(mode="fixed")), QUIET)
    continue_run(first, root / "controlled", code, QUIET)
    curves = {variant: curve(root / variant) for variant in VARIANTS}
    start = curves["nothing"][0]  # a run that goes on does not score again what it ended with
    return {variant: rows if rows[0]["step"] == 0 else [start, *rows] for variant, rows in curves.items()}


def curve(folder: Path) -> list[dict[str, float]]:
    """Perplexities over the steps on code."""
    rows = [
        {"step": record.step, **{name: record.metrics[f"eval/{name}/perplexity"] for name in STEPS}}
        for record in RunFolder(folder).records()
        if record.kind == "eval" and all(f"eval/{name}/perplexity" in record.metrics for name in STEPS)
    ]
    last = rows[-1]["step"]
    return [{**row, "step": row["step"] - last + STEPS["code"]} for row in rows if row["step"] >= last - STEPS["code"]]


def table(found: list[dict[str, list[dict[str, float]]]]) -> str:
    """Geometric means over the seeds, with 95 % intervals of the mean log-perplexity where there are several."""
    lines = ["| variant | prose before | prose at the end | code at the end |", "|---|---:|---:|---:|"]
    for variant in VARIANTS:
        cells = []
        for place, task in ((0, "prose"), (-1, "prose"), (-1, "code")):
            logs = [math.log(seed[variant][place][task]) for seed in found]
            interval = mean_interval(logs)
            text = f"{math.exp(interval.mean):.1f}"
            if len(logs) > 1:
                text += f" ({math.exp(interval.low):.1f} … {math.exp(interval.high):.1f})"
            cells.append(text)
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(found: list[dict[str, list[dict[str, float]]]], path: Path) -> None:
    """Dots are seeds, bars are geometric means, and the line is the perplexity of prose before code."""
    title = f"A small Llama learns code after prose: replay keeps prose ({len(found)} seeds)"
    names = {
        "nothing": "no replay",
        "dreams": "generated\ntext",
        "real5": "5 % old\ntext",
        "controlled": "controlled\nreplay",
    }
    colours = dict(zip(("controlled", "dreams", "real5", "nothing"), (*palette()[1:4], ink("grey")), strict=True))
    with style():
        figure = Figure("dreams", title, 2, height=3.0)
        for axes, task in zip(figure.panels, STEPS, strict=True):
            for place, variant in enumerate(VARIANTS):
                ends = [seed[variant][-1][task] for seed in found]
                mean = math.exp(sum(map(math.log, ends)) / len(ends))
                axes.bar(place, mean, color=colours[variant], alpha=0.45, width=0.7)
                axes.scatter([place] * len(ends), ends, color=colours[variant], s=16, zorder=3)
                axes.annotate(f"{mean:.0f}", (place, 0), (0, 5), textcoords="offset points", ha="center")
            axes.set(
                xticks=range(len(VARIANTS)),
                xticklabels=[names[variant] for variant in VARIANTS],
                ylabel="perplexity (lower is better)",
                title=f"{task}, at the end",
            )
        before = math.exp(sum(math.log(seed["nothing"][0]["prose"]) for seed in found) / len(found))
        figure.panels[0].axhline(before, color=ink(), linestyle="--", linewidth=1)
        figure.panels[0].annotate("before code", (1.0, before), xycoords=("axes fraction", "data"), xytext=(2, 0),
                                  textcoords="offset points", va="center", fontsize=8)  # fmt: skip
        path.write_bytes(figure.drawing.png())


def show(found: list[dict[str, list[dict[str, float]]]], out: Path) -> None:
    (out / "table.md").write_text(table(found))
    draw(found, out / "dreams.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="none: draw what results.json holds")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = []
    if not options.seeds:
        show(json.loads((options.out / "results.json").read_text())["curves"], options.out)
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as name:
            found.append(one_seed(seed, Path(name)))
        ends = {variant: {task: round(rows[-1][task], 1) for task in STEPS} for variant, rows in found[-1].items()}
        print(f"seed {seed}: {ends}", flush=True)
        content = {"schema": 1, "seeds": options.seeds[: len(found)], "curves": found}
        (options.out / "results.json").write_text(json.dumps(content, indent=1) + "\n")
        show(found, options.out)


if __name__ == "__main__":
    main()
