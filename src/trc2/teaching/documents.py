"""The documents of files and folders, as a model is taught them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from trc2.config import TaskConfig
from trc2.config.section import shown
from trc2.errors import UserError
from trc2.runs.folder import Warn
from trc2.stream.document import BadRows, Document, text_format
from trc2.stream.readers import SUFFIXES, read_file, text_files
from trc2.stream.texts import Texts

MAX_DOCUMENT_BYTES = int(TaskConfig.model_fields["max_document_bytes"].default)


def read_documents(paths: Iterable[Path], warn: Warn, format_name: str = "text") -> Iterator[Document]:
    """All documents of these files, and of the text files below these folders. Each is named by its path and line."""
    bad, render, found = BadRows(), text_format(format_name), 0
    for path in paths:
        if not path.exists():
            raise UserError(f"There is no file or folder {path}: check the path.")
        files = [path] if not path.is_dir() else list(text_files(path, most=None))
        if not files:
            raise UserError(f"{path} holds no text: put {', '.join(SUFFIXES)} files there, also with .gz or .zst.")
        for file in files:
            for document in read_file(file, render, MAX_DOCUMENT_BYTES, bad, name=file.as_posix()):
                found += 1
                yield document
    if bad.total() and not found:
        raise UserError(f"The files hold no document of the format '{format_name}': {bad.sentence()}")
    if bad.total():
        warn(bad.sentence())


def given_documents(texts: Texts, source: str) -> Iterator[Document]:
    """Strings, or rows with a string as `text`, as documents that are named by their number."""
    if isinstance(texts, str | bytes):
        raise UserError(f"texts={shown(texts)} is one string: give a list of strings, one per document.")
    for number, given in enumerate(texts, start=1):
        text = given.get("text") if isinstance(given, Mapping) else given
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"Text {number} is {shown(given)}: give a string that is not empty, or a row with 'text'.")
        yield Document(text, f"{source}:{number}")
