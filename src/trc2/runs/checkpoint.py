"""Checkpoints: a folder of safetensors and JSON that appears whole or not at all, with a checksum for every file."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.errors import UserError, brief
from trc2.system.failpoints import failpoint
from trc2.system.files import reading, refuse_special, replace_folder, write_atomically, write_durably

SCHEMA = 1
DIVIDED_SCHEMA = 2  # with the rows of divided tensors in files of their own
PREFIX = "step-"
ROWS_NAME = re.compile(r"rows-\d{5}-of-\d{5}\.safetensors")
ROWS_PATIENCE = 600.0  # seconds
SUM_SUFFIX = ".sha256"
NAME = re.compile(rf"{PREFIX}\d{{8,18}}")  # other names beside them, a copy called step-00000012.bak say, are not ours


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name (model, optimizer, RNG), everything else as plain JSON, and the run it belongs to.

    `run` is the description of a `Binding`. It is empty outside of a run. `rows` are this rank's rows of the tensors
    that are divided over ranks. When a checkpoint is read, every tensor is whole.
    """

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    run: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return name_of(self.step)

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of one part, e.g. "model", by their names inside it."""
        prefix = f"{name}."
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}


class DamagedCheckpoint(UserError):
    """A checkpoint that must not be loaded."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint, world: int = 1) -> Path:
    """Write into a hidden folder, make it durable, and only then give it its name.

    If tensors are divided, the hidden folder exists already and `save_rows` of every rank writes into it.
    """
    final = folder / checkpoint.name
    partial = _partial(folder, checkpoint.step) if checkpoint.rows else begin_checkpoint(folder, checkpoint.step)
    contents = {
        "tensors.safetensors": safetensors.torch.save(checkpoint.tensors),
        "state.json": json.dumps(checkpoint.state, indent=1).encode(),
    }
    for name, content in contents.items():
        write_durably(partial / name, content)
        failpoint("checkpoint")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest: dict[str, Any] = {"schema": SCHEMA, "step": checkpoint.step, "sha256": sums, "run": checkpoint.run}
    if checkpoint.rows:
        of_rows = _await_rows(partial, world)
        manifest |= {"schema": DIVIDED_SCHEMA, "sha256": sums | of_rows, "rows": list(of_rows)}
    write_durably(partial / "manifest.json", json.dumps(manifest).encode())
    failpoint("checkpoint rename")
    replace_folder(partial, final)
    return final


def begin_checkpoint(folder: Path, step: int) -> Path:
    """An empty hidden folder for the checkpoint of a step."""
    for leftover in folder.glob(f".{PREFIX}*"):  # of a process that was killed. One run has one writer
        shutil.rmtree(leftover, ignore_errors=True)
    partial = _partial(folder, step)
    partial.mkdir(parents=True)
    return partial


def save_rows(folder: Path, checkpoint: Checkpoint, rank: int, world: int) -> None:
    """Write this rank's rows of the divided tensors, and last their checksum, for which the first rank waits."""
    file = _partial(folder, checkpoint.step) / _rows_file(rank, world)
    content = safetensors.torch.save(checkpoint.rows)
    write_durably(file, content)
    failpoint("checkpoint rows")
    write_atomically(file.with_suffix(SUM_SUFFIX), hashlib.sha256(content).hexdigest().encode())


def _await_rows(partial: Path, world: int) -> dict[str, str]:
    """Wait until the rows of all ranks are on disk. Returns their checksums in the order of ranks.

    The ranks communicate by files: this runs in a thread beside training, which uses the process group.
    """
    sums: dict[str, str] = {}
    until = time.monotonic() + ROWS_PATIENCE
    for rank in range(world):
        name = _rows_file(rank, world)
        checksum = (partial / name).with_suffix(SUM_SUFFIX)
        while not checksum.exists():
            if time.monotonic() > until:
                raise TimeoutError(f"rank {rank} wrote no {name} within {ROWS_PATIENCE:.0f} s")
            time.sleep(0.02)
        sums[name] = checksum.read_text()
        checksum.unlink()
    return sums


def _partial(folder: Path, step: int) -> Path:
    return folder / f".{name_of(step)}.partial"


