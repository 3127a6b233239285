"""Documents from files: JSON lines, plain text and Parquet, also compressed. A file is never held in memory whole."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trc2.errors import UserError, brief
from trc2.stream.document import BadRows, Document, Format, render_row
from trc2.system.files import reading, refuse_root

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


def find_files(root: Path, pattern: str) -> list[Path]:
    """Files of one split: an exact name, a glob, or a stem such as `train` with any known ending.

    The stem `train` finds train.txt, train-2.jsonl.gz and train/*, but not training.txt.
    """
    if (root / pattern).is_file():
        return [root / pattern]
    if any(sign in pattern for sign in "*?["):
        try:
            return sorted(path for path in root.glob(pattern) if path.is_file())
        except ValueError as error:
            raise UserError(
                f"'{pattern}' is not a pattern for file names ({brief(error)}): use one like '*.txt'."
            ) from None
    paths = list((root / pattern).rglob("*"))
    stem, beside = Path(pattern).name, (root / pattern).parent
    if stem and beside.is_dir():
        for path in beside.iterdir():
            rest = path.name.removeprefix(stem)
            if rest not in ("", path.name) and not rest[0].isalpha():
                paths.append(path)
    return sorted(path for path in paths if path.is_file() and kind_of(path) is not None)


def text_files(root: Path, most: int | None = MAX_WALK) -> Iterator[Path]:
    """Text files below a folder, without hidden ones. The search stops after about `most` names."""
    return (path for path in all_files(root, most) if kind_of(path) is not None)


def all_files(root: Path, most: int | None = None) -> Iterator[Path]:
    """Files below a folder in a fixed order, without hidden ones."""
    refuse_root(root, "texts")
    seen = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))
        seen += len(folders) + len(names)
        if most is not None and seen > most:
            return


def kind_of(path: Path) -> str | None:
    """rows, text or table by the ending before any compression. None for other files.

    A file without an ending, such as LICENSE, is text unless a zero byte is near its start.
    """
    if not path.suffix:
        return "text" if _has_text(path) else None
    ending = ending_of(path).removesuffix(".gz").removesuffix(".zst")
    return "rows" if ending in ROWS else "text" if ending in TEXTS else "table" if ending in TABLES else None


def _has_text(path: Path) -> bool:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or not status.st_size:  # reading a pipe would block
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
    name: str = "",
    encoding: str = "utf-8",
) -> Iterator[Document]:
    """The documents of one file in order, or its lines with `by_line`. Rows without a document go to `bad`.

    A document is identified by `name`, by default the file's name, and its line. `encoding` is for text and JSON lines.
    """
    name, kind = name or path.name, kind_of(path)
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
    """Lines of at most `limit` bytes. Of a longer line only the start is kept, with one byte more than the limit."""
    while line := file.readline(limit + 1):
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := file.readline(limit)) and not rest.endswith(b"\n"):
                pass
        yield line


def _cut_into_documents(lines: Iterator[tuple[int, str]], name: str, max_bytes: int) -> Iterator[Document]:
    """Cut plain text into documents at the first blank line after every 16 KB."""
    held: list[str] = []
    size, first = 0, 1
    for number, text in lines:
        length = len(text.encode())
        at_blank = not text.strip() and size >= min(TEXT_DOCUMENT_BYTES, max_bytes // 2)
        if at_blank or size + length > max_bytes:
            yield Document("".join(held).strip(), f"{name}:{first}")
            held, size, first = ([], 0, number + 1) if at_blank else ([text], length, number)
        else:
            held.append(text)
            size += length
    if "".join(held).strip():
        yield Document("".join(held).strip(), f"{name}:{first}")


def _text_lines(file: BinaryIO, name: str, max_bytes: int, bad: BadRows, encoding: str) -> Iterator[tuple[int, str]]:
    """Lines of plain text with their numbers and line ends."""
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
    rows = (row for batch in parquet.ParquetFile(path).iter_batches(batch_size=256) for row in batch.to_pylist())
    for number, row in enumerate(rows, start=1):
        yield from render_row(row, f"{name}:{number}", render, max_bytes, bad)


def _open(path: Path) -> BinaryIO:
    if path.suffix.lower() not in COMPRESSED:
        return path.open("rb")
    if path.stat().st_size == 0:
        raise EOFError("the file is empty, so it is not a compressed file")
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    try:
        import pyarrow
    except ImportError:
        raise UserError(
            f"{path.name} is zstd-compressed, which needs pyarrow: pip install '.[data]' in the checkout."
        ) from None
    return io.BufferedReader(pyarrow.CompressedInputStream(path.open("rb"), "zstd"))
