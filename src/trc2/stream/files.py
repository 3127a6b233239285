"""Documents out of files: JSON lines, plain text and Parquet, also compressed, without reading a file whole."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trc2.errors import UserError
from trc2.stream.document import BadRows, Document
from trc2.stream.formats import BadRow, Format

SUFFIXES = (".jsonl", ".txt", ".parquet")
COMPRESSED = (".gz", ".zst")
TEXT_DOCUMENT_BYTES = 16_384


def find_files(root: Path, pattern: str) -> list[Path]:
    """Files of one split: an exact name, a glob, or a stem such as `train` with any known ending."""
    if (root / pattern).is_file():
        return [root / pattern]
    if any(sign in pattern for sign in "*?["):
        return sorted(path for path in root.glob(pattern) if path.is_file())
    found = [path for path in root.glob(f"{pattern}*") if path.is_file() and kind_of(path) is not None]
    inside = [path for path in (root / pattern).rglob("*") if path.is_file() and kind_of(path) is not None]
    return sorted(found + inside)


def kind_of(path: Path) -> str | None:
    """.jsonl, .txt or .parquet, whatever compression comes after it."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED]
    return suffixes[-1] if suffixes and suffixes[-1] in SUFFIXES else None


def read_file(path: Path, render: Format, max_bytes: int, bad: BadRows) -> Iterator[Document]:
    """Documents of one file in order; rows that are none go to `bad` with their line."""
    kind = kind_of(path)
    if kind == ".parquet":
        yield from _read_parquet(path, render, max_bytes, bad)
        return
    with _open(path) as file:
        if kind == ".jsonl":
            yield from _read_json_lines(file, path.name, render, max_bytes, bad)
        elif kind == ".txt":
            yield from _read_text(file, path.name, max_bytes, bad)
        else:
            raise UserError(f"{path} is of no known kind: use {', '.join(SUFFIXES)}, also with .gz or .zst.")


def render_row(row: Any, where: str, render: Format, max_bytes: int, bad: BadRows) -> Iterator[Document]:
    """One document, or a note why there is none."""
    try:
        if not isinstance(row, dict):
            raise BadRow("not an object")
        text = render(row)
        if len(text.encode(errors="surrogatepass")) > max_bytes:
            raise BadRow("over-long")
        text.encode()  # lone surrogates, which JSON can smuggle in, are not text
        yield Document(text, where)
    except BadRow as fault:
        bad.add(str(fault), where)
    except UnicodeEncodeError:
        bad.add("invalid UTF-8", where)


def _read_json_lines(file: BinaryIO, name: str, render: Format, max_bytes: int, bad: BadRows) -> Iterator[Document]:
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
            row = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            bad.add("invalid UTF-8", where)
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


def _read_text(file: BinaryIO, name: str, max_bytes: int, bad: BadRows) -> Iterator[Document]:
    """Plain text has no documents of its own: it is cut at the first blank line after every 16 KB."""
    held: list[str] = []
    size, first = 0, 1
    for number, line in enumerate(_lines(file, max_bytes), start=1):
        if len(line) > max_bytes:
            bad.add("over-long", f"{name}:{number}")
            continue
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            bad.add("invalid UTF-8", f"{name}:{number}")
            continue
        if not text.strip() and size >= min(TEXT_DOCUMENT_BYTES, max_bytes // 2):
            yield Document("".join(held).strip(), f"{name}:{first}")
            held, size, first = [], 0, number + 1
        elif size + len(line) > max_bytes:
            yield Document("".join(held).strip(), f"{name}:{first}")
            held, size, first = [text], len(line), number
        else:
            held.append(text)
            size += len(line)
    if "".join(held).strip():
        yield Document("".join(held).strip(), f"{name}:{first}")


def _read_parquet(path: Path, render: Format, max_bytes: int, bad: BadRows) -> Iterator[Document]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{path.name} is a Parquet file, which needs pyarrow: pip install 'trc2[data]'.") from None
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
        for row in batch.to_pylist():
            number += 1
            yield from render_row(row, f"{path.name}:{number}", render, max_bytes, bad)


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise UserError(
                f"{path.name} is zstd-compressed, which needs zstandard: pip install 'trc2[data]'."
            ) from None
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(path.open("rb")))
    return path.open("rb")
