"""A versions folder wherever a run or a saved model is named: it stands for its accepted version."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from trc2.stream.sources import check_task_names
from trc2.system.failpoints import failpoint
from trc2.system.files import filled, refuse_taken
from trc2.versions.entry import DESCRIPTION, MODEL, RUN, Version, make_durable
from trc2.versions.registry import Versions, is_versions


def find_version(path: Path) -> Version | None:
    """The accepted version of a versions folder, or the version whose folder this is. None for any other path."""
    if is_versions(path):
        return Versions(path).accepted()
    try:
        if (path / DESCRIPTION).is_file() and is_versions(path.resolve().parent):
            return Versions(path.resolve().parent).get(path.resolve().name)
    except (OSError, ValueError):  # a name that no file can have
        return None
    return None


def model_folder(path: Path) -> Path:
    """The model to use: of a version its Hugging Face folder, whose files are compared with their hashes."""
    version = find_version(path)
    return path if version is None else version.check([MODEL]).model


def folder_to_continue(path: Path) -> Path:
    """The folder to go on from: of a version its run, or its model if it has no checkpoint."""
    version = find_version(path)
    if version is None:
        return path
    version.check()
    return version.model if version.run is None else version.run


def held_out_files(path: Path, tasks: Sequence[str], *, has_files: bool) -> dict[str, Path] | None:
    """The held-out documents of a version's tasks, by default of all unless other files are scored.

    None if the path is not of a version.
    """
    version = find_version(path)
    if version is None:
        return None
    version.check([RUN])
    files = version.held_out
    check_task_names(tasks, list(files))
    return {name: files[name] for name in (tasks or ([] if has_files else sorted(files)))}


def copy_model(path: Path, folder: Path) -> list[Path] | None:
    """Copy the model of a version into a new folder. None if the path is not of a version."""
    version = find_version(path)
    if version is None:
        return None
    refuse_taken(folder)
    version.check([MODEL])
    with filled(folder) as partial:
        for source in sorted(version.model.iterdir()):
            shutil.copyfile(source, partial / source.name)
        make_durable(partial)
        failpoint("export rename")
    return sorted(folder.iterdir())
