"""One version: its folder, its description, and the check that its files are what was written."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from trc2.errors import UserError
from trc2.runs.folder import SUMMARY_FILES, VERSION_FILE
from trc2.stream.cache import digest, file_checksum
from trc2.system.files import reading, sync_folder, write_durably

SCHEMA = 1
DESCRIPTION, MODEL, RUN = VERSION_FILE, "model", "run"
CHECKPOINTS = f"{RUN}/checkpoints/"
CARD = "README.md"  # it names a folder and a date, so it is not part of a version's name
NAME_DIGITS = 12
# Beside a run's own files. They are not copied into a version, and nothing is read from them.
NOT_KEPT = {"lock", "lock.owner", *SUMMARY_FILES, "tensorboard", "wandb"}


@dataclass(frozen=True)
class Version:
    """A model that was accepted once, as its version.json describes it.

    `parent` is the version from which it was taught, `replaced` the one that was accepted before it. `removed` says
    what pruning took away: nothing (""), the "checkpoint", or "all" but the description. `is_held` says that it was
    never the accepted one: a person has to make it so. `problem` says why its description could not be read: then only
    what the table has is known.
    """

    folder: Path
    number: int
    content: str
    time: str
    parent: str | None
    replaced: str | None
    source: str
    tasks: tuple[str, ...]
    verdict: dict[str, Any] | None
    scores: dict[str, dict[str, float | None]]
    files: dict[str, dict[str, Any]] = field(repr=False)
    reason: str = ""
    removed: str = ""
    is_held: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def model(self) -> Path:
        """The model as a Hugging Face folder."""
        return self.folder / MODEL

    @property
    def run(self) -> Path | None:
        """The finished run with its last checkpoint. None for a saved model, and where pruning removed it."""
        return self.folder / RUN if any(name.startswith(CHECKPOINTS) for name in self.present) else None

    @property
    def held_out(self) -> dict[str, Path]:
        """The documents on which later weeks are judged, one file for each task name."""
        prefix = f"{RUN}/held_out/"
        names = [name for name in self.present if name.startswith(prefix)]
        return {Path(name).stem: self.folder / name for name in names}

    @property
    def present(self) -> list[str]:
        """The files that are there after pruning."""
        if self.removed == "all":
            return []
        return [name for name in self.files if not (self.removed and name.startswith(CHECKPOINTS))]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(self.files[name]["bytes"] for name in self.present)

    @property
    def has_model(self) -> bool:
        return self.removed != "all"

    def check(self, parts: Iterable[str] = (MODEL, RUN)) -> Version:
        """Compare the files with their hashes. A file that was added is an error, too. Returns this version."""
        if self.problem:
            raise UserError(self.problem)
        if not self.has_model:
            raise UserError(f"The files of {self.name} were pruned, only its description is left: name a later one.")
        parts = tuple(parts)
        prefixes = tuple(f"{part}/" for part in parts)
        for name in self.present:
            path = self.folder / name
            if not name.startswith(prefixes):
                continue
            if not path.is_file() or path.is_symlink():
                raise UserError(f"{path} is missing: restore the version from a copy, or go back to another one.")
            if file_checksum(path) != self.files[name]["sha256"]:
                raise UserError(
                    f"{path} is not what was written, its checksum differs: restore the version from a copy, or go "
                    "back to another one."
                )
        for part in parts:
            self._check_nothing_added(part)
        return self

    def _check_nothing_added(self, part: str) -> None:
        """A weight file, a checkpoint or a held-out text that was added would be read."""
        known = set(self.files)  # also those that pruning may not have removed yet
        for folder, folders, names in os.walk(self.folder / part):
            inside = Path(folder).relative_to(self.folder)
            if inside == Path(RUN):
                folders[:] = [name for name in folders if name not in NOT_KEPT]
                names = [name for name in names if name not in NOT_KEPT]
            links = [name for name in folders if (Path(folder) / name).is_symlink()]
            for name in [*links, *names]:
                if not name.startswith(".") and (inside / name).as_posix() not in known:
                    raise UserError(
                        f"{Path(folder) / name} was added to the version: remove it, or go back to another."
                    )

    @property
    def created_at(self) -> int:
        """Seconds since 1970."""
        return int(datetime.fromisoformat(self.time).timestamp())

    def row(self, *, is_latest: bool) -> dict[str, Any]:
        """The version as a server and `trc2 versions` list it."""
        names = ("created_at", "parent", "replaced", "scores", "verdict", "reason", "is_held")
        content = {name: getattr(self, name) for name in names}
        return {
            "id": self.name, "object": "version", "is_latest": is_latest, "is_damaged": bool(self.problem), **content,
            "tasks": list(self.tasks), "bytes": self.size,
        }  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """The version for programs, without the list of its files."""
        names = ("name", "number", "content", "time", "parent", "replaced", "source", "verdict", "scores", "reason")
        content = {name: getattr(self, name) for name in (*names, "removed", "is_held")}
        return {**content, "tasks": list(self.tasks), "bytes": self.size}


def read_version(folder: Path, manifest: str) -> Version:
    """A version whose version.json has this sha256."""
    path = folder / DESCRIPTION
    with reading(path):
        if file_checksum(path) != manifest:
            raise UserError(f"{path} is not what was written, its checksum differs: restore it from a copy.")
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != SCHEMA:
            raise UserError(f"{path} is of another version of trc2: read it with that one.")
        content["tasks"] = tuple(content["tasks"])
        return Version(folder=folder, **content)


# ------------------------------------------------------------------------------------------------------- making one


def list_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of every file below a folder, by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": file_checksum(path)}
        for path in paths
    }


def content_of(files: dict[str, dict[str, Any]]) -> str:
    """The hash that names a version: of the model's files without its card."""
    prefix = f"{MODEL}/"
    return digest([
        [name.removeprefix(prefix), info["sha256"]]
        for name, info in sorted(files.items())
        if name.startswith(prefix) and name != f"{prefix}{CARD}"
    ])  # fmt: skip


def name_of(number: int, content: str) -> str:
    return f"{number:04d}-{content[:NAME_DIGITS]}"


def copy_tree(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy files and folders of these names, as far as they are there. Links are not followed."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = source / name
        if path.is_symlink() or not path.exists():
            continue
        if path.is_dir():
            copy_tree(path, target / name, [inner.name for inner in path.iterdir()])
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)


def make_durable(folder: Path) -> None:
    """Wait until the disk has every file and folder below a folder."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("r+b") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def protect(folder: Path) -> None:
    """Make all files read-only: a command that would write into a version fails."""
    if sys.platform == "win32":  # files that cannot be written cannot be removed there
        return
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o444)


def write_description(folder: Path, content: dict[str, Any]) -> str:
    """Write version.json. Returns its sha256."""
    write_durably(folder / DESCRIPTION, json.dumps({"schema": SCHEMA, **content}, indent=1).encode())
    return file_checksum(folder / DESCRIPTION)
