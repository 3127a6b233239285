"""Documents out of files: JSON lines, plain text and Parquet, also compressed, without reading a file whole."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trc2.errors import UserError, brief
from trc2.stream.document import BadRows, Document
from trc2.stream.formats import BadRow, Format
from trc2.system.files import reading

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ROWS, TABLES = (".jsonl", ".ndjson"), (".parquet",)
TEXTS = (
    ".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".org", ".adoc",
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".kt", ".scala", ".swift", ".js", ".ts",
    ".jsx", ".tsx", ".rb", ".php", ".pl", ".lua", ".jl", ".r", ".hs", ".ml", ".sh", ".sql", ".css", ".html", ".xml",
)  # fmt: skip
SUFFIXES = (".txt", ".md", ".jsonl", ".parquet")  # those a message names
COMPRESSED = (".gz", ".zst")
TEXT_DOCUMENT_BYTES = 16_384
MAX_WALK = 10_000
PROBE_BYTES = 4096
# A byte of zstd can stand for 40 kB of text, and what comes out of one piece is held at once.
ZSTD_PIECE = 1024


def find_files(root: Path, pattern: str) -> list[Path]:
    """Files of one split: an exact name, a glob, or a stem such as `train` with any known ending.

    After a stem comes no letter: `train` finds train.txt, train-2.jsonl.gz and train/*, but not training.txt.
    """
    if (root / pattern).is_file():
        return [root / pattern]
    if any(sign in pattern for sign in "*?["):
        try:
            return sorted(path for path in root.glob(pattern) if path.is_file())
        except ValueError as error:
            raise UserError(
                f"'{pattern}' is no pattern for file names ({brief(error)}): use one like '*.txt'."
            ) from None
    found = [path for path in (root / pattern).rglob("*") if path.is_file() and kind_of(path) is not None]
    stem = Path(pattern).name
    beside = (root / pattern).parent
    if stem and beside.is_dir():
        for path in beside.iterdir():
            rest = path.name.removeprefix(stem)
            if rest not in ("", path.name) and not rest[0].isalpha() and kind_of(path) is not None and path.is_file():
                found.append(path)
    return sorted(found)


def text_files(root: Path, most: int | None = MAX_WALK) -> Iterator[Path]:
    """Files of a known kind below a folder, hidden ones left out; of very many names only the first are seen."""
    return (path for path in all_files(root, most) if kind_of(path) is not None)


def all_files(root: Path, most: int | None = None) -> Iterator[Path]:
    """Files below a folder in a fixed order, hidden ones left out."""
    seen = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))
        seen += len(folders) + len(names)
        if most is not None and seen > most:
            return


def kind_of(path: Path) -> str | None:
    """rows, text or table, whatever compression comes after its ending; None for what is no text.

    A file without an ending, such as LICENSE, is text unless its beginning holds a zero byte.
    """
    if not path.suffix:
        return "text" if _has_text(path) else None
    ending = ending_of(path).removesuffix(".gz").removesuffix(".zst")
    return "rows" if ending in ROWS else "text" if ending in TEXTS else "table" if ending in TABLES else None


def _has_text(path: Path) -> bool:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or not status.st_size:  # a pipe would be waited for
            return False
        with path.open("rb") as file:
            return b"\0" not in file.read(PROBE_BYTES)
    except OSError:
        return False


def ending_of(path: Path) -> str:
    """A file's ending with the compression after it, such as .txt.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "".join(suffixes[-2:] if suffixes and suffixes[-1] in COMPRESSED else suffixes[-1:])


def read_file(
    path: Path,
    render: Format,
    max_bytes: int,
    bad: BadRows,
    *,
    by_line: bool = False,
    name: str | None = None,
    encoding: str = "utf-8",
) -> Iterator[Document]:
    """Documents of one file in order, or its lines; rows that are none go to `bad` with their line.

    Documents are known by the file's name and their line; `name` is another one where several files share theirs.
    `encoding` is of plain text and JSON lines.
    """
    name = path.name if name is None else name
    kind = kind_of(path)
    if kind is None:
        raise UserError(f"{path} is of no known kind: use {', '.join(SUFFIXES)}, also with .gz or .zst.")
    with reading(path, "use a whole copy of it"):
        if kind == "table":
            yield from _read_parquet(path, name, render, max_bytes, bad)
            return
        with _open(path) as file:
            if kind == "rows":
                yield from _read_json_lines(file, name, render, max_bytes, bad, encoding)
                return
            lines = _text_lines(file, name, max_bytes, bad, encoding)
            if by_line:
                yield from (Document(text, f"{name}:{number}") for number, text in lines)
            else:
                yield from _cut_into_documents(lines, name, max_bytes)


def render_row(row: Any, where: str, render: Format, max_bytes: int, bad: BadRows) -> Iterator[Document]:
    """One document, or a note why there is none."""
    try:
        if not isinstance(row, dict):
            raise BadRow("not an object")
        text = render(row, max_bytes)
        if len(text.encode(errors="surrogatepass")) > max_bytes:
            raise BadRow("over-long")
        text.encode()  # lone surrogates, which JSON can smuggle in, are not text
        yield Document(text, where)
    except BadRow as fault:
        bad.add(str(fault), where)
    except UnicodeEncodeError:
        bad.add("invalid UTF-8", where)


def _read_json_lines(
    file: BinaryIO, name: str, render: Format, max_bytes: int, bad: BadRows, encoding: str
) -> Iterator[Document]:
    # A line may be longer than its text (escapes, other fields), but not without limit.
    limit = 8 * max_bytes + 65_536
    for number, line in enumerate(_lines(file, limit), start=1):
        where = f"{name}:{number}"
        if len(line) > limit:
            bad.add("over-long", where)
            continue
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode(encoding))
        except UnicodeDecodeError:
            bad.add(f"invalid {encoding.upper()}", where)
        except (ValueError, RecursionError):
            bad.add("not JSON", where)
        else:
            yield from render_row(row, where, render, max_bytes, bad)


def _lines(file: BinaryIO, limit: int) -> Iterator[bytes]:
    """Lines of at most `limit` bytes; of a longer one only the start is kept, its rest is read past."""
    while line := file.readline(limit + 1):
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := file.readline(limit)) and not rest.endswith(b"\n"):
                pass
        yield line


def _cut_into_documents(lines: Iterator[tuple[int, str]], name: str, max_bytes: int) -> Iterator[Document]:
    """Plain text has no documents of its own: it is cut at the first blank line after every 16 KB."""
    held: list[str] = []
    size, first = 0, 1
    for number, text in lines:
        length = len(text.encode())
        if not text.strip() and size >= min(TEXT_DOCUMENT_BYTES, max_bytes // 2):
            yield Document("".join(held).strip(), f"{name}:{first}")
            held, size, first = [], 0, number + 1
        elif size + length > max_bytes:
            yield Document("".join(held).strip(), f"{name}:{first}")
            held, size, first = [text], length, number
        else:
            held.append(text)
            size += length
    if "".join(held).strip():
        yield Document("".join(held).strip(), f"{name}:{first}")


def _text_lines(file: BinaryIO, name: str, max_bytes: int, bad: BadRows, encoding: str) -> Iterator[tuple[int, str]]:
    """Lines of plain text with their numbers, ends included."""
    for number, line in enumerate(_lines(file, max_bytes), start=1):
        if len(line) > max_bytes:
            bad.add("over-long", f"{name}:{number}")
            continue
        try:
            yield number, line.decode(encoding)
        except UnicodeDecodeError:
            bad.add(f"invalid {encoding.upper()}", f"{name}:{number}")


def _read_parquet(path: Path, name: str, render: Format, max_bytes: int, bad: BadRows) -> Iterator[Document]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(
            f"{path.name} is a Parquet file, which needs pyarrow: pip install '.[data]' in the checkout."
        ) from None
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
        for row in batch.to_pylist():
            number += 1
            yield from render_row(row, f"{name}:{number}", render, max_bytes, bad)


def _open(path: Path) -> BinaryIO:
    if path.suffix.lower() not in COMPRESSED:
        return path.open("rb")
    if path.stat().st_size == 0:
        raise EOFError("the file is empty, which no compressed file is")
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    try:
        import zstandard
    except ImportError:
        raise UserError(
            f"{path.name} is zstd-compressed, which needs zstandard: pip install '.[data]' in the checkout."
        ) from None
    return io.BufferedReader(_ZstdFile(path.open("rb"), zstandard.ZstdDecompressor()))


class _ZstdFile(io.RawIOBase):
    """The text of all frames of a .zst file; unlike zstandard's own reader it tells when the last one is cut off."""

    def __init__(self, file: BinaryIO, decompressor: Any) -> None:
        self._file = file
        self._decompressor = decompressor
        self._frame = decompressor.decompressobj()
        self._ready = memoryview(b"")
        self._has_begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        while not self._ready:
            compressed = self._frame.unused_data if self._frame.eof else b""
            compressed = compressed or self._file.read(ZSTD_PIECE)
            if not compressed:
                if self._has_begun and not self._frame.eof:
                    raise EOFError("the compressed text is cut off")
                return 0
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._has_begun = True
            self._ready = memoryview(self._frame.decompress(compressed))
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
