"""Files of every kind, bad rows of every kind."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from trc2.errors import UserError
from trc2.stream.conversation import BadRow
from trc2.stream.document import BadRows, text_format
from trc2.stream.readers import find_files, read_file, text_files

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


def test_plain_text_is_cut_at_blank_lines_and_nothing_is_lost(tmp_path: Path) -> None:
    paragraphs = [f"paragraph {n} " + "word " * 400 for n in range(40)]
    path = tmp_path / "train.txt"
    path.write_text("\n\n".join(paragraphs))
    texts, _ = read(path, max_bytes=100_000)
    assert len(texts) > 2
    assert " ".join(" ".join(texts).split()) == " ".join(" ".join(paragraphs).split())


def test_a_stem_is_not_followed_by_a_letter(tmp_path: Path) -> None:
    taken = ["train-00001.jsonl.gz", "train.part1.jsonl", "train.txt", "train2.txt", "train_2.txt"]
    for name in [*taken, "training.txt", "trainer.jsonl", "trainé.txt", "mytrain.txt", "train.pdf", "train"]:
        (tmp_path / name).mkdir() if name == "train" else (tmp_path / name).touch()
    (tmp_path / "train" / "deep").mkdir()
    (tmp_path / "train" / "deep" / "any.txt").touch()
    found = {path.relative_to(tmp_path).as_posix() for path in find_files(tmp_path, "train")}
    assert found == {*taken, "train/deep/any.txt"}
    assert [path.name for path in find_files(tmp_path, "train/deep/any")] == ["any.txt"]
    assert find_files(tmp_path, "nowhere/train") == find_files(tmp_path, "test") == []
    assert [path.name for path in find_files(tmp_path, "*.jsonl")] == ["train.part1.jsonl", "trainer.jsonl"]


def test_a_file_with_glob_signs_in_its_name_is_found_by_its_exact_name(tmp_path: Path) -> None:
    for name in ("a[1].jsonl", "a1.jsonl", "*.txt", "x**y.txt"):
        (tmp_path / name).touch()
    for name in ("a[1].jsonl", "*.txt", "x**y.txt"):
        assert find_files(tmp_path, name) == [tmp_path / name]
    assert [path.name for path in find_files(tmp_path, "a[1]*")] == ["a1.jsonl"]


def test_a_pattern_that_is_none_is_told_in_a_sentence_or_finds_nothing(tmp_path: Path) -> None:
    for pattern in ("**.txt", "a**b", "[", "[!", "***"):
        found: object = None
        try:
            found = find_files(tmp_path, pattern)
        except UserError as error:  # what is a pattern depends on the Python version
            found = str(error)
        assert found == [] or "is not a pattern for file names" in str(found)


ROWS = "".join(json.dumps({"text": f"row {number} " + "word " * number}) + "\n" for number in range(500)).encode()


def compressed(kind: str) -> bytes:
    import pyarrow
    import pyarrow.parquet
    import zstandard

    if kind == "gz":
        return gzip.compress(ROWS)
    if kind == "zst":
        return zstandard.ZstdCompressor().compress(ROWS)
    buffer = io.BytesIO()
    table = pyarrow.Table.from_pylist([json.loads(line) for line in ROWS.splitlines()])
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["gz", "zst", "parquet"])
def test_cut_and_corrupt_files_are_told_in_a_sentence_with_their_path(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("train.parquet" if kind == "parquet" else f"train.jsonl.{kind}")
    whole = compressed(kind)
    path.write_bytes(whole)
    assert len(read(path, 10_000)[0]) == 500
    for share in (0.0, 0.001, 0.3, 0.6, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(UserError, match=r"train.* (cannot be read|is damaged) .*: use a whole copy of it\.$"):
            read(path, 10_000)
    for content in (b"plain text, not compressed", whole[:40] + b"\xff" * 40 + whole[80:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="use a whole copy of it"):
            read(path, 10_000)


def test_zstd_files_of_several_frames_are_read_to_the_end_of_the_last(tmp_path: Path) -> None:
    import zstandard

    path = tmp_path / "train.jsonl.zst"
    lines = ROWS.splitlines(keepends=True)
    skippable = b"\x50\x2a\x4d\x18\x05\x00\x00\x00" + b"hello"
    frames = [zstandard.ZstdCompressor().compress(b"".join(lines[i : i + 50])) for i in range(0, 500, 50)]
    path.write_bytes(skippable + b"".join(frames) + skippable)
    assert len(read(path, 10_000)[0]) == 500
    path.write_bytes(b"".join(frames)[:-3])
    with pytest.raises(UserError, match="Truncated"):
        read(path, 10_000)
    path.write_bytes(b"".join(frames) + b"garbage")
    with pytest.raises(UserError, match="use a whole copy of it"):
        read(path, 10_000)


def test_a_zstd_file_that_swells_does_not_fill_the_memory(tmp_path: Path) -> None:
    import tracemalloc

    import zstandard

    path = tmp_path / "train.jsonl.zst"
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    zeros = bytes(2**20)
    path.write_bytes(b"".join(compressor.compress(zeros) for _ in range(300)) + compressor.flush())
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    texts, bad = read(path, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts == []
    assert bad.counts == {"over-long": 1}
    assert peak < 100 * 2**20


def test_a_file_that_may_not_be_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("text")
    generator = read_file(path, TEXT, 1000, BadRows())
    path.unlink()
    with pytest.raises(UserError, match=r"train.txt: No such file"):
        next(generator)


def test_control_characters_are_text_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"text": "a\0b\x1b[31m\u202e\x7f"}) + "\n")
    assert read(path)[0] == ["a\0b\x1b[31m\u202e\x7f"]


WITHOUT_FIELD = ["", "{", "}}{{", "{}", "{0}", "{text!r}", "{text:>9999999}", "\0", "{" * 5000]
WITH_FIELD = ["{text}" * 5000, "\ud800{text}", "{text}\x1b", "%s {text} %(text)s", "{text}{missing}", "{{text}}"]


@pytest.mark.parametrize("template", WITHOUT_FIELD + WITH_FIELD, ids=lambda template: repr(template)[:20])
def test_absurd_templates_give_documents_bad_rows_or_a_sentence(tmp_path: Path, template: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"text": "word " * 100}) + "\n")
    if template in WITHOUT_FIELD:
        with pytest.raises(UserError, match="names no field"):
            text_format(template)
        return
    bad = BadRows()
    documents = list(read_file(path, text_format(template), 10_000, bad))
    assert len(documents) + bad.total() == 1


def test_a_template_that_names_a_field_a_thousand_times_does_not_fill_the_memory() -> None:
    with pytest.raises(BadRow, match="over-long"):
        text_format("{text}" * 100_000)({"text": "x" * 1_000_000}, 1_000_000)


def test_templates_fill_in_fields_and_interpret_nothing_else() -> None:
    render = text_format("{title}: {text} {0} {text.__class__}")
    assert render({"title": "T", "text": "{title}"}, 100) == "T: {title} {0} {text.__class__}"
    assert text_format("gsm8k")({"question": "q", "answer": "a"}, 100) == "Question: q\nAnswer: a"
    with pytest.raises(UserError, match="did you mean 'gsm8k'"):
        text_format("gsm8")


def test_the_root_of_the_file_system_is_not_searched_for_texts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="root of the file system"):
        next(text_files(Path(tmp_path.anchor)))
