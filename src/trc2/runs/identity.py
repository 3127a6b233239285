"""Whether two runs are the same, and whether a checkpoint belongs to the folder that it is in."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trc2.config import RunConfig, read_settings
from trc2.config.section import flat, is_within
from trc2.errors import UserError
from trc2.runs.checkpoint import Checkpoint
from trc2.runs.records import MetricsLog
from trc2.system.files import reading

# These may change on resume. The fingerprint checks the data, wherever they are stored.
EXECUTION = ("output", "stream.cache", "stream.data_root")
# Repetitions of one variant differ in these.
REPETITION = ("train.seed", "stream.order")


def learning_settings(config: RunConfig) -> dict[str, Any]:
    """Every setting that changes what is learned, by its path."""
    values = flat(config.model_dump(mode="json"))
    return {path: value for path, value in values.items() if not is_within(path, EXECUTION)}


def variant_settings(config: RunConfig) -> dict[str, Any]:
    """The same without seed and order: equal for all repetitions of a variant.

    A replay seed counts as its distance from the run's seed.
    """
    values = {path: value for path, value in learning_settings(config).items() if not is_within(path, REPETITION)}
    if values.get("model.replay_seed") is not None:
        values["model.replay_seed"] -= config.train.seed
    return values


def differences(a: RunConfig, b: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The learning settings in which two runs differ: both values by path. None where a run lacks the setting."""
    old, new = learning_settings(a), learning_settings(b)
    return {
        path: (old.get(path), new.get(path))
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    }  # fmt: skip


def is_same_run(a: RunConfig, b: RunConfig) -> bool:
    """Whether both have the same learning settings."""
    return not differences(a, b)


@dataclass(frozen=True)
class Binding:
    """Learning settings, data and metrics log of one run, as recorded in its checkpoints."""

    learning: str
    data: str
    metrics_log: MetricsLog

    def describe(self) -> dict[str, Any]:
        return {"learning": self.learning, "data": self.data, "metrics_log": self.metrics_log.mark()}


def learning_hash(config_file: Path) -> str:
    """A hash of the learning settings in config.yaml.

    It is computed from the file's own text, so a later version with more settings computes the same hash.
    """
    settings = read_settings(config_file)
    for path in EXECUTION:
        *sections, name = path.split(".")
        inner: Any = settings
        for section in sections:
            inner = inner.get(section) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(name, None)
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def check_binding(
    checkpoint: Checkpoint, config_file: Path, data_file: Path, fingerprint: str, metrics_file: Path
) -> None:
    """Refuse a checkpoint whose settings, data or metrics log differ from those of its folder. Name the file."""
    bound, name = checkpoint.run, f"checkpoints/{checkpoint.name}"
    if bound.get("learning") != learning_hash(config_file):
        raise UserError(
            f"{config_file} has other learning settings than the run that saved {name}: restore the file, or remove "
            "the checkpoint if it belongs to another run."
        )
    if bound.get("data") != fingerprint:
        raise UserError(
            f"{data_file} describes other data than the run that saved {name}: restore the file, or remove the "
            "checkpoint if it belongs to another run."
        )
    if not metrics_file.is_file():
        raise UserError(f"There is no {metrics_file}, on which {name} builds: restore it from a copy.")
    mark = bound.get("metrics_log", {})
    with reading(metrics_file), metrics_file.open("rb") as file:
        content = file.read(int(mark["bytes"]))
    if hashlib.sha256(content).hexdigest() != mark["sha256"]:
        raise UserError(f"{metrics_file} is not the one on which {name} builds: restore it from a copy.")
