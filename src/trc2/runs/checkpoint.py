"""Checkpoints: a folder of safetensors and JSON that appears whole or not at all, with a checksum for every file."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.errors import UserError, brief
from trc2.failpoint import failpoint
from trc2.files import refuse_pipe, replace_folder, write_durably

SCHEMA = 1
PREFIX = "step-"
NAME = re.compile(rf"{PREFIX}\d{{8,18}}")  # other names beside them, a copy called step-00000012.bak say, are not ours


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name (model, optimizer, sources of chance), everything else as plain JSON, and whose it is.

    `run` is `trc2.runs.binding`'s description of the folder it was taken in; empty for a checkpoint of no run.
    """

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    run: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return name_of(self.step)

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of one part, e.g. "model", by their names inside it."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}


class DamagedCheckpoint(UserError):
    """A checkpoint that must not be loaded."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write into a hidden folder, make it durable, and only then give it its name."""
    final = folder / checkpoint.name
    partial = folder / f".{final.name}.partial"
    for leftover in folder.glob(f".{PREFIX}*"):  # of a process that was killed; one run has one writer
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    contents = {
        "tensors.safetensors": safetensors.torch.save(checkpoint.tensors),
        "state.json": json.dumps(checkpoint.state, indent=1).encode(),
    }
    for name, content in contents.items():
        write_durably(partial / name, content)
        failpoint("checkpoint")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = {"schema": SCHEMA, "step": checkpoint.step, "sha256": sums, "run": checkpoint.run}
    write_durably(partial / "manifest.json", json.dumps(manifest).encode())
    failpoint("checkpoint rename")
    replace_folder(partial, final)
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint, refusing anything that is not exactly what was saved."""
    try:
        refuse_pipe(path / "manifest.json")
        manifest = json.loads((path / "manifest.json").read_bytes())
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            found = manifest.get("schema") if isinstance(manifest, dict) else None
            raise DamagedCheckpoint(f"{path.name} has schema {found!r}, this version reads {SCHEMA}.")
        contents = {}
        for name in ("tensors.safetensors", "state.json"):
            refuse_pipe(path / name)
            contents[name] = (path / name).read_bytes()
            if hashlib.sha256(contents[name]).hexdigest() != manifest["sha256"][name]:
                raise DamagedCheckpoint(f"{path.name}/{name} is not what was saved: its checksum differs.")
        tensors = safetensors.torch.load(contents["tensors.safetensors"])
        found = Checkpoint(manifest["step"], tensors, json.loads(contents["state.json"]), manifest.get("run", {}))
        if not isinstance(found.run, dict) or not isinstance(found.run.get("diary", {}), dict):
            raise DamagedCheckpoint(f"{path.name} does not say to which run it belongs: it is not what was saved.")
        if found.step != step_of(path) or found.state.get("progress", {}).get("step", found.step) != found.step:
            raise DamagedCheckpoint(f"{path.name} says that it is of step {found.step!r}: it is not what was saved.")
        return found
    except DamagedCheckpoint:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path.name} cannot be read: {type(error).__name__} {brief(error)}.") from None
    except safetensors.SafetensorError as error:
        raise DamagedCheckpoint(f"{path.name} cannot be read: {brief(error)}.") from None


def list_checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(
        (path for path in folder.glob(f"{PREFIX}*") if NAME.fullmatch(path.name) and path.is_dir()), key=step_of
    )


def name_of(step: int) -> str:
    return f"{PREFIX}{step:08d}"


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(PREFIX))


def prune_checkpoints(folder: Path, keep_last: int, keep_steps: set[int]) -> None:
    """Drop old checkpoints except the last few and those at the given steps."""
    paths = list_checkpoints(folder)
    for path in paths[: max(0, len(paths) - keep_last)]:
        if step_of(path) not in keep_steps:
            shutil.rmtree(path)


def load_state(model: Backbone, checkpoint: Checkpoint, *, without: tuple[str, ...] = ()) -> None:
    """Put a checkpoint's weights, memory and stores into a model; tensors whose names begin so stay out."""
    tensors = checkpoint.part("model")
    try:
        model.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith(without)})
    except RuntimeError as error:
        raise UserError(
            f"{checkpoint.name} does not fit its config.yaml ({brief(error)}): restore the file that was saved with it."
        ) from None


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimizer state as named tensors."""
    packed = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            packed[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    return packed


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put named tensors back; hyper-parameters stay those of the config."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
