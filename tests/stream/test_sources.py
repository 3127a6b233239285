from __future__ import annotations

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


def test_splits_a_dataset_does_not_have_are_carved_or_empty(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=40)
    (tmp_path / "one" / "validation.jsonl").unlink()
    (tmp_path / "one" / "test.jsonl").unlink()
    source = DatasetSource(TaskConfig(name="one", dataset=str(tmp_path / "one"), holdout=0.3))
    train, held = texts(source, "train"), texts(source, "validation")
    assert len(train) + len(held) == 40
    assert held
    assert set(train).isdisjoint(held)
    assert texts(source, "test") == []


def test_datasets_that_cannot_be_had_are_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
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
