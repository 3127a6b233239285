"""Adapters of peft as the parent of a child: with another place of their model, or merged into it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from trc2.backbones.hf import HFTrunk, merge_adapters
from trc2.backbones.saved import load_model
from trc2.config.adapters import SETTINGS_FILE, WEIGHTS_FILE, is_adapter, read_adapter, with_base
from trc2.config.pretrained import CONFIG_FILE, copy_model_files, silence, weight_files
from trc2.errors import UserError
from trc2.runs.lock import lock_folder
from trc2.stream.cache import digest, file_checksum
from trc2.system.files import replace_folder, write_atomically
from trc2.system.torchrun import is_worker, speaks_for_machine

MARK = ".made-from-adapters"  # in folders that may be replaced: a hash of what they were made from
ADAPTER_FILES = (SETTINGS_FILE, WEIGHTS_FILE)
POLL_SECONDS = 0.1


def adapter_parent(parent: Path, base: Path | None, *, merge: bool) -> Path:
    """The folder from which a child of adapters goes on. The adapters' own folder is never changed.

    With `base`, a copy beside it that names this model. With `merge`, a plain model beside it.
    """
    if base is None and not merge:
        return parent
    if not is_adapter(parent):
        option = "--merge" if merge else "--base"
        raise UserError(f"{option} is for adapters of peft, which {parent} does not hold: leave it out.")
    if base is not None:
        if not (base / CONFIG_FILE).is_file():
            raise UserError(f"--base {base} is not the folder of a model: it has no {CONFIG_FILE}.")
        parent = _beside(parent, "base", str(base.resolve()), partial(_write_rebased, base=base))
    return _beside(parent, "merged", _traits(read_adapter(parent).base), _write_merged) if merge else parent


def _beside(parent: Path, word: str, model: object, write: Callable[[Path, Path], None]) -> Path:
    """The folder PARENT+WORD, which appears whole or not at all, and replaces only one that was made here.

    `model` says of which model it is made. Of the processes that torchrun started, the first on each machine writes
    the folder and the others wait for it. If `--nproc` started them, the folder is there already.
    """
    home = parent.resolve()
    folder = home.with_name(f"{home.name}+{word}")
    mark, made = folder / MARK, digest([*(file_checksum(parent / name) for name in ADAPTER_FILES), model])
    while is_worker() and not speaks_for_machine() and not _is_made(mark, made):
        time.sleep(POLL_SECONDS)  # torchrun ends this process if the first one fails
    if is_worker() and _is_made(mark, made):
        return folder
    if os.path.lexists(folder) and not mark.is_file():
        raise UserError(
            f"{folder} was not made by --base or --merge, which write a folder of this name: move it away, or rename "
            f"{parent}."
        )
    unfinished = home.with_name(f".{folder.name}.partial")
    with lock_folder(unfinished):
        shutil.rmtree(unfinished / "model", ignore_errors=True)
        write(unfinished / "model", parent)
        write_atomically(unfinished / "model" / MARK, made.encode())
        replace_folder(unfinished / "model", folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _is_made(mark: Path, made: str) -> bool:
    """Whether a folder is the one that is wanted. It may be replaced at this very moment."""
    with suppress(OSError):
        return mark.read_text(encoding="utf-8") == made
    return False


def _traits(base: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a model's weight files, which are too large to be hashed by every process."""
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in weight_files(base) if path.is_file()]


def _write_rebased(folder: Path, source: Path, *, base: Path) -> None:
    folder.mkdir(parents=True)
    write_atomically(folder / SETTINGS_FILE, with_base(source, base))
    shutil.copyfile(source / WEIGHTS_FILE, folder / WEIGHTS_FILE)


def _write_merged(folder: Path, source: Path) -> None:
    """W ← W + B·A·α/r, in float32, with the tokenizer and the settings of the model."""
    adapter = read_adapter(source)
    copy_model_files(str(adapter.base), folder)
    settings = (folder / CONFIG_FILE).read_bytes()
    net = load_model(source)
    assert isinstance(net.trunk, HFTrunk)
    merge_adapters(net.trunk.lm)
    with silence():
        net.trunk.lm.save_pretrained(folder, max_shard_size="5GB")
    write_atomically(folder / CONFIG_FILE, settings)  # save_pretrained writes the dropout of training
