"""What `config/stream.py` refuses, in one sentence each."""

from __future__ import annotations

import pytest

from trc2.config import StreamConfig, TaskConfig
from trc2.errors import UserError


def task(**settings: object) -> TaskConfig:
    return TaskConfig(**{"name": "news", "folder": "news", **settings})


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("pattern", ["/etc/passwd", "../other/train", "a/../../b", "..", "/*"])
def test_a_split_stays_below_its_folder(split: str, pattern: str) -> None:
    with pytest.raises(UserError, match=rf"splits.{split}='.*' leaves the task's folder: give a file name"):
        task(splits={split: pattern})


def test_ordinary_patterns_are_taken() -> None:
    for pattern in ("train", "*.txt", "**/*.jsonl", "part/train", "a[1].jsonl", "notes..txt", "...", "~x.txt", "."):
        assert task(splits={"train": pattern}).splits.train == pattern


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"splits": {"train": ""}}, "splits.train is empty"),
        ({"splits": {"train": "  "}}, "splits.train is empty"),
        ({"splits": {"train": "x" * 2000}}, "splits.train"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a/b"}, "name"),
        ({"holdout": 1.1}, "holdout=1.1 is not valid"),
        ({"holdout": -0.1}, "holdout"),
        ({"max_document_bytes": 2**40}, "max_document_bytes"),
        ({"max_document_bytes": 2**64}, "max_document_bytes"),
        ({"max_document_bytes": 0}, "max_document_bytes"),
    ],
)
def test_settings_that_could_not_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        task(**settings)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("vocab_size", [256, 2**20 + 1, 2**63])
def test_a_vocabulary_has_a_size_that_can_be_trained(vocab_size: int) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size"):
        StreamConfig(tasks=[{"name": "x", "builtin": "prose"}], tokenizer={"vocab_size": vocab_size})


def test_no_path_holds_a_nul_character() -> None:
    for settings in ({"folder": "a\0b"}, {"splits": {"train": "a\0b"}}):
        with pytest.raises(UserError, match="NUL"):
            task(**settings)
    for name in ("data_root", "cache"):
        with pytest.raises(UserError, match="NUL"):
            StreamConfig(tasks=[{"name": "x", "builtin": "prose"}], **{name: "a\0b"})


TASKS = [{"name": name, "builtin": name} for name in ("prose", "code", "arithmetic")]


def test_an_order_changes_what_is_trained_when_and_nothing_else() -> None:
    listed, other = StreamConfig(tasks=TASKS), StreamConfig(tasks=TASKS, order=["code", "arithmetic", "prose"])
    assert [task.name for task in listed.trained] == ["prose", "code", "arithmetic"]
    assert [task.name for task in other.trained] == ["code", "arithmetic", "prose"]
    assert other.tasks == listed.tasks
    assert [task.name for task in other.model_copy(update={"only": ("prose", "code")}).trained] == ["code", "prose"]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["code", "prose"], r"order=\[code, prose\] is not an order of the tasks: name prose, code, arithmetic once"),
        (["code", "code", "prose", "arithmetic"], "is not an order of the tasks"),
        ([], "is not an order of the tasks"),
        ("code", r"order=\[code\] is not an order of the tasks"),
        (3, "order=3 is not a list of names"),
        ([1, 2, 3], "is not a list of names"),
        ("all", "order=all is many runs: give it to `trc2 sweep`"),
    ],
)
def test_what_is_no_order_is_refused(order: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        StreamConfig(tasks=TASKS, order=order)
