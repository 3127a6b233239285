from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.chats import messages, write_rows, write_tokenizer
from tests.conftest import write_task
from trc2.config import StreamConfig
from trc2.stream.overlap import NGRAM, ngram_hashes, shared_by_document
from trc2.stream.prepare import prepare_stream


def test_every_document_knows_how_much_of_it_is_trained_on(tmp_path: Path) -> None:
    long = [" ".join(f"{letter}{n}" for n in range(40)) for letter in "abcd"]
    texts = {
        "old": {"train": ["zz yy " * 30], "validation": [long[0], long[1], f"{long[2]} {long[3]}", "hi you", "ho me"]},
        "new": {"train": [long[0], long[2], "hi you", "x " * 50], "validation": ["w " * 30]},
    }
    for task, splits in texts.items():
        (tmp_path / task).mkdir()
        for split, documents in splits.items():
            rows = "\n".join(json.dumps({"text": text}) for text in documents)
            (tmp_path / task / f"{split}.jsonl").write_text(rows)
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    (seeds / "a.txt").write_text(long[1])
    stream = StreamConfig(
        tasks=[{"name": name, "folder": name} for name in texts], data_root=tmp_path, cache=tmp_path / "cache",
        tokenizer={"vocab_size": 300}, replay_prefill_files=[str(seeds)],
    )  # fmt: skip
    prepared = prepare_stream(stream)
    shares = shared_by_document(prepared.tasks["old"], "validation", [prepared.tasks["new"]], tmp_path, lambda: None)
    assert shares[[0, 1, 3, 4]] == pytest.approx([1, 0, 1, 0])
    assert 0.3 < shares[2] < 0.6
    both = [prepared.tasks["new"], *prepared.seeds]  # a folder will do as well as a file
    assert shared_by_document(prepared.tasks["old"], "validation", both, tmp_path, lambda: None)[1] > 0.9
    (column,) = [name for name in prepared.overlap["old/validation"] if "seeds" in name]
    assert 0.1 < prepared.overlap["old/validation"][column] < 0.4


def test_overlap_between_train_and_evaluation_is_reported(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    write_task(tmp_path, "two", ["c", "d"])
    copied = (tmp_path / "one" / "train.jsonl").read_text().splitlines()[0]
    (tmp_path / "two" / "validation.jsonl").write_text(copied + "\n")
    tasks = [{"name": name, "folder": name} for name in ("one", "two")]
    stream = StreamConfig(tasks=tasks, data_root=tmp_path, cache=tmp_path / "cache", tokenizer={"vocab_size": 300})
    overlap = prepare_stream(stream).overlap
    assert overlap["two/validation"]["one"] > 0.99
    assert overlap["two/validation"]["two"] < 0.1


def test_ngram_hashes_tell_windows_apart() -> None:
    tokens = np.arange(100, dtype=np.uint16)
    assert len(np.unique(ngram_hashes(tokens))) == 100 - NGRAM + 1
    assert len(ngram_hashes(tokens[: NGRAM - 1])) == 0
    assert ngram_hashes(tokens)[3] == ngram_hashes(tokens[3:])[0]


def test_the_words_of_a_template_are_not_overlap(tmp_path: Path) -> None:
    """All conversations share a long message of the system, but one answer of the judged ones is trained on."""
    write_tokenizer(tmp_path / "tokenizer")
    rows = [messages(f"what is {n}", " ".join(f"{n}{m}" for m in range(20)), system="you are " * 40) for n in range(6)]
    write_rows(tmp_path / "old.jsonl", rows[:3])
    write_rows(tmp_path / "new.jsonl", rows[2:])
    stream = StreamConfig(
        tasks=[{"name": "old", "folder": "old.jsonl", "holdout": 1.0}, {"name": "new", "folder": "new.jsonl"}],
        data_root=tmp_path, cache=tmp_path / "cache", tokenizer={"path": str(tmp_path / "tokenizer")},
    )  # fmt: skip
    stream = stream.replace(tasks=(stream.tasks[0], stream.tasks[1].replace(holdout=0.0)))
    prepared = prepare_stream(stream)
    shares = shared_by_document(prepared.tasks["old"], "validation", [prepared.tasks["new"]], tmp_path, lambda: None)
    assert (shares[:2] < 0.2).all()
    assert shares[2] == pytest.approx(1.0)
    assert prepared.overlap["old/validation"]["new"] == pytest.approx(1 / 3, abs=0.15)
