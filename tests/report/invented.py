"""Run folders with invented numbers: real settings, a metrics log like that of a run, no training.

invent_matrix(root)                      # a small lab: parts, baselines, bounds, orders, seeds
invent_run(root / "mine", "lab_trc2", ["train.seed=1"], forgets=0.3)
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from trc2.config import load_recipe, settings_text
from trc2.report.variants import missing_parts, replays
from trc2.runs.records import Record, score_tables
from trc2.runs.schedule import TaskSchedule

TASKS = ("c4", "wikitext", "gsm8k")
LEARNT = {"c4": 5.7, "wikitext": 5.2, "gsm8k": 3.9}  # log-perplexity right after a task's training
UNTRAINED = 8.3


def invent_run(
    folder: Path, recipe: str, overrides: Iterable[str] = (), *, forgets: float | None = None, noise: float = 0.02,
    ends: bool = True,
) -> Path:  # fmt: skip
    """A run folder as `trc2 train` leaves it, without checkpoints.

    A past task rises by `forgets` nats and stays there. By default 0.6, and 0.2 with replay. `noise` is the standard
    deviation over seeds. `ends=False` leaves it half way.
    """
    config = load_recipe(recipe, [*overrides, f"output.folder={folder}"])
    assert config.stream is not None
    plan = TaskSchedule.of_run(config)
    rng = np.random.default_rng([config.train.seed, len(missing_parts(config))])
    rise = (0.2 if replays(config) else 0.6) if forgets is None else forgets
    rise, luck = rise + noise * rng.normal(), noise * rng.normal()
    memory = config.model.name == "trc2" and "memory" not in missing_parts(config)
    end = plan.total_steps
    records: list[Record] = []
    steps = range(0, end + 1, 10)
    for step in steps:
        span = plan.at(min(step, end - 1))
        if step % 20 == 0 and step > 0:
            trained = plan.at(step - 1)  # the step that ends here
            records.append(_train(step, trained.task, trained.start, replays(config), memory, rng))
        if step % 50 == 0 or plan.is_boundary(step):
            records.append(_evaluation(step, plan, rise, luck, config.stream.mode == "joint"))
        if step % 25 == 0 and replays(config) and step > 0:
            steered = {"coefficient": 0.05 + 0.0001 * step, "batch_size": 4.0, "long_fraction": 0.5}
            steered |= {"gap": rise, "gap_average": rise, "forgetting": rise * step / end}
            records.append(Record("control", step, span.task, {f"replay/{k}": v for k, v in steered.items()}, step))
        if not ends and step >= end // 2:
            break
    if ends:
        last = next(record.metrics for record in records[::-1] if record.kind == "eval")
        tested = {name.replace("eval/", "test/"): value for name, value in last.items()}
        records.append(Record("test", end, TASKS[-1], tested, end))
        speed = 4000 * (0.8 if memory else 1.0) * (1 + 0.02 * rng.normal())
        cost = {"tokens_per_second": speed, "tokens_per_second_last": speed, "peak_memory_gb": 1.1, "gb_hours": 0.25}
        cost |= {
            "training_flops_per_token": 2.3e7 * (1.1 if replays(config) else 1.0),
            "matmul_flops": 1.6e11,
            "utilisation": 0.25,
            "evaluation_share": 0.2,
        }
        records.append(
            Record("end", end, TASKS[-1], {f"efficiency/{name}": value for name, value in cost.items()}, end)
        )
    folder.mkdir(parents=True)
    tasks = [task.name for task in config.stream.tasks]
    split = {"documents": 100, "tokens": 10_000, "bytes": 40_000, "sha256": "0" * 64, "bad_rows": {}}
    data = {name: {"splits": dict.fromkeys(("train", "validation", "test"), split), "source": {}} for name in tasks}
    described = {"schema": 1, "fingerprint": "invented", "vocab_size": 4096, "tasks": data}
    (folder / "data.json").write_text(json.dumps(described))
    (folder / "metrics.jsonl").write_text("".join(record.to_json() + "\n" for record in records))
    (folder / "config.yaml").write_text(settings_text(config.model_dump(mode="json")))
    assert score_tables(records, plan.spans)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, float], int], None], kind: str = "eval") -> None:
    """Change the metrics of all records of a kind."""
    metrics_log = folder / "metrics.jsonl"
    records = [json.loads(line) for line in metrics_log.read_text().splitlines()]
    for record in records:
        if record["kind"] == kind:
            change(record["metrics"], record["step"])
    metrics_log.write_text("".join(json.dumps(record) + "\n" for record in records))


def _train(step: int, task: str, start: int, replay: bool, memory: bool, rng: np.random.Generator) -> Record:
    into = math.exp(-(step - start) / 60)
    loss = LEARNT[task] + (UNTRAINED - LEARNT[task]) * into + 0.05 * rng.normal()
    metrics = {"loss_lm": loss, "loss": loss + 0.04, "loss_load_balance": 0.04, "learning_rate": 0.002}
    metrics |= {
        "loss_router": 0.01,
        "gradient_norm": 0.5,
        "tokens_per_second": 4000.0,
        "loss_replay": loss if replay else 0.0,
    }
    metrics |= {"loss_td": 0.2 * into + 0.05, "loss_predictor": 0.5 * into + 0.1} if memory else {}
    found = {f"train/{name}": value for name, value in metrics.items()}
    if replay:
        found["replay/coefficient"] = 0.05 + 0.0001 * step
    if memory:
        keep = 0.3 + 0.7 * into
        organ = {"candidates": 128.0, "writes": 128 * keep, "raw_writes": 128 * keep, "threshold": 0.3 + 0.1 * into}
        organ |= {"surprise_mean": 0.4 + 0.2 * into, "surprise_max": 1.0, "fill": min(1.0, step / 40)}
        organ |= {"keep_fraction": keep, "raw_fraction": keep}
        found |= {f"hippocampus/{name}": value for name, value in organ.items()}
    return Record("train", step, task, found, float(step))


def _evaluation(step: int, plan: TaskSchedule, rise: float, luck: float, joint: bool) -> Record:
    metrics: dict[str, float] = {}
    for task in TASKS:
        span = next((s for s in plan.spans if s.task == task), None)
        if span is None or step <= span.start:
            nats = UNTRAINED - 0.001 * step
        else:
            into = min(1.0, (step - span.start) / (span.end - span.start))
            nats = UNTRAINED + (LEARNT[task] - UNTRAINED) * into**0.5 + luck
            past = 0.0 if joint else (step - span.end) / 100
            nats += rise * (1 - math.exp(-max(0.0, past)))
        metrics |= {f"eval/{task}/loss": nats, f"eval/{task}/perplexity": math.exp(nats)}
        metrics |= {f"eval/{task}/bleu": 20 * math.exp(-nats / 4), f"eval/{task}/token_accuracy": math.exp(-nats / 3)}
        metrics |= {f"eval/{task}/chrf": 20.0, f"eval/{task}/rouge_l": 0.2, f"eval/{task}/bits_per_byte": nats / 2.4}
    return Record("eval", step, plan.at(min(step, plan.total_steps - 1)).task, metrics, float(step))


def invent_matrix(root: Path, seeds: Iterable[int] = (0, 1, 2)) -> Path:
    """A small version of the lab's sweep: the eight ablations, two baselines, references, orders, an A/A repeat."""
    seeds = list(seeds)
    for thalamus, memory, replay in itertools.product(("true", "false"), repeat=3):
        parts = [f"model.thalamus={thalamus}", f"model.memory={memory}", f"model.replay={replay}"]
        for seed in seeds:
            invent_run(root / f"trc2_{thalamus}_{memory}_{replay}_s{seed}", "lab_trc2", [*parts, f"train.seed={seed}"])
    for recipe, strategy, seed in itertools.product(("transformer", "mamba"), ("none", "replay_controlled"), seeds):
        invent_run(
            root / f"{recipe}_{strategy}_s{seed}", f"lab_{recipe}", [f"strategy={strategy}", f"train.seed={seed}"]
        )
    invent_run(root / "lora_drs", "lab_lora_drs", forgets=0.01)
    invent_run(root / "joint", "lab_joint", forgets=0.0)
    invent_run(root / "single_c4", "lab_single_c4")
    for strategy in ("ewc", "agem", "l2"):
        invent_run(root / f"transformer_{strategy}", "lab_transformer", [f"strategy={strategy}"], forgets=0.5)
    for order in list(itertools.permutations(TASKS))[1:]:
        name, setting = "-".join(order), f"stream.order=[{','.join(order)}]"
        invent_run(root / f"trc2_{name}", "lab_trc2", [setting])
        invent_run(root / f"trc2_no_replay_{name}", "lab_trc2", [setting, "model.replay=false"])
        invent_run(root / f"transformer_{name}", "lab_transformer", [setting])
        invent_run(root / f"transformer_replay_{name}", "lab_transformer", [setting, "strategy=replay_controlled"])
    for seed in seeds:
        twin = [f"train.seed={seed}", f"model.replay_seed={1000 + seed}"]
        invent_run(root / f"trc2_twin_s{seed}", "lab_trc2", twin)
    return root
