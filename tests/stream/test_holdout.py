from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from trc2.stream.document import Document
from trc2.stream.holdout import Holdout, OnlyOneDocument, place_of


def corpus(count: int, name: str = "train.jsonl") -> list[Document]:
    return [Document(f"text {number}", f"{name}:{number}") for number in range(1, count + 1)]


def parts(documents: list[Document], share: float) -> tuple[list[Document], list[Document]]:
    rule = Holdout.of(documents, share)
    return list(rule.kept(documents)), list(rule.held_out(documents))


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("name", ["train.jsonl", "a.txt", "b.parquet"])
def test_both_sides_have_a_document_whatever_their_number(share: float, name: str) -> None:
    for count in range(2, 40):
        kept, held = parts(corpus(count, name), share)
        assert kept
        assert held
        assert sorted(d.where for d in kept + held) == sorted(d.where for d in corpus(count, name))


def test_where_chance_gives_both_sides_something_it_alone_decides() -> None:
    documents = corpus(400)
    kept, held = parts(documents, 0.05)
    assert held == [document for document in documents if place_of(document.content) < 0.05]
    assert len(kept) + len(held) == 400


def test_documents_added_later_move_no_earlier_one() -> None:
    before, after = parts(corpus(300), 0.05)[1], parts(corpus(500), 0.05)[1]
    assert after[: len(before)] == before


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("count", [2, 5, 300])
def test_equal_documents_are_on_one_side_wherever_they_come_from(count: int, share: float) -> None:
    kept, held = parts([*corpus(count), *corpus(count, "copy.jsonl")], share)
    assert not {document.text for document in kept} & {document.text for document in held}
    assert kept
    assert held


def test_copies_of_a_single_document_are_cut_like_one() -> None:
    kept, held = parts([Document("two words", f"a.txt:{number}") for number in range(3)], 0.5)
    assert ({document.text for document in kept}, {document.text for document in held}) == ({"two"}, {"words"})


def test_a_large_corpus_is_not_read_to_its_end() -> None:
    read = 0

    def endless() -> Iterator[Document]:
        nonlocal read
        while True:
            read += 1
            yield Document(f"text {read}", "train.jsonl")

    Holdout.of(endless(), 0.05)
    assert read < 200
    before = read
    assert list(Holdout.of(endless(), 0.0).held_out(endless())) == []
    assert read == before


def test_nothing_is_held_out_of_nothing_or_if_nothing_is_asked_for() -> None:
    assert parts([], 0.05) == ([], [])
    assert parts(corpus(1), 0.0) == (corpus(1), [])
    with pytest.raises(OnlyOneDocument):
        parts([Document("word", "a.txt:1")], 0.05)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.99])
@pytest.mark.parametrize(
    "text", ["two words", "a\nb", "One.\n\nTwo.\n\nThree.\n\nFour.", "word " * 1000, "x" * 5000 + " y", " a b "]
)
def test_the_end_of_a_single_document_is_held_out(text: str, share: float) -> None:
    (kept,), (held,) = parts([Document(text, "a.txt:1")], share)
    assert kept.text
    assert held.text
    assert "".join((kept.text + held.text).split()) == "".join(text.split())  # nothing lost, nothing twice
    assert len(parts([Document("word " * 1000, "a.txt:1")], 0.05)[1][0].text) == pytest.approx(250, abs=10)


def test_places_are_spread_evenly() -> None:
    rng = random.Random(0)
    places = [place_of(rng.randbytes(20)) for _ in range(4000)]
    assert all(0 <= place < 1 for place in places)
    assert abs(sum(place < 0.25 for place in places) / 4000 - 0.25) < 0.03
