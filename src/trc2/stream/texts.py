"""Texts passed in Python: written once to the cache, and then read as files.

The folder's name is a hash of its content, so equal texts are the same files to every run, also to a resumed one.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from trc2.config.section import shown
from trc2.errors import UserError, did_you_mean
from trc2.stream.cache import expanded, sole_maker
from trc2.stream.sources import SPLITS
from trc2.system.files import about, replace_folder, sync_folder

Texts: TypeAlias = Iterable[str] | Iterable[Mapping[str, Any]]
"""Documents: strings, or rows with `text`, `messages`, or `prompt` and `completion`, as in a `datasets.Dataset`."""


def keep_texts(name: str, texts: Texts | Mapping[str, Texts], cache: Path) -> Path:
    """Write a task's documents, of `train` or by split, as rows of SPLIT.jsonl, and return their folder.

    `name` is the task's name. Empty documents are counted as bad rows when the task is packed.
    """
    splits = dict(texts) if isinstance(texts, Mapping) else {"train": texts}
    for split in splits:
        if split not in SPLITS:
            raise UserError(f"Task '{name}' has texts of '{split}', not a split: {did_you_mean(split, SPLITS)}")
    home = expanded(cache).resolve() / "texts"
    home.mkdir(parents=True, exist_ok=True)
    partial = home / f".{name}.{secrets.token_hex(8)}"
    partial.mkdir()  # folders of tempfile are closed to other users
    try:
        digest = hashlib.sha256()
        for split in sorted(splits):
            digest.update(f"{split}\n".encode())
            _write_rows(name, splits[split], partial / f"{split}.jsonl", digest)
        if not (partial / "train.jsonl").is_file():
            raise UserError(f"Task '{name}' has no texts of 'train': give some to learn from.")
        sync_folder(partial)
        folder = home / f"{name}-{digest.hexdigest()[:16]}"
        with sole_maker(folder, waiting=lambda: None):
            if not _is_same(partial, folder):
                replace_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _write_rows(name: str, texts: Texts, path: Path, digest: hashlib._Hash) -> None:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UserError(f"Task '{name}' has {shown(texts)} for texts: give a list of strings, one per document.")
    if hasattr(texts, "iterrows"):  # a pandas table, which would give the names of its columns
        raise UserError(f"Task '{name}' has a table for texts: give the column that holds them, as table['text'].")
    count = 0
    with about(path), path.open("wb") as file:
        for count, given in enumerate(texts, start=1):
            content = _content(given)
            try:
                # Lone surrogates pass here and become bad rows when the file is read.
                text = json.dumps(content, ensure_ascii=False)
            except (TypeError, ValueError):
                content = None
            if content is None:
                raise UserError(
                    f"Text {count} of task '{name}' is {shown(given)}, which is neither a string nor a row with "
                    "'text', 'messages', or 'prompt' and 'completion': give a list of strings, or of such rows."
                )
            row = text.encode(errors="surrogatepass") + b"\n"
            file.write(row)
            digest.update(row)
        file.flush()
        os.fsync(file.fileno())
    os.utime(path, (0, 0))  # equal texts get equal files
    if not count:
        raise UserError(f"Task '{name}' has an empty list of texts: give it at least one.")


def _content(given: object) -> dict[str, Any] | None:
    """The fields of a row that are read. None if it has no text and no conversation."""
    if isinstance(given, str):
        return {"text": str(given)}
    if not isinstance(given, Mapping):
        return None
    if isinstance(text := given.get("text"), str):
        return {"text": str(text), **({"packed": packed} if isinstance(packed := given.get("packed"), Mapping) else {})}
    for names in (("messages",), ("prompt", "completion")):
        if all(given.get(name) is not None for name in names):
            return {name: given[name] for name in names}
    return None


def _is_same(partial: Path, folder: Path) -> bool:
    """Whether a folder holds exactly these files, undamaged."""
    names = sorted(os.listdir(partial))
    if not folder.is_dir() or sorted(os.listdir(folder)) != names:
        return False
    return filecmp.cmpfiles(partial, folder, names, shallow=False)[0] == names
