"""Nothing of the past is stored: what generated text keeps on the lab's stream, when it is learned task by task.

    python -m studies.dreaming --data DATA --out results/lab_store

The backbone of `lab_trc2` learns C4, WikiText and GSM8K in three runs of half the lab's length. The second and the
third go on from the export of the one before, and from nothing else. They replay text that this model generates itself,
or nothing. The rows of a step are those of the matrix `lab_store`: 16 new ones without replay, as in `backbone`, and 14
new and 4 replayed ones with it, as in `share22`. So a step with replay has 12.5 % more tokens. Each run has a warm-up
and a cosine of its own. Scored is other text of all three tasks. Results that exist already are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trc2
from studies.taught import texts
from trc2.config import TaskConfig
from trc2.stats.intervals import mean_interval
from trc2.system.files import write_atomically

STEPS = {"c4": 700, "wikitext": 500, "gsm8k": 350}
FORMATS = {"c4": "text", "wikitext": "wikitext", "gsm8k": "gsm8k"}
SCORED = {"c4": 60, "wikitext": 10, "gsm8k": 120}  # documents
DREAMED = 60_000  # tokens before each of the two later runs
WAYS = {"nothing": (None, 16), "generated text": (0.2222, 14)}  # replayed share of all tokens, rows of new text
SETTINGS = ["model.thalamus=false", "model.memory=false", "train.learning_rate=0.002", "train.schedule=per_task",
            "train.min_lr_ratio=0.1", "train.sequence_length=128", "output.threads=1", "output.checkpoint_every=10000",
            "eval.text_sequences=0", "eval.every_steps=250", "eval.max_batches=4", "eval.test=false"]  # fmt: skip


def task_of(name: str, data: Path) -> TaskConfig:
    return TaskConfig(name=name, folder=str((data / name).resolve()), format=FORMATS[name], steps=STEPS[name])


def learn(data: Path, home: Path, seed: int, way: str) -> list[dict[str, float]]:
    """Losses of all tasks after each of the three runs."""
    share, rows = WAYS[way]
    model: Path | None = None
    scores = []
    for name in STEPS:
        settings = [*SETTINGS, f"train.seed={seed}"]
        if model is None:
            of_task = [f"stream.data_root={data}", f"stream.only=[{name}]", f"stream.tasks.{name}.steps={STEPS[name]}"]
            settings += ["model.replay=false", "eval.recall=off", *of_task]
            run = trc2.train("lab_trc2", overrides=settings, folder=home / name, quiet=True)
        else:
            settings += ["control.mode=fixed", f"train.batch_size={rows}"]
            settings += ["model.replay=false"] if share is None else ["model.replay_long_fraction=1.0"]
            run = trc2.continue_from(
                model, {name: task_of(name, data)}, dream=None if share is None else DREAMED, replay_share=share,
                folder=home / name, overrides=settings, quiet=True,
            )  # fmt: skip
        model = run.export(home / f"{name} model", anyway=True)
        saved = trc2.load_model(model)
        known = {task: texts(data / task / "validation.jsonl", count) for task, count in SCORED.items()}
        scores.append({task: saved.evaluate(documents)["loss"] for task, documents in known.items()})
    return scores


def table(found: Mapping[str, Any]) -> str:
    """Perplexities after the last run, and the mean loss with a 95 % t-interval over the seeds."""
    lines = ["| replayed | n | " + " | ".join(STEPS) + " | mean loss |", "|:---|---:|" + "---:|" * (len(STEPS) + 1)]
    for way in WAYS:
        ends = [one["losses"][-1] for one in found.values() if one["way"] == way]
        if ends:
            cells = [f"{math.exp(sum(end[task] for end in ends) / len(ends)):.1f}" for task in STEPS]
            mean = mean_interval([sum(end.values()) / len(end) for end in ends])
            spread = f" ± {mean.high - mean.mean:.3f}" if len(ends) > 1 else ""
            lines.append(f"| {way} | {len(ends)} | {' | '.join(cells)} | {mean.mean:.3f}{spread} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.dreaming", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the lab's data")
    parser.add_argument("--out", type=Path, required=True, help="a folder for dreaming.json and dreaming.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "dreaming.json"
    found = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else {}
    for seed in asked.seeds:
        for way in WAYS:
            if f"{way}, seed {seed}" not in found:
                with tempfile.TemporaryDirectory() as name:
                    losses = learn(asked.data.resolve(), Path(name), seed, way)
                found[f"{way}, seed {seed}"] = {"way": way, "seed": seed, "losses": losses}
                write_atomically(path, json.dumps({"schema": 1, "runs": found}, indent=1).encode())
                write_atomically(asked.out / "dreaming.md", table(found).encode())
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