def _rows_file(rank: int, world: int) -> str:
    return f"rows-{rank + 1:05d}-of-{world:05d}.safetensors"


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint, refusing anything that is not exactly what was saved."""
    try:
        refuse_special(path / "manifest.json")
        manifest = json.loads((path / "manifest.json").read_bytes())
        if not isinstance(manifest, dict) or manifest.get("schema") not in (SCHEMA, DIVIDED_SCHEMA):
            schema = manifest.get("schema") if isinstance(manifest, dict) else None
            raise DamagedCheckpoint(f"{path.name} has schema {schema!r}, this version reads {DIVIDED_SCHEMA}.")
        contents = {}
        of_rows = manifest.get("rows", [])
        if not all(ROWS_NAME.fullmatch(name) for name in of_rows):
            raise DamagedCheckpoint(f"{path.name} names files that are none of its own: it is not what was saved.")
        for name in ("tensors.safetensors", "state.json", *of_rows):
            refuse_special(path / name)
            contents[name] = (path / name).read_bytes()
            if hashlib.sha256(contents[name]).hexdigest() != manifest["sha256"][name]:
                raise DamagedCheckpoint(f"{path.name}/{name} is not what was saved: its checksum differs.")
        tensors = safetensors.torch.load(contents["tensors.safetensors"])
        tensors |= _joined([safetensors.torch.load(contents[name]) for name in of_rows])
        state, step, run = json.loads(contents["state.json"]), manifest["step"], manifest.get("run", {})
        if not isinstance(run, dict) or not isinstance(run.get("metrics_log", {}), dict):
            raise DamagedCheckpoint(f"{path.name} does not say to which run it belongs: it is not what was saved.")
        if step != step_of(path) or state.get("progress", {}).get("step", step) != step:
            raise DamagedCheckpoint(f"{path.name} says that it is of step {step!r}: it is not what was saved.")
        return Checkpoint(step, tensors, state, run)
    except DamagedCheckpoint:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{path.name} cannot be read: {type(error).__name__} {brief(error)}.") from None


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Whole tensors, from the rows of all ranks in their order."""
    return {name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else {})}


def weights_of(path: Path) -> str:
    """One checksum of all tensors of a checkpoint, from its manifest. state.json contains times and is left out."""
    with reading(path / "manifest.json"):
        sums = json.loads((path / "manifest.json").read_bytes())["sha256"]
        tensors = sorted((name, checksum) for name, checksum in sums.items() if name != "state.json")
    return hashlib.sha256(json.dumps(tensors).encode()).hexdigest()


def list_checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(
        (path for path in folder.glob(f"{PREFIX}*") if NAME.fullmatch(path.name) and path.is_dir()), key=step_of
    )


def name_of(step: int) -> str:
    return f"{PREFIX}{step:08d}"


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(PREFIX))


def prune_checkpoints(folder: Path, keep_last: int, keep_steps: Set[int]) -> None:
    """Drop old checkpoints except the last few and those at the given steps."""
    paths = list_checkpoints(folder)
    for path in paths[: max(0, len(paths) - keep_last)]:
        if step_of(path) not in keep_steps:
            shutil.rmtree(path)


def drop_checkpoints_after(folder: Path, step: int) -> None:
    """Drop the checkpoints of later steps."""
    for path in list_checkpoints(folder):
        if step_of(path) > step:
            shutil.rmtree(path)


def put_back_replaced(folder: Path) -> None:
    """Give a checkpoint its name again if a kill came while a new one was about to take its place."""
    for path in folder.glob(f".{PREFIX}*.old"):
        final = folder / path.name.removeprefix(".").split(".")[0]
        if not final.exists():
            path.rename(final)


def load_state(model: Backbone, checkpoint: Checkpoint, *, without: tuple[str, ...] = ()) -> None:
    """Put a checkpoint's weights, memory and stores into a model, except tensors with a prefix in `without`."""
    tensors = checkpoint.part("model")
    try:
        model.load_state_dict({name: tensor for name, tensor in tensors.items() if not name.startswith(without)})
    except RuntimeError as error:
        raise UserError(
            f"{checkpoint.name} does not fit its config.yaml ({brief(error)}): restore the file that was saved with it."
        ) from None


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimizer state as named tensors."""
    numbers = _numbers(optimizer)
    packed: dict[str, Tensor] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            # bitsandbytes puts the tensors that are not like a weight into a dictionary of their own.
            inner = value if isinstance(value, dict) else {name: value}
            packed |= {f"optimizer.{numbers[index]}.{key}": torch.as_tensor(part) for key, part in inner.items()}
    return packed


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put named tensors back. Hyper-parameters stay those of the config."""
    indices = {number: index for index, number in enumerate(_numbers(optimizer))}
    state: dict[int, dict[str, Tensor | int]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            is_count = tensor.ndim == 0 and tensor.dtype == torch.int64  # bitsandbytes counts steps by a plain number
            state.setdefault(indices[int(number)], {})[key] = int(tensor) if is_count else tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _numbers(optimizer: torch.optim.Optimizer) -> list[int]:
    """The number of each of the optimizer's tensors in a checkpoint. It does not depend on the groups."""
    numbers = [number for group in optimizer.param_groups for number in group.get("numbers", [])]
    return numbers or list(range(sum(len(group["params"]) for group in optimizer.param_groups)))
