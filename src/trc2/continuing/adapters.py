"""Adapters of peft as the parent of a child: with another place of their model, or merged into it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from trc2.backbones.hf import HFTrunk, merge_adapters
from trc2.backbones.saved import load_model
from trc2.config.adapters import SETTINGS_FILE, WEIGHTS_FILE, is_adapter, read_adapter, with_base
from trc2.config.pretrained import CONFIG_FILE, copy_model_files, silence
from trc2.errors import UserError
from trc2.runs.lock import lock_folder
from trc2.stream.cache import digest, file_checksum
from trc2.system.files import replace_folder, write_atomically
from trc2.system.torchrun import is_worker

MARK = ".made-from-adapters"  # in folders that may be replaced: a hash of the adapters they were made from


def adapter_parent(parent: Path, base: Path | None, *, merge: bool) -> Path:
    """The folder from which a child of adapters goes on; the adapters' own folder is never changed.

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
        parent = _beside(parent, "base", lambda folder, source: _write_rebased(folder, source, base))
    return _beside(parent, "merged", _write_merged) if merge else parent


def _beside(parent: Path, word: str, write: Callable[[Path, Path], None]) -> Path:
    """The folder PARENT+WORD, which appears whole or not at all, and replaces only one that was made here."""
    home = parent.resolve()
    folder = home.with_name(f"{home.name}+{word}")
    mark = folder / MARK
    if os.path.lexists(folder) and not mark.is_file():
        raise UserError(
            f"{folder} was not made by --base or --merge, which write a folder of this name: move it away, or rename "
            f"{parent}."
        )
    if is_worker() and mark.is_file() and mark.read_text(encoding="utf-8") == _hash_of(parent):
        return folder  # the process that started this one made it
    partial = home.with_name(f".{folder.name}.partial")
    with lock_folder(partial):
        shutil.rmtree(partial / "model", ignore_errors=True)
        write(partial / "model", parent)
        write_atomically(partial / "model" / MARK, _hash_of(parent).encode())
        replace_folder(partial / "model", folder)
    shutil.rmtree(partial, ignore_errors=True)
    return folder


def _hash_of(adapter: Path) -> str:
    return digest([file_checksum(adapter / name) for name in (SETTINGS_FILE, WEIGHTS_FILE)])


def _write_rebased(folder: Path, source: Path, base: Path) -> None:
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
