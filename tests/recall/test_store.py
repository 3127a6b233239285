"""Documents on disk: packed, checked, and gone when they are removed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2 import UserError
from trc2.recall.gate import DEFAULT_WEIGHTS, Gate
from trc2.recall.store import Store, bits_per_token, pack, packed_bytes, read_store, store_path, unpack, write_store

VOCABULARY = 50
TOKENIZER = "a fingerprint"
GATE = Gate(DEFAULT_WEIGHTS, "by hand")
TEXTS = [("a.txt:1", [1, 2, 3, 4, 5]), ("a.txt:2", [1, 2, 3, 9]), ("b/c.txt:1", [7, 7, 7])]


def a_store() -> Store:
    store = Store(VOCABULARY, TOKENIZER, gate=GATE, keep=(np.asarray([4, 4]),), keep_source="files")
    return store.add(TEXTS)


def same(one: Store, two: Store) -> bool:
    documents = [[(d.number, d.sha256, d.source, d.tokens.tolist()) for d in s.documents] for s in (one, two)]
    facts = [(s.vocabulary, s.tokenizer, s.next_number, s.gate, s.keep_source) for s in (one, two)]
    kept = [[tokens.tolist() for tokens in s.keep] for s in (one, two)]
    return documents[0] == documents[1] and facts[0] == facts[1] and kept[0] == kept[1]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from((3, 4096, 4097, 65_536, 65_537, 256_000)), st.data())
def test_packed_tokens_come_back(vocabulary: int, data: st.DataObject) -> None:
    some = st.lists(st.integers(0, vocabulary - 1), max_size=9)
    documents = [np.asarray(tokens, dtype=np.int64) for tokens in data.draw(st.lists(some, max_size=4))]
    packed = pack(documents, vocabulary)
    assert len(packed) == packed_bytes(sum(map(len, documents)), vocabulary)
    again = unpack(packed, [len(document) for document in documents], vocabulary)
    assert [tokens.tolist() for tokens in again] == [tokens.tolist() for tokens in documents]


def test_tokens_take_as_few_bits_as_the_vocabulary_allows() -> None:
    assert [bits_per_token(v) for v in (4096, 4097, 65_536, 65_537)] == [12, 16, 16, 32]
    assert packed_bytes(793_600, 4096) == 1_190_400


def test_a_store_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_store(tmp_path, VOCABULARY, TOKENIZER) is None
    write_store(tmp_path, a_store())
    again = read_store(tmp_path, VOCABULARY, TOKENIZER)
    assert again is not None
    assert same(again, a_store())
    assert [path.name for path in (tmp_path / "recall").iterdir()] == ["store.safetensors"]


def test_removing_what_was_added_restores_every_array_of_the_counts() -> None:
    store = a_store()
    more = store.add([("new.txt", [1, 2, 3, 4, 1, 2, 3, 9])])
    assert more.counts().levels[-1].totals.sum() > store.counts().levels[-1].totals.sum()
    again = more.remove({4})
    for old, new in zip(store.counts().levels, again.counts().levels, strict=True):
        for field in dataclasses.fields(old):
            assert np.array_equal(getattr(old, field.name), getattr(new, field.name))


def test_numbers_are_never_used_again_and_equal_documents_are_stored_once() -> None:
    store = a_store().add([("again.txt", [7, 7, 7]), ("new.txt", [8])])
    assert [document.number for document in store.documents] == [1, 2, 3, 4]
    store = store.remove({4}).add([("newer.txt", [8])])
    assert store.documents[-1].number == 5
    assert store.documents[-1].name.startswith("5-")


def test_documents_that_hold_some_tokens_are_found() -> None:
    store = a_store()
    assert store.holders([1, 2, 3]) == {1: 1, 2: 1}
    assert store.holders([7, 7]) == {3: 2}
    assert store.holders([5, 1]) == {}  # the end of one document and the beginning of the next
    assert store.holders([7]) == {3: 3}
    assert store.holders([49]) == store.holders([]) == store.holders(list(range(40))) == {}


def test_a_store_without_documents_is_removed(tmp_path: Path) -> None:
    write_store(tmp_path, a_store())
    write_store(tmp_path, a_store().remove({1, 2, 3}))
    assert not store_path(tmp_path).exists()
    assert read_store(tmp_path, VOCABULARY, TOKENIZER) is None


def _rewrite(path: Path, **changes: object) -> None:
    """Another content with a valid checksum, as a mistaken program might write it."""
    from trc2.recall.store import _checksum

    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    tensors = safetensors.numpy.load(content)
    changed = {**json.loads(metadata["store"]), **changes}
    del changed["sha256"]
    changed["sha256"] = _checksum(changed, tensors)
    path.write_bytes(safetensors.numpy.save(tensors, metadata={"store": json.dumps(changed)}))


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_flip, "is damaged, its checksum differs"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "cannot be read"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: path.write_bytes(safetensors.numpy.save({"x": np.zeros(3)})), "cannot be read"),
        (lambda path: _rewrite(path, schema=9), "has schema 9"),
        (lambda path: _rewrite(path, vocabulary=51), "another tokenizer"),
        (lambda path: _rewrite(path, tokenizer="x"), "another tokenizer"),
        (lambda path: _rewrite(path, documents=[[1, "0", "a", 4]]), "cannot be read"),
        (lambda path: _rewrite(path, documents=[[1, "0", "a", 12]]), "not what was taught"),
        (lambda path: _rewrite(path, documents=[1]), "cannot be read"),
        (lambda path: _rewrite(path, gate={"weights": [1.0], "reason": ""}), "cannot be read"),
        (lambda path: (path.unlink(), path.mkdir()), "recall"),
    ],
)
def test_a_damaged_store_is_told_in_a_sentence(tmp_path: Path, damage: object, message: str) -> None:
    write_store(tmp_path, a_store())
    damage(store_path(tmp_path))  # type: ignore[operator]
    with pytest.raises(UserError, match=message) as caught:
        read_store(tmp_path, VOCABULARY, TOKENIZER)
    assert "\n" not in str(caught.value)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "recall").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        write_store(tmp_path, a_store())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=12), min_size=1, max_size=12), st.integers(1, 40))
def test_a_limit_keeps_a_sample_that_does_not_depend_on_the_order(documents: list[list[int]], limit: int) -> None:
    texts = [("source", ids) for ids in documents]
    at_once = Store(100, "t", max_bytes=limit).add(texts).within_limit()
    one_by_one = Store(100, "t", max_bytes=limit)
    for text in reversed(texts):
        one_by_one = one_by_one.add([text]).within_limit()
    assert {d.sha256 for d in at_once.documents} == {d.sha256 for d in one_by_one.documents}
    assert at_once.num_bytes <= limit
    least = min(packed_bytes(len(ids), 100) for ids in documents)
    assert bool(at_once.documents) == (least <= limit)


def test_a_limit_is_kept_in_the_file(tmp_path: Path) -> None:
    write_store(tmp_path, Store(100, "t", max_bytes=30).add([("source", [1, 2, 3])]))
    again = read_store(tmp_path, 100, "t")
    assert again is not None
    assert again.max_bytes == 30
