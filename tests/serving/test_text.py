"""Text while its tokens arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.serving.conftest import TEXT
from trc2.serving.text import GrowingText, token_offsets, token_text
from trc2.stream.tokenizer import train_bpe

TOKENIZER = train_bpe(TEXT, 300)
TEXTS = st.text(alphabet="ab größ日 .", max_size=40)


def first_stop(ids: list[int], stop: list[str]) -> int | None:
    """Where the text ends: at the first stop sequence, as soon as the tokens so far contain one."""
    for end in range(1, len(ids) + 1):
        text = TOKENIZER.decode(ids[:end])
        if starts := [text.find(word) for word in stop if word in text]:
            return min(starts)
    return None


@given(TEXTS, st.lists(st.text(alphabet="ab ö日", min_size=1, max_size=4), max_size=3))
def test_pieces_add_up_to_the_text_before_the_first_stop_sequence(text: str, stop: list[str]) -> None:
    ids = TOKENIZER.encode_batch([text])[0]
    growing = GrowingText(TOKENIZER, stop)
    pieces = []
    for token in ids:
        pieces.append(growing.add(token))
        assert not any(word in "".join(pieces) for word in stop)
        if growing.is_stopped:
            break
    else:
        pieces.append(growing.rest())
    end = first_stop(ids, stop)
    assert "".join(pieces) == text[:end]
    assert growing.is_stopped == (end is not None)


def test_the_start_of_a_stop_sequence_is_held_back_until_it_is_decided() -> None:
    growing = GrowingText(TOKENIZER, ["abc"])
    ids = [TOKENIZER.encode_batch([letter])[0][0] for letter in "xabab"]
    assert [growing.add(token) for token in ids] == ["x", "", "", "ab", ""]
    assert growing.rest() == "ab"


@given(TEXTS)
def test_the_place_of_a_token_is_where_its_text_begins(text: str) -> None:
    ids = TOKENIZER.encode_batch([text])[0]
    offsets = token_offsets(TOKENIZER, ids)
    assert offsets[-1] == len(text)
    for number, token in enumerate(ids):
        piece = token_text(TOKENIZER, token)
        if not piece.startswith("<token "):
            assert text[offsets[number] :].startswith(piece)


@given(TEXTS)
def test_a_part_of_a_character_does_not_move_the_next_token(text: str) -> None:
    ids = TOKENIZER.encode_batch([text])[0]
    growing, places = GrowingText(TOKENIZER), [0]
    for token in ids:
        growing.add(token)
        places.append(growing.num_whole)
    assert places == token_offsets(TOKENIZER, ids)
