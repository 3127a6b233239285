"""The parent of a run that continues another run or a saved model: its parent.json."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trc2.config import RunConfig
from trc2.errors import UserError
from trc2.system.files import reading, to_json, write_atomically

SCHEMA = 4
DREAM = "dream"  # the name of text that the parent generated


@dataclass(frozen=True)
class Prediction:
    """The result of trial runs: with this share of replay, the perplexity of no past task rises by more."""

    share: float
    predicted: float  # a trial run that diverged has "inf"
    __pydantic_config__: ClassVar = ConfigDict(strict=False)


@dataclass(frozen=True)
class Lineage:
    """The parent, the step at which this run takes over, and the tasks that are new in it.

    A parent that is a saved model has no steps and no known tasks, so the child begins at 0. A child that `starts_over`
    follows a run and begins a log of its own at 0, see `trc2.continuing.earlier`. `weights` is the checksum
    of the weights that the child began with. `limit` is how much the perplexity of a past task may rise. It is stored
    with the child, so that every command that finishes the run checks the same limit. `stop_at` is the rise at which
    the training stops. `watched` are the tasks that the parent knew: they are measured at every evaluation. `max_drift`
    is how far the predictions may move, in nats. `generated` is the text in `kept` that the parent generated.
    """

    parent: str
    step: int
    tasks: tuple[str, ...]
    is_run: bool
    weights: str | None = None
    limit: float | None = None
    prediction: Prediction | None = None
    kept: tuple[str, ...] = ()  # texts of --keep: of this run, and of those it goes on from
    relative: str | None = None  # the parent as seen from the child's folder, for commands from elsewhere
    starts_over: bool = False
    stop_at: float | None = None
    watched: tuple[str, ...] = ()
    max_drift: float | None = None
    generated: str | None = None
    interpolate: float | str | None = None  # α, or auto
    __pydantic_config__: ClassVar = ConfigDict(strict=True, allow_inf_nan=False)

    @property
    def has_limit(self) -> bool:
        """Whether the child must be judged before it may replace its parent."""
        return any(limit is not None for limit in (self.limit, self.stop_at, self.max_drift))

    @property
    def first_step(self) -> int:
        """The step of the child's log at which it took over."""
        return 0 if self.starts_over else self.step

    def write(self, path: Path) -> None:
        content = {"schema": SCHEMA, "kind": "run" if self.is_run else "model", **asdict(self)}
        content["trial"] = content.pop("prediction")
        del content["is_run"]
        write_atomically(path, to_json(content, indent=2).encode())

    def find(self, child: Path) -> Path:
        """The parent's folder: at the same path relative to the child, or at the path that was given."""
        described_by = ("config.yaml",) if self.is_run else ("config.json", "adapter_config.json")
        for folder in ([] if self.relative is None else [child / self.relative]) + [Path(self.parent)]:
            if any((folder / name).is_file() for name in described_by):
                return folder
        raise UserError(
            f"{self.parent}, from which {child} goes on, is not there, so {child} cannot be judged: say where it is by "
            f"`trc2 check PARENT {child}`."
        )


READER = TypeAdapter(Lineage)


def generated_text(config: RunConfig, lineage: Lineage) -> Path:
    """The file in the cache that holds the text that the parent generated."""
    assert config.stream is not None
    folders = [task.folder for task in config.stream.tasks if task.name == lineage.generated and task.folder]
    if not folders:
        raise UserError(
            f"parent.json names '{lineage.generated}' as the text that the parent generated, but config.yaml has no "
            "such task with a folder: restore both files from a copy of the run."
        )
    return Path(folders[0]) / "train.jsonl"


def relative_to(child: Path, parent: Path) -> str | None:
    """The parent as seen from the child's folder. None on another drive."""
    try:
        return os.path.relpath(parent.resolve(), child.resolve())
    except ValueError:
        return None


def read_lineage(path: Path) -> Lineage:
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        content |= {"is_run": content["kind"] == "run", "prediction": content.get("trial")}
        try:
            return READER.validate_json(json.dumps(content))
        except ValidationError as error:
            problem = error.errors()[0]
            raise TypeError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
