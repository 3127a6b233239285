"""Texts handed over in Python are files like any others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.chats import messages
from trc2.config import StreamConfig, TaskConfig
from trc2.errors import UserError
from trc2.stream.sources import source_of
from trc2.stream.texts import keep_texts


def test_the_same_texts_are_the_same_files_and_come_back_when_they_are_lost(tmp_path: Path) -> None:
    def identity(folder: Path) -> object:
        task = TaskConfig(name="news", folder=str(folder))
        return source_of(task, StreamConfig(tasks=[task])).identity()

    first = keep_texts("news", ["one", "two\n\u2028"], tmp_path)
    known, inode = identity(first), (first / "train.jsonl").stat().st_ino
    assert keep_texts("news", (text for text in ["one", "two\n\u2028"]), tmp_path) == first
    assert (first / "train.jsonl").stat().st_ino == inode  # nothing was written again
    (first / "train.jsonl").write_text("damaged")
    assert keep_texts("news", ["one", "two\n\u2028"], tmp_path) == first
    assert identity(first) == known
    shutil.rmtree(first)
    assert keep_texts("news", ["one", "two\n\u2028"], tmp_path) == first
    assert identity(first) == known
    assert keep_texts("news", ["one", "two"], tmp_path) != first
    rows = [json.loads(line) for line in (first / "train.jsonl").read_bytes().split(b"\n")[:-1]]
    assert rows == [{"text": "one"}, {"text": "two\n\u2028"}]
    assert not [path for path in (tmp_path / "texts").iterdir() if path.name.startswith(".")]


def test_which_split_a_text_is_in_is_part_of_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    one = keep_texts("news", {"train": ["a", "b"], "test": ["c"]}, tmp_path)
    assert one.stat().st_mode == (tmp_path / "plain").stat().st_mode  # open to whom every folder is
    other = keep_texts("news", {"train": ["a", "b"], "validation": ["c"]}, tmp_path)
    assert one != other
    assert sorted(path.name for path in one.iterdir()) == ["test.jsonl", "train.jsonl"]


def test_rows_of_conversations_are_written_with_the_fields_that_are_read(tmp_path: Path) -> None:
    rows = [
        {"id": 1, **messages("one", "two")},
        {"prompt": "one", "completion": "two", "text": None},
        {"text": "three", "messages": []},
    ]
    written = (keep_texts("chat", rows, tmp_path) / "train.jsonl").read_text().splitlines()
    assert [json.loads(row) for row in written] == [
        messages("one", "two"), {"prompt": "one", "completion": "two"}, {"text": "three"},
    ]  # fmt: skip
    for bad in ({"prompt": "one"}, {"messages": [object()]}, 5):
        with pytest.raises(UserError, match=r"Text 1 of task 'chat' is .* 'messages', or 'prompt' and 'completion'"):
            keep_texts("chat", [bad], tmp_path)


def test_a_dataset_of_conversations_is_taken(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list([messages("one", "two"), messages("red", "blue")])
    written = (keep_texts("chat", dataset, tmp_path) / "train.jsonl").read_text().splitlines()
    assert [json.loads(row) for row in written] == [messages("one", "two"), messages("red", "blue")]
