from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.conftest import write_task
from trc2.config import StreamConfig, TaskConfig
from trc2.errors import UserError
from trc2.stream.document import BadRows
from trc2.stream.sources import DatasetSource, FileSource, source_of


def texts(source: DatasetSource | FileSource, split: str) -> list[str]:
    return [document.text for document in source.documents(split, BadRows())]


def test_a_dataset_is_read_split_by_split(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=20)
    source = DatasetSource(TaskConfig(name="one", dataset=str(tmp_path / "one")))
    files = FileSource(TaskConfig(name="one", folder="one"), tmp_path / "one")
    for split in ("train", "validation", "test"):
        assert texts(source, split) == texts(files, split)


def test_datasets_that_cannot_be_had_are_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="cannot be loaded"):
        texts(DatasetSource(TaskConfig(name="x", dataset="nobody/nothing-at-all")), "train")
    write_task(tmp_path, "one", ["a"])
    wrong = TaskConfig(name="one", dataset=str(tmp_path / "one"), splits={"train": "trian"})
    with pytest.raises(UserError, match="did you mean 'train'"):
        texts(DatasetSource(wrong), "train")


def test_the_data_root_decides_between_folder_and_dataset(tmp_path: Path) -> None:
    task = TaskConfig(name="x", folder="x", dataset="some/thing")
    assert isinstance(source_of(task, StreamConfig(tasks=[task.model_dump()], data_root=tmp_path)), FileSource)
    assert isinstance(source_of(task, StreamConfig(tasks=[task.model_dump()])), DatasetSource)
    with pytest.raises(UserError, match="has no source"):
        TaskConfig(name="x")
    with pytest.raises(UserError, match="appears twice"):
        StreamConfig(tasks=[task.model_dump(), task.model_dump()])


def test_files_that_no_split_takes_are_said(tmp_path: Path) -> None:
    folder = tmp_path / "news"
    for name in ("train.txt", "training.txt", "a.txt", "more/b.jsonl.gz", "paper.pdf"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    source = FileSource(TaskConfig(name="news", folder="news"), folder)
    assert source.remarks() == [
        "news: 3 files are in no split and were ignored (first: a.txt): name them by splits.train, "
        "e.g. splits.train='*.txt'."
    ]
    by_pattern = TaskConfig(name="news", folder="news", splits={"train": "*.txt", "validation": None})
    assert FileSource(by_pattern, folder).remarks() == [
        "news: more/b.jsonl.gz is in no split and was ignored: name it by splits.train, "
        "e.g. splits.train='**/*.jsonl.gz'."
    ]
    one_file = TaskConfig(name="news", folder="news", splits={"train": "a.txt", "validation": None})
    assert FileSource(one_file, folder).remarks() == []
    assert source.notes() == ["news: 1 file taken (1 .txt); 1 of other kinds ignored (paper.pdf)."]
    assert FileSource(one_file, folder).notes() == ["news: 1 file taken (1 .txt)."]


def test_a_folder_without_train_files_names_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "training.txt").write_text("text")
    source = FileSource(TaskConfig(name="news", folder="news", splits={"train": "*.jsonl"}), tmp_path)
    with pytest.raises(UserError, match=r"but 1 of other names \(first: training.txt\).*splits.train, e.g. '\*.txt'\."):
        texts(source, "train")
    (tmp_path / "training.txt").rename(tmp_path / "training.pdf")
    with pytest.raises(UserError, match=r"\(1 of no known kind, first: training.pdf\): put text there, .txt, .md"):
        texts(FileSource(TaskConfig(name="news", folder="news"), tmp_path), "train")


