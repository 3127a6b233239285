"""From where a run goes on: what its parent.json says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trc2.files import reading, write_atomically

SCHEMA = 2


@dataclass(frozen=True)
class Ancestry:
    """The parent, the step at which this run takes over, and the tasks that are new in it.

    A parent that is no run but a saved model has no steps and no known tasks: the child begins at 0.
    """

    parent: str
    step: int
    tasks: tuple[str, ...]
    is_run: bool

    def write(self, path: Path) -> None:
        kind = "run" if self.is_run else "model"
        content = {"schema": SCHEMA, "parent": self.parent, "kind": kind, "step": self.step, "tasks": list(self.tasks)}
        write_atomically(path, json.dumps(content, indent=2).encode())


def read_ancestry(path: Path) -> Ancestry:
    """Schema 1 knew one task and no models."""
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        tasks = content["tasks"] if content["schema"] >= SCHEMA else [content["task"]]
        step, parent = content["step"], content["parent"]
        if type(step) is not int or not isinstance(parent, str) or not all(isinstance(task, str) for task in tasks):
            raise TypeError("it does not say from where the run goes on")
        return Ancestry(parent, step, tuple(tasks), content.get("kind", "run") == "run")
