"""`trc2 doctor`: what this machine has, with advice."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from trc2.backbones.compiled import can_compile
from trc2.config import StreamConfig, load_recipe
from trc2.runs.environment import PACKAGES
from trc2.runs.schedule import TaskSchedule
from trc2.setup.speed_probe import measure_speed
from trc2.stream.cache import expanded
from trc2.system.machine import available_cores, busy_cores, crowding
from trc2.system.precision import choose_device, choose_dtype, peak_matmul_flops

GB = 1e9
SCHEMA = 1
# What an extra of the package brings, and what that is for.
EXTRAS = {
    "hf": ("transformers", "Hugging Face models and export"),
    "data": ("datasets", "Hugging Face datasets"),
    "data, files": ("pyarrow", ".parquet and .zst files"),
    "lm-eval": ("lm_eval", "trc2 lm-eval and eval.lm_tasks"),
    "serve": ("starlette", "trc2 serve"),
    "tensorboard": ("tensorboard", "output.report_to=tensorboard"),
    "wandb": ("wandb", "output.report_to=wandb"),
    "trackio": ("trackio", "output.report_to=trackio"),
    "ray": ("ray", "trc2 sweep --launcher ray"),
}


@dataclass(frozen=True)
class Finding:
    """One check: its result and a line of advice. `fine` is False if the user should act."""

    name: str
    value: str
    advice: str
    fine: bool = True


def check_up(*, quick: bool = False) -> Iterator[Finding]:
    """Everything, one after the other. `quick` leaves out what takes seconds."""
    yield _versions()
    yield _device()
    yield _number_format()
    yield _compiler()
    yield _threads()
    yield _load()
    yield _memory()
    yield from _disk()
    yield from _extras()
    if not quick:
        yield from _speed()


def as_json(findings: list[Finding]) -> dict[str, Any]:
    return {"schema": SCHEMA, "findings": [asdict(finding) for finding in findings]}


def _versions() -> Finding:
    versions = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        if importlib.util.find_spec(name.replace("-", "_")) is not None:
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return Finding(
        "versions", ", ".join(versions), f"{platform.system()} {platform.machine()}. Name these in a report."
    )


def _device() -> Finding:
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if names:
        return Finding("device", ", ".join(names), "The first one is used. output.device=cuda:1 chooses another.")
    advice = "No GPU that torch can use: demo and lab_* are sized for this, paper_* are not."
    if torch.version.cuda is None and shutil.which("nvidia-smi"):
        advice = "There is an NVIDIA driver, but this torch is built without CUDA: install one that has it."
        return Finding("device", "cpu", advice, fine=False)
    return Finding("device", "cpu", advice)


def _number_format() -> Finding:
    device = choose_device("auto")
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    why = {
        "float32": "Most CPUs emulate bfloat16, which is far slower.",
        "bfloat16": "This GPU has it natively, and it needs no loss scaling.",
        "float16": "This GPU is older than bfloat16, so gradients are scaled.",
    }
    return Finding("number format", dtype, f"{why[dtype]} train.precision names another.")


def _compiler() -> Finding:
    if can_compile():
        return Finding("compiler", "g++", "`trc2 generate --compile now` and long decoding use it.")
    return Finding("compiler", "missing", "Decoding cannot be compiled on this CPU: install g++ on Linux for that.")


def _threads() -> Finding:
    threads, cores = torch.get_num_threads(), available_cores()
    value = f"{threads} of {cores} cores"
    if "OMP_NUM_THREADS" in os.environ:
        value += f" (OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']})"
    if threads > cores:
        return Finding("threads", value, f"More threads than cores wait for each other: output.threads={cores}.", False)
    if threads < cores:
        return Finding("threads", value, f"Right beside other work. Alone, output.threads={cores} is faster.")
    return Finding("threads", value, "Right for one run at a time. `trc2 sweep --jobs N` divides them.")


def _load() -> Finding:
    busy, cores = busy_cores(), available_cores()
    advice = crowding(torch.get_num_threads(), busy, cores)
    if advice is None and busy > cores - 0.5:
        advice = "No core is idle: times measured now are too long."
    return Finding("load", f"{busy:.1f} of {cores} cores busy", advice or "There is room for a run.", advice is None)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    value = f"{memory.available / GB:.1f} of {memory.total / GB:.1f} GB free"
    if memory.available < 2 * GB:
        return Finding("memory", value, "Little: close programs, or train with a smaller train.batch_size.", False)
    return Finding("memory", value, "`trc2 budget RECIPE` says what a model takes.")


def _disk() -> Iterator[Finding]:
    cache = expanded(StreamConfig.model_fields["cache"].default)
    for name, folder, setting in (("disk, here", Path.cwd(), "output.folder"), ("disk, cache", cache, "stream.cache")):
        place = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(place).free
        value = f"{free / GB:.1f} GB free at {folder}"
        if not os.access(place, os.W_OK):
            yield Finding(name, f"{folder} cannot be written", f"Name another place by {setting}.", False)
        elif free < 2 * GB:
            yield Finding(name, value, f"Little: make room, or name another place by {setting}.", False)
        else:
            yield Finding(name, value, f"{setting} names another place.")


def _extras() -> Iterator[Finding]:
    for extra, (module, purpose) in EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            yield Finding(
                f"extra {extra}", "missing", f"For {purpose}: pip install '.[{extra.split(',')[0]}]' in the checkout."
            )
        else:
            version = importlib.metadata.version(module.replace("_", "-"))
            yield Finding(f"extra {extra}", f"{module} {version}", f"For {purpose}.")


def _speed() -> Iterator[Finding]:
    flops = peak_matmul_flops(choose_device("auto"))
    yield Finding("speed, products", f"{flops / 1e9:,.0f} GFLOP/s in float32", "What all other speeds are limited by.")
    run = load_recipe("demo")
    speed = measure_speed(run, 8.0)
    minutes = TaskSchedule.of_run(run).total_steps * speed.step / 60
    remark = speed.remark()
    takes = f"`trc2 train demo` takes about {minutes:.1f} minutes and its evaluations; `trc2 init` sizes one of yours."
    yield Finding(
        "speed, training",
        f"{speed.tokens_per_second(run):,.0f} tokens/s with the recipe demo",
        " ".join(filter(None, (remark, takes))),
    )
