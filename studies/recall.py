"""What a finished network gains if it reads stored text while it predicts, against the stored fraction.

    python -m studies.recall RUN… --data DATA --out results/recall
    python -m studies.recall --decide results/lab_scale --out results/recall

Each run must still have its last checkpoint. Nothing is trained except the eight weights of the gate, which are fitted
on the control windows of every task: text that no step trains on and no evaluation scores. Scores are those of the
run's own evaluation. The settings below were fixed before any run was scored:

- stores: uniform samples of the chunks that the run was trained on, as its reservoir keeps them, at FRACTIONS of the
  stream's tokens, and all of them;
- predicted by the network alone, by the counts alone, by both, and by both with a gate that does not see the length of
  the match.

What decides was fixed before, too. With the stores of the large-share recipe itself, three seeds and a paired 95 %
t-interval, the mean final loss should be at least 0.10 nats below that of the network alone, and no task may get worse
in the mean over seeds. Before the third seed ended it was added that the interval of the gain must be above 0.
The gain is also given as a share of the distance to joint training. If the gain is below 0.05 nats on networks that
beat n-grams, models do not read stores while they are trained or scored, and only `trc2 teach` stays.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from studies.counts import visited
from trc2.backbones.shell import Backbone
from trc2.config import RunConfig
from trc2.config.run import apply_overrides
from trc2.errors import UserError
from trc2.recall.counts import ORDER, Counts, Ints
from trc2.recall.gate import Examples, fit_gate
from trc2.recall.store import packed_bytes
from trc2.runs.folder import RunFolder
from trc2.runs.schedule import TaskSchedule
from trc2.runs.target import find_target
from trc2.stats.intervals import mean_interval
from trc2.stream.batches import Batch
from trc2.stream.prepare import prepare_stream
from trc2.system.files import write_atomically
from trc2.system.rng import keyed_generator
from trc2.training.data import StreamData

FRACTIONS = (0.00073, 0.003, 0.012, 0.05, 0.2, 1.0)
CHUNK = 64
WAYS = ("network", "counts", "both", "without match length")
SEEDS, WANTED, USELESS = 3, 0.10, 0.05  # of the rule
SHARES = {"lab_large_share+share11": "11 %", "lab_large_share+share22": "22 %", "lab_large_share": "44 %"}


def stored_chunks(rows: Ints, fraction: float, tokens: int, seed: int) -> Ints:
    """A uniform sample of the chunks of all rows that holds this fraction of the stream's tokens, or all rows."""
    if fraction >= 1:
        return rows
    length = min(CHUNK, rows.shape[1])
    chunks = rows[:, : rows.shape[1] // length * length].reshape(-1, length)
    count = min(len(chunks), max(1, round(fraction * tokens / length)))
    order = torch.randperm(len(chunks), generator=keyed_generator("recall study", seed))
    return np.asarray(chunks[order[:count].numpy()])


@torch.no_grad()
def examples(net: Backbone, batches: Iterable[Batch], counts: Counts) -> tuple[Examples, float, float]:
    """The positions that the gate sees, and the summed losses of all positions by the network and by the counts."""
    parts, of_network, of_counts = [], 0.0, 0.0
    for batch in batches:
        x, y = batch.x.numpy(), batch.y.numpy()
        logits, _ = net(batch.x)
        network = logits.flatten(0, 1).log_softmax(dim=1)
        parts.append(Examples.of(counts, x, y, network))
        of_network -= float(network.gather(1, batch.y.reshape(-1, 1)).double().sum())
        of_counts -= float(np.log(counts.probabilities(counts.follow(x).reshape(y.size, -1), y.reshape(-1))).sum())
    return Examples.join(parts), of_network, of_counts


def without_lengths(found: Examples) -> Examples:
    """The same positions for a gate that only sees that a context was found."""
    features = found.features.clone()
    features[:, : ORDER - 1] = 0.0
    features[:, 0] = 1.0
    return replace(found, features=features)


def score_run(folder: Path, data: Path | None) -> dict[str, Any]:
    """Losses of every task by every way to predict, for every store."""
    target = find_target(str(folder))
    config = target.config
    if data is not None:
        config = RunConfig(**apply_overrides(config.model_dump(mode="json"), [f"stream.data_root={data}"]))
    if config.stream is None:
        raise UserError(f"{folder} has no stream: name the folder of a run.")
    net, _ = target.trained_model(lambda text: print(text, file=sys.stderr))
    net.eval()
    schedule = TaskSchedule.of_run(config)
    stream = StreamData(config, schedule, prepare_stream(config.stream))
    new_tokens = schedule.total_steps * config.train.tokens_per_step
    rows = np.concatenate(
        [visited(stream.tasks[span.task], count) for span, count in zip(schedule.spans, schedule.steps, strict=True)]
    )
    stores = []
    for fraction in FRACTIONS:
        chunks = stored_chunks(rows, fraction, new_tokens, config.train.seed)
        counts = Counts.of(list(chunks), config.model.vocab_size, count_starts=False)
        stores.append({"fraction": fraction, "tokens": int(chunks.size),
                       "bytes": packed_bytes(int(chunks.size), config.model.vocab_size),
                       "losses": score_store(net, stream, config, counts)})  # fmt: skip
    return {"seed": config.train.seed, "new_tokens": new_tokens, "stores": stores}


def score_store(net: Backbone, stream: StreamData, config: RunConfig, counts: Counts) -> dict[str, dict[str, float]]:
    """Mean loss per token of every task's validation windows, by way of predicting."""
    size = config.eval.batch_size
    control = Examples.join([examples(net, task.control_batches(size), counts)[0] for task in stream.tasks.values()])
    nothing = Examples.join([])
    gate, blind = (fit_gate(found, nothing, "control windows") for found in (control, without_lengths(control)))
    losses: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    for name, task in stream.tasks.items():
        batches = task.eval_batches("validation", size, config.eval.max_batches)
        found, network, stored = examples(net, batches, counts)
        alone, of_counts = network / found.num_positions, stored / found.num_positions
        both, blindly = found.rise_with(gate), without_lengths(found).rise_with(blind)
        values = (alone, of_counts, alone + both, alone + blindly)
        for way, value in zip(WAYS, values, strict=True):
            losses[way][name] = value
    return losses


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Mean losses over tasks and perplexities, a row for every run, store and way."""
    tasks = list(next(iter(runs.values()))["stores"][0]["losses"]["network"])
    lines = ["| run | stored | bytes | predicted by | " + " | ".join(tasks) + " | mean loss |",
             "|:---|---:|---:|:---|" + "---:|" * (len(tasks) + 1)]  # fmt: skip
    for name, run in runs.items():
        for store in run["stores"]:
            for way, losses in store["losses"].items():
                perplexities = " | ".join(f"{math.exp(losses[task]):.1f}" for task in tasks)
                stored = f"{100 * store['fraction']:.3g} % | {store['bytes']:,}"
                lines.append(f"| {name} | {stored} | {way} | {perplexities} | {mean(losses.values()):.3f} |")
    return "\n".join(lines) + "\n"


def finished_runs(folder: Path, name: str) -> list[Path]:
    """The runs of every seed of a configuration that have ended. A sweep may be going on."""
    seeds = [path for path in sorted(folder.glob(f"{name}+s*")) if path.name.removeprefix(f"{name}+s").isdecimal()]
    runs = [run for run in map(RunFolder, seeds) if run.has_metrics]
    return [run.path for run in runs if any(record.kind == "end" for record in run.records())]


def end_losses(folder: Path, name: str) -> dict[str, float]:
    """Validation loss of every task at the end of a run: `loss`, or `recall_loss` with its own stores read."""
    last = [record for record in RunFolder(folder).records() if record.kind == "eval"][-1].metrics
    found = {key: key.split("/") for key in last if key.startswith("eval/") and key.endswith(f"/{name}")}
    return {task: last[key] for key, (_, task, _) in found.items()}


def decision(folder: Path) -> str:
    """What the rule above says of the large-share runs in a folder, which were scored with and without their stores."""
    runs = finished_runs(folder, "lab_large_share")
    alone, both = ([end_losses(run, metric) for run in runs] for metric in ("loss", "recall_loss"))
    if len(runs) < 2 or any(first.keys() != second.keys() for first, second in zip(alone, both, strict=True)):
        raise UserError(
            f"{folder} has too few finished runs of lab_large_share that read their stores: at least 2 are needed."
        )
    changes = {task: mean_interval(b[task] - a[task] for a, b in zip(alone, both, strict=True)) for task in alone[0]}
    network = [mean(losses.values()) for losses in alone]
    gains = [net - mean(losses.values()) for net, losses in zip(network, both, strict=True)]
    gain = mean_interval(gains)
    lines = [
        "| | change of loss when the stores are read (nats) |", "|:---|---:|",
        *(f"| {task} | {value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}] |" for task, value in changes.items()),
        f"| mean of the tasks | {-gain.mean:+.3f} [{-gain.high:+.3f}, {-gain.low:+.3f}] |",
    ]  # fmt: skip
    joint = [end_losses(run, "loss") for run in finished_runs(folder, "lab_trc2+joint")]
    if joint:
        distance = mean(network) - mean(mean(losses.values()) for losses in joint)
        lines.append(f"| network alone − joint training ({len(joint)} seeds) | {distance:+.3f} |")
        lines.append(f"| gain ÷ this distance | {gain.mean / distance:.2f} |" if distance > 0 else "")
    harmed = [task for task, value in changes.items() if value.mean > 0]
    if len(runs) < SEEDS:
        said = f"Undecided: {len(runs)} of {SEEDS} seeds."
    elif gain.mean < USELESS:
        said = f"Not worth it: the gain is below {USELESS} nats."
    elif gain.mean < WANTED or gain.low <= 0 or harmed:
        said = (
            f"Missed: at least {WANTED:.2f} nats with an interval above 0 were wanted, and no task worse "
            f"(worse: {', '.join(harmed) or 'none'})."
        )
    else:
        said = f"Reached: at least {WANTED:.2f} nats with an interval above 0, and no task worse."
    said += f" Intervals are 95 % t-intervals over {len(runs)} seeds."
    return "\n".join([said, "", *filter(None, lines), "", *share_table(folder)]) + "\n"


def share_table(folder: Path) -> list[str]:
    """Mean losses at the end without and with the runs' own stores, by the share of replayed tokens."""
    lines = ["| share of replay | seeds | network alone | stores read | change (nats) |", "|---:|---:|---:|---:|---:|"]
    for name, share in SHARES.items():
        if runs := finished_runs(folder, name):
            alone, both = (
                mean(mean(end_losses(run, metric).values()) for run in runs) for metric in ("loss", "recall_loss")
            )
            lines.append(f"| {share} | {len(runs)} | {alone:.3f} | {both:.3f} | {both - alone:+.3f} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.recall", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, help="folders of finished runs with their checkpoints")
    parser.add_argument("--decide", type=Path, help="the folder of the lab's runs: write what the rule says of them")
    parser.add_argument("--data", type=Path, help="the folder of the lab's data")
    parser.add_argument("--out", type=Path, required=True, help="a folder for recall.json and README.md")
    asked = parser.parse_args(arguments)
    if not asked.runs and asked.decide is None:
        parser.error("name runs to score, or --decide and the folder of the lab's runs")
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "recall.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else {}
    try:
        for folder in asked.runs:
            runs[folder.name] = score_run(folder, asked.data)
            content = {"schema": 1, "chunk": CHUNK, "runs": dict(sorted(runs.items()))}
            write_atomically(path, json.dumps(content, indent=1).encode())
        if asked.decide is not None:
            write_atomically(asked.out / "decision.md", decision(asked.decide).encode())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if runs:
        write_atomically(asked.out / "README.md", ("# Stored text that is read\n\n" + table(runs)).encode())
        print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
