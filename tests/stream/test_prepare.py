from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import write_task
from trc2.config import RunConfig, StreamConfig
from trc2.errors import UserError
from trc2.stream.overlap import NGRAM, ngram_hashes
from trc2.stream.prepare import PreparedStream, prepare_stream


def stream(root: Path, **changes: object) -> StreamConfig:
    tasks = [{"name": "one", "folder": "one"}]
    settings = {"tasks": tasks, "data_root": root, "cache": root / "cache", "tokenizer": {"vocab_size": 300}}
    return StreamConfig(**{**settings, **changes})


def text_of(prepared: PreparedStream, task: str, split: str) -> str:
    return prepared.tokenizer.decode(np.asarray(prepared.tasks[task].tokens(split)).tolist())


def test_packed_tokens_are_the_documents_with_an_end_between_them(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=5)
    prepared = prepare_stream(stream(tmp_path))
    rows = [json.loads(line)["text"] for line in (tmp_path / "one" / "train.jsonl").read_text().splitlines()]
    assert text_of(prepared, "one", "train") == "".join(row + "<|endoftext|>" for row in rows)
    task = prepared.tasks["one"]
    starts = np.asarray(task.document_starts("train"))
    tokens = np.asarray(task.tokens("train"))
    assert len(starts) == task.splits["train"].documents == 5
    assert all(tokens[start - 1] == prepared.tokenizer.end_of_text for start in starts[1:])
    assert task.splits["train"].bytes == sum(len(row.encode()) for row in rows)


def test_nothing_changed_means_nothing_is_done_again(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    told: list[str] = []
    first = prepare_stream(stream(tmp_path), lambda task, split, *_: told.append(split))
    assert set(told) == {"tokenizer", "train", "validation", "test"}
    told.clear()
    again = prepare_stream(stream(tmp_path), lambda task, split, *_: told.append(split))
    assert told == []
    assert again.fingerprint() == first.fingerprint()


def test_changed_text_or_format_is_noticed_and_a_damaged_cache_is_made_anew(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    first = prepare_stream(stream(tmp_path))
    other = prepare_stream(stream(tmp_path, tasks=[{"name": "one", "folder": "one", "format": "<{text}>"}]))
    assert other.fingerprint() != first.fingerprint()
    damaged = first.tasks["one"].folder / "train.tokens"
    damaged.write_bytes(damaged.read_bytes()[:-2])
    assert prepare_stream(stream(tmp_path)).fingerprint() == first.fingerprint()
    path = tmp_path / "one" / "train.jsonl"
    path.write_text(path.read_text() + '{"text": "more"}\n')
    os.utime(path, ns=(1, 1))
    assert prepare_stream(stream(tmp_path)).fingerprint() != first.fingerprint()


def test_every_task_order_shares_the_tokenizer_and_the_fingerprint(tiny_run: Callable[..., RunConfig]) -> None:
    config = tiny_run().stream
    turned = config.replace(tasks=[task.model_dump() for task in reversed(config.tasks)])
    assert prepare_stream(turned).fingerprint() == prepare_stream(config).fingerprint()


def test_validation_is_carved_out_of_train_where_there_is_none(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=80)
    (tmp_path / "one" / "validation.jsonl").unlink()
    prepared = prepare_stream(stream(tmp_path, tasks=[{"name": "one", "folder": "one", "holdout": 0.25}]))
    train, held = (
        set(text_of(prepared, "one", split).split("<|endoftext|>")) - {""} for split in ("train", "validation")
    )
    assert len(train) + len(held) == 80
    assert 8 <= len(held) <= 35
    assert train.isdisjoint(held)


def test_overlap_between_train_and_evaluation_is_reported(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    write_task(tmp_path, "two", ["c", "d"])
    copied = (tmp_path / "one" / "train.jsonl").read_text().splitlines()[0]
    (tmp_path / "two" / "validation.jsonl").write_text(copied + "\n")
    tasks = [{"name": name, "folder": name} for name in ("one", "two")]
    overlap = prepare_stream(stream(tmp_path, tasks=tasks)).overlap
    assert overlap["two/validation"]["one"] > 0.99
    assert overlap["two/validation"]["two"] < 0.1


def test_ngram_hashes_tell_windows_apart() -> None:
    tokens = np.arange(100, dtype=np.uint16)
    assert len(np.unique(ngram_hashes(tokens))) == 100 - NGRAM + 1
    assert len(ngram_hashes(tokens[: NGRAM - 1])) == 0
    assert ngram_hashes(tokens)[3] == ngram_hashes(tokens[3:])[0]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: None, "is not a folder: set stream.data_root"),
        (lambda root: (root / "one").mkdir(), "has no train files"),
        (
            lambda root: ((root / "one").mkdir(), (root / "one" / "train.jsonl").write_text("{\n{\n")),
            "has no train text",
        ),
    ],
)
def test_missing_text_is_told_in_a_sentence(tmp_path: Path, prepare: Callable[[Path], object], message: str) -> None:
    prepare(tmp_path)
    with pytest.raises(UserError, match=message):
        prepare_stream(stream(tmp_path, tokenizer={"vocab_size": 300}))


def test_a_tokenizer_that_does_not_exist_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_task(tmp_path, "one", ["a"])
    with pytest.raises(UserError, match="There is no tokenizer 'nowhere/nothing'"):
        prepare_stream(stream(tmp_path, tokenizer={"path": "nowhere/nothing"}))
