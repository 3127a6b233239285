"""Files of every kind, bad rows of every kind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from trc2.errors import UserError
from trc2.stream.document import BadRows
from trc2.stream.files import find_files, read_file
from trc2.stream.formats import text_format

TEXT = text_format("text")


def read(path: Path, max_bytes: int = 1000) -> tuple[list[str], BadRows]:
    bad = BadRows()
    return [document.text for document in read_file(path, TEXT, max_bytes, bad)], bad


def test_bad_rows_are_counted_with_their_line_and_skipped(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good one"}',
        b"{not json",
        b'{"body": "no text field"}',
        b'{"text": 3}',
        b'{"text": "bad \xff bytes"}',
        b'{"text": "  "}',
        b'{"text": "' + b"x" * 2000 + b'"}',
        b'["a", "list"]',
        b'{"text": "lone \\ud800 surrogate"}',
        b"",
        b"[" * 100_000,
        b'{"text": "good two"}',
    ]
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\n".join(lines))
    texts, bad = read(path)
    assert texts == ["good one", "good two"]
    assert bad.counts == {
        "not JSON": 1, "without 'text'": 1, "where 'text' is not a string": 1, "invalid UTF-8": 2, "empty": 1,
        "over-long": 2, "not an object": 1,
    }  # fmt: skip
    assert bad.examples["not JSON"] == ["train.jsonl:2"]
    assert bad.sentence().startswith("9 rows were skipped: ")


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"text": "' + b"y" * 5_000_000 + b'"}\n{"text": "after"}\n')
    texts, bad = read(path, max_bytes=100)
    assert texts == ["after"]
    assert bad.counts == {"over-long": 1}


def test_compressed_and_parquet_files_are_read(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet
    import zstandard

    rows = [{"text": "one"}, {"text": "two"}, {"text": None}]
    content = "\n".join(json.dumps(row) for row in rows).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(content))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    for name in ("a.jsonl.gz", "b.jsonl.zst", "c.parquet"):
        texts, bad = read(tmp_path / name)
        assert texts == ["one", "two"], name
        assert bad.total() == 1


def test_plain_text_is_cut_at_blank_lines_and_nothing_is_lost(tmp_path: Path) -> None:
    paragraphs = [f"paragraph {n} " + "word " * 400 for n in range(40)]
    path = tmp_path / "train.txt"
    path.write_text("\n\n".join(paragraphs))
    texts, _ = read(path, max_bytes=100_000)
    assert len(texts) > 2
    assert " ".join(" ".join(texts).split()) == " ".join(" ".join(paragraphs).split())


def test_splits_are_found_by_stem_glob_or_folder(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    (tmp_path / "train-2.txt.gz").touch()
    (tmp_path / "train.md").touch()
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "x.parquet").touch()
    assert [path.name for path in find_files(tmp_path, "train")] == ["train-2.txt.gz", "train.jsonl"]
    assert [path.name for path in find_files(tmp_path, "val")] == ["x.parquet"]
    assert [path.name for path in find_files(tmp_path, "*.jsonl")] == ["train.jsonl"]
    assert find_files(tmp_path, "test") == []


def test_templates_fill_in_fields_and_interpret_nothing_else() -> None:
    render = text_format("{title}: {text} {0} {text.__class__}")
    assert render({"title": "T", "text": "{title}"}) == "T: {title} {0} {text.__class__}"
    assert text_format("gsm8k")({"question": "q", "answer": "a"}) == "Question: q\nAnswer: a"
    with pytest.raises(UserError, match="did you mean 'gsm8k'"):
        text_format("gsm8")
