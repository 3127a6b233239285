"""The documents on which two models are compared."""

from __future__ import annotations

from pathlib import Path

from trc2.continuing.earlier import read_rows, write_held_out


def test_documents_are_read_as_they_were_written(tmp_path: Path) -> None:
    texts = ["one\u2028line", "next\x85line", "two\nlines\r\n", "half \ud800 a pair"]
    write_held_out(tmp_path, {"news": texts})
    assert read_rows(tmp_path / "news.jsonl") == texts
