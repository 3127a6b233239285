"""What ties a checkpoint to the run folder it lies in, so that no other run's state is ever taken for this one's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trc2.config import read_settings
from trc2.errors import UserError
from trc2.files import reading
from trc2.train.checkpoint import Checkpoint
from trc2.train.diary import Diary

# Free to change on resume: where the data lies is not what it says, the fingerprint guards that.
EXECUTION = ("output", "stream.cache", "stream.data_root")


class Binding:
    """Learning settings, data and diary of one run folder, as its checkpoints remember them."""

    def __init__(self, folder: Path, diary: Diary) -> None:
        self.diary = diary
        self.fixed = {"learning": learning_hash(folder), "data": data_fingerprint(folder)}

    def describe(self) -> dict[str, Any]:
        return {**self.fixed, "diary": self.diary.mark()}


def learning_hash(folder: Path) -> str:
    """A hash of what config.yaml says about learning.

    Of the file's own words, not of today's settings: a later version that knows more of them still agrees.
    """
    settings = read_settings(folder / "config.yaml")
    for path in EXECUTION:
        *sections, name = path.split(".")
        inner: Any = settings
        for section in sections:
            inner = inner.get(section) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(name, None)
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def data_fingerprint(folder: Path) -> str:
    return str(read_data_description(folder)["fingerprint"])


def read_data_description(folder: Path) -> dict[str, Any]:
    """data.json: what the run learns from."""
    path = folder / "data.json"
    with reading(path):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content["fingerprint"], str) or not isinstance(content["tasks"], dict):
            raise TypeError("it does not describe data")
    return content


def check_binding(folder: Path, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose settings, data or diary are not those of its folder; name the file that differs.

    Checkpoints written before there were bindings have none.
    """
    bound = checkpoint.run
    if not bound:
        return
    name = f"checkpoints/{checkpoint.name}"
    if bound.get("learning") != learning_hash(folder):
        raise UserError(
            f"{folder / 'config.yaml'} has other learning settings than the run that saved {name}: restore the file, "
            "or remove the checkpoint if it belongs to another run."
        )
    if bound.get("data") != data_fingerprint(folder):
        raise UserError(
            f"{folder / 'data.json'} describes other data than the run that saved {name}: restore the file, or remove "
            "the checkpoint if it belongs to another run."
        )
    mark, path = bound.get("diary", {}), folder / "metrics.jsonl"
    if not path.is_file():
        raise UserError(f"There is no {path}, on which {name} builds: restore it from a copy.")
    with reading(path), path.open("rb") as file:
        content = file.read(int(mark["bytes"]))
    if hashlib.sha256(content).hexdigest() != mark["sha256"]:
        raise UserError(f"{path} is not the one on which {name} builds: restore it from a copy.")