def any_text(folder: Path) -> None:
    """What people have: a folder of many kinds, nested, some of it compressed, some of it no text."""
    import pyarrow
    import pyarrow.parquet
    import zstandard

    names = ("a.txt", "deep/b.md", "deep/er/a.txt", "main.py", "one.PDF", "deep/picture.png", ".h.txt", ".git/x.txt")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"The text of {name}.\n")
    (folder / "rows.jsonl").write_text('{"text": "row one"}\n{"text": "row two"}\n')
    (folder / "deep" / "c.txt.gz").write_bytes(gzip.compress(b"gzipped text"))
    (folder / "d.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "zstd row"}\n'))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["parquet row"]}), folder / "deep" / "e.parquet")


def test_any_folder_of_text_is_a_task(tmp_path: Path) -> None:
    any_text(tmp_path)
    source = FileSource(TaskConfig(name="mine", folder="mine"), tmp_path)
    train, held = texts(source, "train"), texts(source, "validation")
    assert held
    assert sorted([*train, *held]) == sorted(
        ["The text of a.txt.", "The text of deep/b.md.", "The text of deep/er/a.txt.", "The text of main.py.",
         "row one", "row two", "gzipped text", "zstd row", "parquet row"]
    )  # fmt: skip
    (note,) = source.notes()
    assert note == (
        "mine: 8 files taken (2 .txt, 1 .jsonl.zst, 1 .py, 1 .jsonl, 1 .md, …); "
        "2 of other kinds ignored (one.PDF, picture.png)."
    )
    assert source.remarks() == []
    places = [document.where for document in source.documents("train", BadRows())]
    places += [document.where for document in source.documents("validation", BadRows())]
    assert {"a.txt:1", "deep/er/a.txt:1"} <= set(places)  # else both would always be on the same side


def test_a_file_without_an_ending_is_text_unless_it_is_binary(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("Copy it as you like.")
    (tmp_path / "COPYING").write_text("Copy it as we like.")
    (tmp_path / "a.out").write_bytes(b"text?")
    (tmp_path / "program").write_bytes(b"\x7fELF\0\0")
    source = FileSource(TaskConfig(name="laws", folder="laws"), tmp_path)
    assert sorted([*texts(source, "train"), *texts(source, "validation")]) == [
        "Copy it as we like.", "Copy it as you like.",
    ]  # fmt: skip
    assert sorted(path.name for path in source._files_without_text()) == ["a.out", "program"]


def test_the_root_of_a_disk_is_not_a_folder_of_text() -> None:
    with pytest.raises(UserError, match="root of the file system: name the folder that holds the texts of task"):
        FileSource(TaskConfig(name="all", folder="/"), Path("/")).files["train"]


def test_text_of_another_encoding_is_read_when_the_task_names_it(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes("café crème brûlée".encode("latin-1"))
    (tmp_path / "two.jsonl").write_bytes('{"text": "naïve"}\n'.encode("latin-1"))
    task = TaskConfig(name="menu", folder="menu", encoding="latin-1")
    source = FileSource(task, tmp_path)
    assert sorted([*texts(source, "train"), *texts(source, "validation")]) == ["café crème brûlée", "naïve"]
    for wrong in ("utf-16", "latin-99", "hex"):
        with pytest.raises(UserError, match=f"encoding='{wrong}'"):
            TaskConfig(name="menu", folder="menu", encoding=wrong)
    assert task.reading()["encoding"] == "iso8859-1"


def test_a_task_that_is_one_word_beside_undecodable_lines_says_so(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_bytes("café crème\nword\n".encode("latin-1"))
    source = FileSource(TaskConfig(name="menu", folder="menu"), tmp_path)
    with pytest.raises(UserError, match=r"only one word.*1 invalid UTF-8 \(first at l.txt:1\).*encoding"):
        texts(source, "train")


def test_what_is_called_validation_is_not_trained_on(tmp_path: Path) -> None:
    for name in ("one.txt", "two.md", "validation.txt", "test/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"The text of {name}.")
    source = FileSource(TaskConfig(name="mine", folder="mine"), tmp_path)
    assert texts(source, "train") == ["The text of one.txt.", "The text of two.md."]
    assert texts(source, "validation") == ["The text of validation.txt."]
    assert texts(source, "test") == ["The text of test/x.txt."]
    assert source.notes() == ["mine: 4 files taken (3 .txt, 1 .md): 2 train, 1 validation, 1 test."]


def test_one_file_is_a_task(tmp_path: Path) -> None:
    path = tmp_path / "book.md"
    path.write_text("\n\n".join(f"Paragraph {number}, which says something." for number in range(40)))
    stream = StreamConfig(tasks=[{"name": "book", "folder": str(path)}])
    source = source_of(stream.tasks[0], stream)
    assert isinstance(source, FileSource)
    train, held = texts(source, "train"), texts(source, "validation")
    assert (len(train), len(held)) == (1, 1)
    assert train[0].startswith("Paragraph 0,")
    assert held[0].endswith("Paragraph 39, which says something.")
    assert source.notes() == ["book: 1 file taken (1 .md)."]
    assert source.remarks() == []


@pytest.mark.parametrize("documents", range(2, 12))
@pytest.mark.parametrize("kind", ["files", "dataset"])
def test_validation_is_carved_out_of_however_few_documents(tmp_path: Path, documents: int, kind: str) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=documents)
    (tmp_path / "one" / "validation.jsonl").unlink()
    (tmp_path / "one" / "test.jsonl").unlink()
    if kind == "files":
        source: FileSource | DatasetSource = FileSource(TaskConfig(name="one", folder="one"), tmp_path / "one")
    else:
        source = DatasetSource(TaskConfig(name="one", dataset=str(tmp_path / "one")))
    train, held = texts(source, "train"), texts(source, "validation")
    assert train
    assert held
    assert len({*train, *held}) == documents
    assert texts(source, "test") == []


def test_a_single_word_of_train_text_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("Word.")
    source = FileSource(TaskConfig(name="one", folder="one"), tmp_path)
    for split in ("train", "validation"):
        with pytest.raises(UserError, match=r"'one' has only one word of train text .*: put more text there"):
            texts(source, split)
    assert texts(FileSource(TaskConfig(name="one", folder="one", holdout=0.0), tmp_path), "train")


def test_bad_rows_of_a_carved_split_are_counted_once(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=60)
    (tmp_path / "one" / "validation.jsonl").unlink()
    with (tmp_path / "one" / "train.jsonl").open("a") as file:
        file.write("no json\n" * 3)
    source = FileSource(TaskConfig(name="one", folder="one"), tmp_path / "one")
    counts = []
    for split in ("train", "validation"):
        bad = BadRows()
        assert list(source.documents(split, bad))
        counts.append(bad.total())
    assert counts == [3, 0]


def test_a_dataset_that_breaks_while_it_is_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=20)
    (tmp_path / "one" / "train.jsonl").write_text('{"text": "one"}\n{"text": [[[\n')
    source = DatasetSource(TaskConfig(name="one", dataset=str(tmp_path / "one"), streaming=True))
    with pytest.raises(UserError, match="cannot be loaded"):
        texts(source, "train")


def test_home_folders_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_task(tmp_path / "data", "one", ["a"])
    for root, folder in (("~/data", "one"), (None, "~/data/one")):
        stream = StreamConfig(tasks=[{"name": "x", "folder": folder}], data_root=root)
        source = source_of(stream.tasks[0], stream)
        assert isinstance(source, FileSource)
        assert len(texts(source, "train")) == 60
    nobody = StreamConfig(tasks=[{"name": "x", "folder": "one"}], data_root="~nobody-of-this-name/data")
    with pytest.raises(UserError, match="home of a user that is not known here"):
        source_of(nobody.tasks[0], nobody)


def test_a_link_to_a_device_is_refused_instead_of_read_for_ever(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").symlink_to("/dev/zero")
    source = FileSource(TaskConfig(name="one", folder="one"), tmp_path)
    with pytest.raises(UserError, match="is a pipe or a device"):
        source.identity()
    with pytest.raises(UserError, match="is a pipe or a device"):
        texts(source, "train")
