from __future__ import annotations

import json
import random
import string
import time
from pathlib import Path

import pytest

from trc2.config import TokenizerConfig
from trc2.errors import UserError
from trc2.stream.tokenizer import END_OF_TEXT, PIECE, Tokenizer, load_tokenizer, train_bpe, without_overlong_words

WORDS = "the quick brown fox jumps over the lazy dog and runs away. " * 30


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe([WORDS], 300)


def test_a_saved_tokenizers_truncation_and_padding_are_switched_off(bpe: Tokenizer, tmp_path: Path) -> None:
    saved = Tokenizer.from_json(bpe.to_json()).backend
    saved.enable_truncation(5)
    saved.enable_padding(length=10)
    (tmp_path / "tokenizer.json").write_text(saved.to_str())
    loaded = load_tokenizer(TokenizerConfig(path=str(tmp_path)), None)
    for text in (WORDS, "a"):
        assert loaded.encode_batch([text]) == bpe.encode_batch([text])
    assert loaded.fingerprint() == bpe.fingerprint()
    assert Tokenizer.from_json(saved.to_str()).fingerprint() == bpe.fingerprint()


def test_special_tokens_in_a_text_are_text(bpe: Tokenizer) -> None:
    text = f"say {END_OF_TEXT} to end"
    ids = bpe.encode_batch([text])[0]
    assert bpe.end_of_text not in ids
    assert bpe.decode(ids) == text
    again = Tokenizer.from_json(bpe.to_json())
    assert again.encode_batch([text])[0] == ids


def test_special_tokens_in_a_text_are_control_tokens_if_asked_for(bpe: Tokenizer) -> None:
    asked = bpe.with_settings(True, False)
    assert asked.encode_batch([f"a{END_OF_TEXT}b"])[0].count(bpe.end_of_text) == 1
    assert asked.fingerprint() == bpe.fingerprint()
    assert not bpe.special_in_text
    assert asked.with_settings(False, False).encode_batch([END_OF_TEXT]) == bpe.encode_batch([END_OF_TEXT])
    assert not Tokenizer.from_json(asked.to_json()).special_in_text


def test_ordinary_text_is_trained_on_as_it_is() -> None:
    chinese = "我们在学习，语言模型。" * 300
    code = "x = {'a': [1, 2, 3]}\n" * 50 + "=" * 500
    accents = "e\u0301" * 5000  # to the pre-tokenizer, a letter and an accent are two words
    for text in (WORDS, chinese, code, accents, "", " ", "a" * 999):
        assert list(without_overlong_words(text)) == [text]


@pytest.mark.parametrize("sign", ["a", "7", "-", "_", " ", "\n", "漢", "\x1c!"])
def test_an_overlong_word_is_cut_and_nothing_is_lost(sign: str) -> None:
    text = "before " + sign * 5000 + " after"
    pieces = list(without_overlong_words(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= PIECE


@pytest.mark.parametrize("alphabet", ["a", string.ascii_lowercase, " "])
def test_a_word_of_a_megabyte_costs_no_more_than_its_bytes(alphabet: str) -> None:
    rng = random.Random(0)
    word = "".join(rng.choice(alphabet) for _ in range(1_000_000))
    begin = time.process_time()
    tokenizer = train_bpe([WORDS, word], 320)
    ids = tokenizer.encode_batch([word])[0]
    assert time.process_time() - begin < 20  # minutes, if the time grew with the square
    assert tokenizer.decode(ids) == word


def test_damaged_tokenizers_are_told_in_a_sentence(bpe: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    whole = bpe.to_json().encode()
    for content in (b"", b"{", b"[]", whole[: len(whole) // 2], whole.replace(b"<|endoftext|>", b"<|other|>"), b"\xff"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer\.json cannot be read|has no end-of-text token"):
            load_tokenizer(TokenizerConfig(path=str(tmp_path)), None)


def test_a_tokenizer_that_fails_on_a_text_is_told_in_a_sentence() -> None:
    import tokenizers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({END_OF_TEXT: 0, "known": 1}, unk_token="[UNK]"))
    with pytest.raises(UserError, match="cannot encode this text"):
        Tokenizer(words).encode_batch(["unknown"])


def test_the_vocabulary_reaches_to_the_largest_id() -> None:
    import tokenizers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({END_OF_TEXT: 0, "known": 70_000}, unk_token="known"))
    assert Tokenizer(words).vocab_size == 70_001


def rewritten(bpe: Tokenizer, **changes: object) -> str:
    return json.dumps({**json.loads(bpe.to_json()), **changes})


def test_a_first_token_beyond_the_vocabulary_is_refused(bpe: Tokenizer) -> None:
    first = {"type_id": 0, "id": "<s>"}
    special = {"<s>": {"id": "<s>", "ids": [70_000], "tokens": ["<s>"]}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    processor = {"type": "TemplateProcessing", "single": [{"SpecialToken": first}, text], "pair": [text],
                 "special_tokens": special}  # fmt: skip
    read = Tokenizer.from_json(rewritten(bpe, post_processor=processor))
    with pytest.raises(UserError, match="puts the token 70000 before a text, but it has only 299"):
        read.with_settings(False, True)


def test_a_tokenizer_that_cannot_be_read_again_is_refused(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "to_json", lambda: "{}")
    with pytest.raises(UserError, match="cannot be read again as it was written"):
        bpe.with_settings(True, False)


def test_a_pattern_that_never_ends_is_a_sentence(bpe: Tokenizer) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    read = Tokenizer.from_json(rewritten(bpe, pre_tokenizer=split))
    with pytest.raises(UserError, match="The tokenizer cannot encode this text"):
        read.encode_batch(["a" * 40 + "!"])


def test_a_folder_without_a_tokenizer_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"There is no .*tokenizer\.json: put the tokenizer there"):
            load_tokenizer(TokenizerConfig(path=str(path)), None)
