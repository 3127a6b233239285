"""Proof on the user's own machine that a killed run goes on exactly: SIGKILL at random, then compare byte for byte."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trc2.config import RunConfig
from trc2.train.checkpoint import list_checkpoints, load_checkpoint, step_of
from trc2.train.failpoint import POINTS, VARIABLE
from trc2.train.records import Record, read_records
from trc2.train.resume import resume_run
from trc2.train.start import start_run

# What depends on the clock; everything else must be equal to the bit.
TIMED = ("train/tokens_per_second", "efficiency/")
WORDS = {
    "fruit": ("apple", "pear", "plum", "fig"),
    "tools": ("saw", "axe", "drill", "file"),
    "sky": ("sun", "moon", "star"),
}


@dataclass(frozen=True)
class ResumeReport:
    """How often the run was killed and where, and what differs from the run that never was."""

    kills: int
    seed: int
    killed_at: dict[str, int]
    tensors: int
    records: int
    differences: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, "passed": self.passed, **asdict(self)}


def verify_resume(
    folder: Path, kills: int, seed: int = 0, watch: Callable[[str], None] = lambda _: None
) -> ResumeReport:
    """Run a small stream once undisturbed and once with kills, and compare everything they leave behind."""
    begun = time.monotonic()
    chance = random.Random(seed)
    write_small_data(folder / "data")
    config = small_run(folder)
    whole, parted = folder / "whole", folder / "parted"
    watch("running undisturbed")
    length = _in_child(_start, config, whole, None, None)
    killed: Counter[str] = Counter()
    tries = 0
    while sum(killed.values()) < kills:
        tries += 1
        if tries > 20 * kills + 20:
            raise RuntimeError(f"only {sum(killed.values())} of {kills} kills hit a running process")
        point, delay = _plan_kill(chance, length)
        action = _resume if (parted / "config.yaml").exists() and (parted / "data.json").exists() else _start
        if action is _start:
            shutil.rmtree(parted, ignore_errors=True)
        if _in_child(action, config, parted, point, delay) < 0:
            killed[point or "random moment"] += 1
            watch(f"{sum(killed.values())} of {kills} kills")
        elif _is_finished(parted):
            # Not killed in time: forget the finish and go on from an earlier checkpoint.
            for path in list_checkpoints(parted / "checkpoints")[1:]:
                shutil.rmtree(path)
    watch("finishing")
    if not _is_finished(parted):
        _in_child(_resume if (parted / "data.json").exists() else _start, config, parted, None, None)
    differences, tensors, records = compare_runs(whole, parted)
    seconds = time.monotonic() - begun
    return ResumeReport(kills, seed, dict(sorted(killed.items())), tensors, records, tuple(differences), seconds)


def small_run(folder: Path) -> RunConfig:
    """A stream with everything switched on that trains in about a second."""
    return RunConfig(
        model={
            "vocab_size": 300, "d_model": 16, "num_columns": 3, "num_heads": 4, "num_kv_heads": 2, "max_positions": 16,
            "num_experts": 4, "d_ff": 16, "thalamic_rank": 4, "memory_slots": 32, "memory_key_dim": 8,
            "replay_recent_chunks": 8, "replay_long_chunks": 16, "replay_chunk_length": 8,
        },
        stream={
            "tasks": [{"name": name, "folder": name, "steps": 8} for name in WORDS],
            "data_root": folder / "data", "cache": folder / "cache", "tokenizer": {"vocab_size": 300},
            "control_batches": 1,
        },
        train={"sequence_length": 16, "batch_size": 2, "micro_batches": 2, "warmup_steps": 2},
        control={"every_steps": 5},
        eval={"every_steps": 4, "batch_size": 4, "max_batches": 1, "text_sequences": 1},
        output={"checkpoint_every": 3, "threads": 1},
    )  # fmt: skip


def compare_runs(whole: Path, parted: Path) -> tuple[list[str], int, int]:
    """Names of everything that differs: tensors, state and records; time aside."""
    a, b = (load_checkpoint(list_checkpoints(path / "checkpoints")[-1]) for path in (whole, parted))
    differences = [
        name
        for name in sorted(a.tensors.keys() | b.tensors.keys())
        if name not in a.tensors or name not in b.tensors or not torch.equal(a.tensors[name], b.tensors[name])
    ]
    for state in (a.state, b.state):
        for name in ("train_seconds", "total_seconds"):
            state["progress"].pop(name)
    differences += [f"state.{name}" for name in a.state if a.state[name] != b.state.get(name)]
    first, second = (_timeless(read_records(path / "metrics.jsonl")) for path in (whole, parted))
    differences += [f"record {n}: {x} ≠ {y}" for n, (x, y) in enumerate(zip(first, second, strict=False)) if x != y]
    if len(first) != len(second):
        differences.append(f"{len(first)} records against {len(second)}")
    return differences, len(a.tensors), len(first)


def _timeless(records: list[Record]) -> list[str]:
    """Records as text without what depends on the clock; resume marks are not part of the story."""
    told = []
    for record in records:
        if record.kind != "resume":
            metrics = {name: value for name, value in record.metrics.items() if not name.startswith(TIMED)}
            told.append(json.dumps([record.kind, record.step, record.task, metrics]))
    return told


def _plan_kill(chance: random.Random, length: float) -> tuple[str | None, float | None]:
    """A named point, hit for the n-th time, or a moment of the clock."""
    if chance.random() < 0.7:
        return f"{chance.choice(POINTS)}:{chance.randint(1, 4)}", None
    return None, chance.uniform(0.0, length)


def _in_child(
    action: Callable[[RunConfig, Path], None], config: RunConfig, folder: Path, point: str | None, delay: float | None
) -> float:
    """Run in a process of its own; seconds it took, or −1 if it was killed.

    Forked, so that a hundred kills do not import torch a hundred times.
    """
    begun = time.monotonic()
    process = multiprocessing.get_context("fork").Process(target=_child, args=(action, config, folder, point))
    process.start()
    if delay is not None:
        process.join(delay)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
    process.join()
    if process.exitcode == -signal.SIGKILL:
        return -1.0
    if process.exitcode != 0:
        raise RuntimeError(f"the run ended with exit code {process.exitcode}")
    return time.monotonic() - begun


def _child(action: Callable[[RunConfig, Path], None], config: RunConfig, folder: Path, point: str | None) -> None:
    torch.set_num_threads(1)
    os.environ.pop(VARIABLE, None)
    if point is not None:
        os.environ[VARIABLE] = point
    action(config, folder)


def _start(config: RunConfig, folder: Path) -> None:
    start_run(config.replace(output={**config.output.model_dump(), "folder": folder}), Console(quiet=True))


def _resume(_config: RunConfig, folder: Path) -> None:
    resume_run(folder, [], Console(quiet=True))


def _is_finished(folder: Path) -> bool:
    """Told to the end, and with the checkpoint of its end."""
    diary, paths = folder / "metrics.jsonl", list_checkpoints(folder / "checkpoints")
    ends = [record.step for record in read_records(diary) if record.kind == "end"] if diary.exists() else []
    return bool(ends and paths) and step_of(paths[-1]) == ends[-1]


def write_small_data(root: Path) -> None:
    """Three tasks of made-up sentences, a few kilobytes each."""
    chance = random.Random(0)
    for name, words in WORDS.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for split, count in (("train", 40), ("validation", 4), ("test", 4)):
            texts = [f"{split} {n}: " + " ".join(chance.choice(words) for _ in range(50)) for n in range(count)]
            rows = [json.dumps({"text": text}) for text in texts]
            (root / name / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
