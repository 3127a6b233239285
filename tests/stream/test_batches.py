from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chats import conversations, write_rows, write_tokenizer
from trc2.config import RunConfig, StreamConfig
from trc2.errors import UserError
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.stream.batches import Mixture, TaskData, permute
from trc2.stream.packed import COUNTED, PreparedTask
from trc2.stream.prepare import prepare_stream


@settings(deadline=None, max_examples=60)
@given(size=st.integers(1, 3000), seed=st.integers(0, 50))
def test_permute_is_a_permutation(size: int, seed: int) -> None:
    assert sorted(permute(np.arange(size), size, ("x", seed)).tolist()) == list(range(size))


def test_permute_shuffles_and_depends_on_its_key() -> None:
    one, two = (permute(np.arange(1000), 1000, ("x", seed)) for seed in (1, 2))
    assert (one == two).mean() < 0.02
    assert abs(np.corrcoef(one, np.arange(1000))[0, 1]) < 0.1


@pytest.fixture
def task(tiny_run: Callable[..., RunConfig]) -> PreparedTask:
    return prepare_stream(tiny_run().stream).tasks["fruit"]


def data_of(task: PreparedTask, **changes: int) -> TaskData:
    settings = {"length": 16, "batch_size": 2, "micro_batches": 2, "seed": 0, "control_batches": 3, **changes}
    return TaskData(task, 0, **settings)


def rows(data: TaskData, steps: range) -> list[tuple[int, ...]]:
    return [tuple(row) for step in steps for batch in data.train_batches(step) for row in batch.x.tolist()]


def test_targets_are_the_next_tokens(task: PreparedTask) -> None:
    for batch in data_of(task).train_batches(5):
        assert torch.equal(batch.x[:, 1:], batch.y[:, :-1])


def test_an_epoch_visits_every_window_once_and_never_the_control_subset(task: PreparedTask) -> None:
    data = data_of(task)
    steps = data.num_pool // 4
    visited = Counter(rows(data, range(steps)))
    assert max(visited.values()) == 1
    control = {tuple(row) for batch in data.control_batches(4) for row in batch.x.tolist()}
    assert len(control) == data.num_control == 6
    assert control.isdisjoint(visited)
    assert sorted(rows(data, range(steps))) != rows(data, range(steps))
    assert set(rows(data, range(3 * steps))).isdisjoint(control)


def test_a_step_is_the_same_whoever_asks_and_whenever(task: PreparedTask) -> None:
    assert rows(data_of(task), range(7, 8)) == rows(data_of(task), range(8))[-4:]
    assert rows(data_of(task, seed=1), range(1)) != rows(data_of(task), range(1))
    # how a step's sequences are cut into micro-batches does not change which they are
    assert rows(data_of(task, batch_size=4, micro_batches=1, control_batches=1), range(1)) == rows(
        data_of(task, batch_size=1, micro_batches=4, control_batches=4), range(1)
    )


def test_evaluation_covers_every_token_of_the_split_once(task: PreparedTask) -> None:
    data = data_of(task)
    targets = [token for batch in data.eval_batches("validation", 3) for row in batch.y.tolist() for token in row]
    assert targets == np.asarray(task.tokens("validation"))[1:].tolist()
    assert len(list(data.eval_batches("validation", 3, max_batches=2))) == 2


def test_rows_know_their_document_and_position(task: PreparedTask) -> None:
    data = data_of(task)
    starts, tokens = np.asarray(task.document_starts("train")), np.asarray(task.tokens("train"))
    for batch in data.train_batches(3):
        place = starts[batch.origin.document.numpy()] + batch.origin.position.numpy()
        assert np.array_equal(tokens[place], batch.x.numpy())


def test_too_little_text_for_one_step_is_told_in_a_sentence(task: PreparedTask) -> None:
    with pytest.raises(UserError, match=r"one step takes 4000: give it more text"):
        data_of(task, batch_size=1000, micro_batches=4)


def test_targets_outside_of_answers_are_ignored(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    write_rows(tmp_path / "train.jsonl", [{"text": "the sky is blue"}, *conversations(40)])
    settings = {"data_root": tmp_path, "cache": tmp_path / "cache", "tokenizer": {"path": str(tmp_path / "tokenizer")}}
    tasks = [{"name": "one", "folder": "train.jsonl"}]
    task = prepare_stream(StreamConfig(tasks=tasks, **settings)).tasks["one"]
    tokens, labels = np.asarray(task.tokens("train")), task.labels("train")
    assert labels is not None
    seen = 0
    for batch in data_of(task).eval_batches("train", 4):
        for x, y in zip(batch.x.tolist(), batch.y.tolist(), strict=True):
            assert x == tokens[seen : seen + len(x)].tolist()
            following = range(seen + 1, seen + 1 + len(x))
            assert y == [int(tokens[place]) if labels[place] & COUNTED else IGNORE_INDEX for place in following]
            seen += len(x)
    assert seen == len(tokens) - 1
    counted = sum(batch.num_labels for batch in data_of(task).eval_batches("train", 4))
    is_counted_first = bool(labels[0] & COUNTED)  # but nothing predicts the first token
    assert counted == task.splits["train"].counted - is_counted_first
    joined = Mixture([data_of(task)], [3]).train_batches(0)
    assert all((batch.y == IGNORE_INDEX).any() for batch in joined)
