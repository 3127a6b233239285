"""Uploaded documents: checked, hashed and on the disk before they are acknowledged, all in the data folder."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import sqlalchemy as sa
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from trc2.errors import plain
from trc2.serving.store import FILES, JOBS, alone, find, now, page
from trc2.serving.wire import Answer, ApiError
from trc2.stream.conversation import BadRow, conversation_of
from trc2.system.failpoints import failpoint
from trc2.system.files import make_folder, sync_folder, write_durably

ROWS, TEXTS = (".jsonl", ".ndjson"), (".txt", ".md")
PURPOSES = ("fine-tune", "user_data")
RESULTS = "fine-tune-results"  # the purpose of files that the server makes itself
PARTIAL, PREFIX = ".partial-", "file-"
SPARE_BYTES = 2**20  # of a body beside the file
MAX_FIELD, MAX_FIELDS, MAX_LINE = 10_000, 20, 16 * 2**20
CHUNK = 2**20  # bytes of a text that are in memory at once


class FileObject(Answer):
    id: str
    object: str = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str = "processed"
    documents: int
    sha256: str


class FileList(Answer):
    object: str = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Answer):
    id: str
    object: str = "file"
    deleted: bool = True


def describe(row: Any) -> FileObject:
    names = ("id", "bytes", "created_at", "filename", "purpose", "documents", "sha256")
    return FileObject(**{name: getattr(row, name) for name in names})


class Files:
    """The uploaded files of a data folder. A file is DATA/files/ID, and a row of the table.

    `max_bytes` bounds one file, and `max_stored` all files together with the copies that waiting jobs have.
    """

    def __init__(self, folder: Path, database: sa.Engine, max_bytes: int, max_stored: int) -> None:
        self.folder, self.database, self.max_bytes, self.max_stored = folder / "files", database, max_bytes, max_stored
        self._arriving = 0  # bytes of uploads that have no row yet
        make_folder(self.folder)

    def remove_leftovers(self) -> None:
        """Remove uploads that were never acknowledged because the server was killed, and those that were deleted.

        Only while no other server uses the folder. It may hold files of somebody else, which stay.
        """
        with self.database.connect() as connection:
            known = set(connection.execute(sa.select(FILES.c.id)).scalars())
        for path in self.folder.iterdir():
            is_upload = path.name.startswith((PARTIAL, PREFIX)) and not path.suffix and path.is_file()
            if is_upload and path.name not in known:
                path.unlink()

    async def receive(self, content_type: str, stream: AsyncIterator[bytes]) -> FileObject:
        """Store an upload as it arrives. It is acknowledged after its bytes and its row are on the disk."""
        partial = self.folder / f"{PARTIAL}{secrets.token_hex(8)}"
        stored, arrived = await asyncio.to_thread(self.stored_bytes), 0
        try:
            with partial.open("xb") as file:
                form = _Form(content_type, file, self.max_bytes)
                async for chunk in stream:
                    await asyncio.to_thread(form.write, chunk)
                    self._arriving += form.num_bytes - arrived
                    arrived = form.num_bytes
                    self.check_room(stored, self._arriving)
                form.end()
            return await asyncio.to_thread(self._keep, partial, form)
        finally:
            self._arriving -= arrived
            partial.unlink(missing_ok=True)

    def stored_bytes(self, connection: sa.Connection | None = None) -> int:
        """Bytes of all files, and of the copies that belong to jobs which have not ended."""
        if connection is None:
            with self.database.connect() as connection:
                return self.stored_bytes(connection)
        files = connection.execute(sa.select(sa.func.coalesce(sa.func.sum(FILES.c.bytes), 0))).scalar()
        is_open = JOBS.c.finished_at.is_(None)
        copies = connection.execute(sa.select(sa.func.coalesce(sa.func.sum(JOBS.c.text_bytes), 0)).where(is_open))
        return int(files or 0) + int(copies.scalar() or 0)

    def check_room(self, stored: int, added: int) -> None:
        """Reject what would make the data folder larger than it may be."""
        if stored + added > self.max_stored:
            raise ApiError(
                413, f"The data folder may hold {self.max_stored:,} bytes, and {stored:,} are there already: delete "
                "files, or wait until jobs have ended.", param="file", code="storage_full",
                headers={"connection": "close"},
            )  # fmt: skip

    def _keep(self, partial: Path, form: _Form) -> FileObject:
        filename, kind = form.checked_name()
        purpose = form.fields.get("purpose", "")
        if purpose not in PURPOSES:
            raise ApiError(
                400, f"The purpose is none of {', '.join(PURPOSES)}: give one of them.", param="purpose",
                code="invalid_value",
            )  # fmt: skip
        documents = check_content(partial, kind)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        identity = f"{PREFIX}{secrets.token_hex(12)}"
        failpoint("file")
        os.replace(partial, self.folder / identity)
        sync_folder(self.folder)
        failpoint("file rename")
        row = {
            "id": identity, "created_at": now(), "bytes": form.num_bytes, "filename": filename, "purpose": purpose,
            "kind": kind, "documents": documents, "sha256": form.hash.hexdigest(),
        }  # fmt: skip
        try:
            with alone(self.database) as connection:
                self.check_room(self.stored_bytes(connection), form.num_bytes)
                connection.execute(sa.insert(FILES).values(row))
        except ApiError:
            (self.folder / identity).unlink(missing_ok=True)
            raise
        failpoint("file row")
        return self.get(identity)

    def add_result(self, identity: str, filename: str, content: bytes) -> None:
        """Keep a file that the server made. It replaces one with the same id."""
        write_durably(self.folder / identity, content)
        sync_folder(self.folder)
        row = {
            "id": identity, "created_at": now(), "bytes": len(content), "filename": filename, "purpose": RESULTS,
            "kind": "text", "documents": 1, "sha256": hashlib.sha256(content).hexdigest(),
        }  # fmt: skip
        with self.database.begin() as connection:
            connection.execute(sa.delete(FILES).where(FILES.c.id == identity))
            connection.execute(sa.insert(FILES).values(row))

    def row(self, identity: str) -> Any:
        return find(self.database, FILES, identity, "file", "file_id")

    def get(self, identity: str) -> FileObject:
        return describe(self.row(identity))

    def path(self, identity: str) -> Path:
        """Where the content of a file is. The id is one of the table, never a path."""
        return self.folder / str(self.row(identity).id)

    def open(self, identity: str) -> BinaryIO:
        """The content of a file, which may be deleted while it is read."""
        try:
            return self.path(identity).open("rb")
        except FileNotFoundError:
            raise ApiError(
                404, "The content of this file is gone: upload it again.", param="file_id", code="not_found"
            ) from None

    def list(self, after: str | None, limit: int, newest_first: bool, purpose: str | None) -> FileList:
        if purpose is not None and purpose not in (*PURPOSES, RESULTS):
            return FileList(data=[], first_id=None, last_id=None, has_more=False)
        where = [] if purpose is None else [FILES.c.purpose == purpose]
        found = page(self.database, FILES, after=after, limit=limit, newest_first=newest_first, where=where)
        data = [describe(row) for row in found.rows]
        ends = (data[0].id, data[-1].id) if data else (None, None)
        return FileList(data=data, first_id=ends[0], last_id=ends[1], has_more=found.has_more)

    def delete(self, identity: str) -> FileDeleted:
        path = self.path(identity)
        with self.database.begin() as connection:
            connection.execute(sa.delete(FILES).where(FILES.c.id == identity))
        path.unlink(missing_ok=True)
        return FileDeleted(id=identity)


# ------------------------------------------------------------------------------------------------------------- uploads


class _Form:
    """The parts of a multipart body: small fields in memory, the file straight into the data folder."""

    def __init__(self, content_type: str, file: BinaryIO, max_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or b"boundary" not in options:
            raise _bad_upload()
        self.file, self.max_bytes = file, max_bytes
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.num_bytes, self.hash = 0, hashlib.sha256()
        self.body_bytes = self._num_parts = 0
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._headers: dict[bytes, bytes] = {}
        self._name, self._is_file, self._value = "", False, bytearray()
        self._is_over = False
        callbacks: Any = {
            "on_part_begin": self._begin_part,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add,
            "on_part_end": self._end_part,
            "on_end": self._finish,
        }
        try:
            self.parser = MultipartParser(options[b"boundary"], callbacks)
        except FormParserError:  # the boundary is too long
            raise _bad_upload() from None

    def write(self, chunk: bytes) -> None:
        self.body_bytes += len(chunk)
        if self.body_bytes > self.max_bytes + SPARE_BYTES:
            raise _too_large(self.max_bytes)
        try:
            self.parser.write(chunk)
        except FormParserError:
            raise _bad_upload() from None

    def end(self) -> None:
        if not self._is_over:
            raise _bad_upload()

    def checked_name(self) -> tuple[str, str]:
        """The file's name, which is only a label, and whether it has rows or text."""
        if self.filename is None:
            raise ApiError(400, "The upload has no part 'file': send the file.", param="file", code="missing_file")
        name = PureWindowsPath(PurePosixPath(plain(self.filename)).name).name[:255]
        suffix = PurePosixPath(name).suffix.lower()
        if suffix not in (*ROWS, *TEXTS):
            raise ApiError(
                400, f"The file's name does not end in one of {', '.join((*ROWS, *TEXTS))}: rename it.", param="file",
                code="unsupported_file",
            )  # fmt: skip
        return name, "rows" if suffix in ROWS else "text"

    def _begin_part(self) -> None:
        self._headers, self._value = {}, bytearray()
        self._num_parts += 1
        if self._num_parts > MAX_FIELDS:
            raise _bad_upload()

    def _end_header(self) -> None:
        field, value = self._header
        self._headers[bytes(field).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._is_file = self._name == "file"
        if self._is_file:
            if self.filename is not None:
                raise ApiError(400, "The upload has two files: send one at a time.", param="file", code="two_files")
            self.filename = options.get(b"filename", b"").decode(errors="replace")

    def _add(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._value += data[start:end]
            if len(self._value) > MAX_FIELD:
                raise _bad_upload()
            return
        self.num_bytes += end - start
        if self.num_bytes > self.max_bytes:
            raise _too_large(self.max_bytes)
        part = data[start:end]
        self.hash.update(part)
        self.file.write(part)

    def _end_part(self) -> None:
        if not self._is_file:
            self.fields[self._name] = self._value.decode(errors="replace")

    def _finish(self) -> None:
        self._is_over = True


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"The file has more than {max_bytes:,} bytes: divide it.", param="file", code="file_too_large",
        headers={"connection": "close"},
    )  # fmt: skip


def _bad_upload() -> ApiError:
    return ApiError(
        400, "The body is not a whole multipart/form-data with 'purpose' and 'file': send both.", code="invalid_upload"
    )


# ------------------------------------------------------------------------------------------------------------- content


def check_content(path: Path, kind: str) -> int:
    """Reject a file that could not be trained on. Returns the number of its documents."""
    if kind == "text":
        _check_text(path)
        return 1
    with path.open("rb") as file:
        count = sum(1 for _ in read_rows(file))
    if count == 0:
        raise _bad_file("The file has no lines: send at least one document.")
    return count


def _check_text(path: Path) -> None:
    """Text is read in pieces: a file may be one line."""
    decoder, is_empty = codecs.getincrementaldecoder("utf-8")(), True
    with path.open("rb") as file:
        while True:
            part = file.read(CHUNK)
            try:
                text = decoder.decode(part, final=not part)
            except UnicodeDecodeError:
                raise _bad_file("The text is not UTF-8: convert it.") from None
            if "\0" in text:
                raise _bad_file("The text has a zero byte: send plain text.")
            is_empty = is_empty and not text.strip()
            if not part:
                break
    if is_empty:
        raise _bad_file("The file has no text: send some.")


def read_rows(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """The documents of JSON lines as `trc2 continue` reads them. An error names the line and never quotes it."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise _bad_file(f"Line {number} has more than {MAX_LINE:,} bytes: divide the document.")
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            raise _bad_file(f"Line {number} is not JSON: send one object in each line.") from None
        yield _row(content, number)


def _row(content: Any, number: int) -> dict[str, Any]:
    """A text, a prompt and its completion, or messages, without other fields."""
    if isinstance(content, dict):
        text = content.get("text")
        if isinstance(text, str) and text.strip():
            return {"text": text}
        try:
            conversation = conversation_of(content, MAX_LINE)
        except BadRow as fault:
            raise _bad_file(f"Line {number} is a conversation {fault}: correct it, or leave it out.") from None
        if conversation is not None:
            return conversation.to_row()
    raise _bad_file(
        f"Line {number} has neither 'text', nor 'prompt' and 'completion', nor 'messages' with text: give one of them."
    )


def _bad_file(sentence: str) -> ApiError:
    return ApiError(400, sentence, param="file", code="invalid_file")
