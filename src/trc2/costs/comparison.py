"""`trc2 bench`: speed, memory and utilisation of a recipe, beside its backbone only, a rival, or other sizes of it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from typing import Any

import torch

from trc2.backbones.registry import step_cost
from trc2.config import BackboneConfig, RunConfig
from trc2.costs.benchmarks import (
    decoding,
    learning_pass,
    prepared_model,
    rival,
    rival_decoding,
    rival_pass,
    scoring_pass,
    training_step,
)
from trc2.costs.breakdown import subsystem_runs
from trc2.costs.timing import Timing, Watch, ratio, take_turns
from trc2.errors import UserError, did_you_mean
from trc2.nn.cost import Cost

SCHEMA = 1
PROMPT, NEW = 16, 32


def pass_flops(config: BackboneConfig, rows: int, length: int) -> float:
    """Training FLOPs of one micro-batch, replay included, with a full memory."""
    return sum(step_cost(config, rows, length, slots=config.read_slots, with_replay=True).values(), Cost()).training


def bench_recipe(
    run: RunConfig, *, repeats: int = 5, against: str | None = None, watch: Watch = lambda _: None
) -> dict[str, Any]:
    """Everything about one recipe, all alternatives taking turns."""
    config, rows, length = run.model, run.train.batch_size, run.train.sequence_length
    net = prepared_model(config)
    square = torch.randn(1024, 1024)
    prompt = min(PROMPT, config.max_positions // 2)
    new = min(NEW, config.max_positions - prompt)
    alternatives = {
        "training step": training_step(net, run),
        "learning pass": learning_pass(net, rows, length),
        "scoring pass": scoring_pass(net, rows, length),
        "decoding, 1 row": decoding(net, 1, prompt, new),
        "decoding, 8 rows": decoding(net, 8, prompt, new),
        "large product": lambda: square @ square,
    }
    if config.switches:
        ablated_net = prepared_model(config.backbone_only())
        alternatives["learning pass, ablated"] = learning_pass(ablated_net, rows, length)
    if against is not None:
        other = rival(against, config)
        alternatives[f"learning pass, {against}"] = rival_pass(other, config, rows, length)
        alternatives[f"decoding, 1 row, {against}"] = rival_decoding(other, config, 1, prompt, new)
        alternatives[f"decoding, 8 rows, {against}"] = rival_decoding(other, config, 8, prompt, new)
    for name, part in subsystem_runs(net, rows, length).items():
        alternatives[f"part: {name}"] = part
    times = take_turns(alternatives, repeats, watch=watch)
    return {
        **header(run, rows, length),
        "seconds": {name: timing.to_json() for name, timing in times.items()},
        "results": _results(run, times, against, new),
        "peak_memory_mb": peak_memory(config, rows, length),
    }


def _results(run: RunConfig, times: dict[str, Timing], against: str | None, new: int) -> dict[str, float]:
    config, rows, length = run.model, run.train.batch_size, run.train.sequence_length
    tokens, learning = rows * length, times["learning pass"]
    flops = pass_flops(config, rows, length)
    peak = 2 * 1024**3 / times["large product"].minimum
    results = {
        "training_tokens_per_second": tokens / times["training step"].minimum,
        "learning_tokens_per_second": tokens / learning.minimum,
        "forward_tokens_per_second": tokens / times["scoring pass"].minimum,
        "decoding_tokens_per_second_1": new / times["decoding, 1 row"].minimum,
        "decoding_tokens_per_second_8": 8 * new / times["decoding, 8 rows"].minimum,
        "large_product_flops": peak,
        "utilisation": flops / learning.minimum / peak,
    }
    ablated = times.get("learning pass, ablated")
    if ablated is not None:
        speed, work = ratio(ablated, learning), pass_flops(config.backbone_only(), rows, length) / flops
        results |= {
            "full_over_ablated": speed,
            "flops_ablated_over_full": work,
            "full_over_ablated_per_flop": speed / work,
        }
    if against is not None:
        theirs = times[f"learning pass, {against}"]
        results[f"full_over_{against}"] = ratio(theirs, learning)
        if ablated is not None:
            results[f"ablated_over_{against}"] = ratio(theirs, ablated)
        for batch in ("1 row", "8 rows"):
            key = f"decoding_{batch.split()[0]}_over_{against}"
            results[key] = ratio(times[f"decoding, {batch}, {against}"], times[f"decoding, {batch}"])
    return results


# ------------------------------------------------------------------------------------------------------------- scaling


SCALING: dict[str, tuple[str, tuple[int, ...]]] = {
    "tokens": ("sequence_length", (64, 128, 256, 512)),
    "batch": ("batch_size", (2, 4, 8, 16)),
    "slots": ("memory_slots", (512, 2048, 8192, 32_768)),
    "experts": ("num_experts", (4, 8, 16, 32)),
    "columns": ("num_columns", (2, 4, 6, 8)),
}


def bench_scaling(run: RunConfig, axis: str, *, repeats: int = 5, watch: Watch = lambda _: None) -> dict[str, Any]:
    """The learning pass at several sizes of one thing, with the FLOPs it should follow."""
    if axis not in SCALING:
        raise UserError(f"There is no scaling '{axis}': {did_you_mean(axis, SCALING)}")
    field, values = SCALING[axis]
    cases = {str(value): _scaled(run, field, value) for value in values}
    runs = {name: learning_pass(prepared_model(config), *shape) for name, (config, *shape) in cases.items()}
    times = take_turns(runs, repeats, watch=watch)
    points = [
        {
            axis: int(name),
            "batch_tokens": rows * length,
            "minimum": times[name].minimum,
            "median": times[name].median,
            "flops": pass_flops(config, rows, length),
        }
        for name, (config, rows, length) in cases.items()
    ]
    return {**header(run, run.train.batch_size, run.train.sequence_length), "scaling": axis, "points": points}


def _scaled(run: RunConfig, field: str, value: int) -> tuple[BackboneConfig, int, int]:
    """The model, rows and length of a pass with another value of one setting."""
    config, rows, length = run.model, run.train.batch_size, run.train.sequence_length
    if field == "batch_size":
        return config, value, length
    if field == "sequence_length":
        return config.replace(max_positions=max(value, config.max_positions)), rows, value
    if field not in type(config).model_fields:
        raise UserError(f"{config.name} has no {field}: choose another --scaling.")
    window = {"memory_read_window": value} if field == "memory_slots" else {}
    return config.replace(**{field: value}, **window), rows, length


# -------------------------------------------------------------------------------------------------------------- shared


def header(run: RunConfig, rows: int, length: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "command": " ".join(["trc2", *sys.argv[1:]]),
        "backbone": run.model.name,
        "rows": rows,
        "length": length,
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


MEMORY_PROGRAM = """
import json, sys
from pathlib import Path
from trc2.costs.benchmarks import learning_pass, prepared_model
from trc2.config import model_config
from trc2.system.machine import peak_memory_bytes
settings = json.load(sys.stdin)
run = learning_pass(prepared_model(model_config(settings["model"])), settings["rows"], settings["length"])

def peak():  # in kilobytes; Linux can forget an earlier peak, elsewhere only what exceeds it is seen
    status = Path("/proc/self/status")
    if not status.exists():
        return peak_memory_bytes() // 1024
    return int(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))

if Path("/proc/self/clear_refs").exists():
    Path("/proc/self/clear_refs").write_text("5")
before = peak()
run()
print(peak() - before, before)
"""


def peak_memory(config: BackboneConfig, rows: int, length: int) -> dict[str, float]:
    """What a learning pass adds to a process of its own, and what the process had before it, in megabytes."""
    job = json.dumps({"model": config.model_dump(), "rows": rows, "length": length})
    done = subprocess.run([sys.executable, "-c", MEMORY_PROGRAM], input=job, capture_output=True, text=True, check=True)
    added, before = (int(number) / 1024 for number in done.stdout.split())
    return {"learning_pass": added, "before": before}
