"""Answers in conversations: where a template writes them, and which tokens cover them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chats import CHATML, MARKED, messages, write_tokenizer
from trc2.errors import UserError
from trc2.stream.answers import Encoder, answer_labels, plain_answer_labels
from trc2.stream.chat import read_template
from trc2.stream.conversation import PackedRow
from trc2.stream.document import BadRows, Document, render_row, text_format
from trc2.stream.packed import COUNTED, IN_CHAT
from trc2.stream.tokenizer import Tokenizer


def document(row: dict[str, Any]) -> Document:
    bad = BadRows()
    documents = list(render_row(row, "row", text_format("text", with_chat=True), 10_000, bad))
    assert documents, bad.counts
    return documents[0]


def pieces(tokenizer: Tokenizer, row: dict[str, Any], **settings: bool) -> tuple[str, str]:
    """All text of a packed conversation, and the text of the tokens that count."""
    bad = BadRows()
    encoded = Encoder(tokenizer, "task", **settings).encode([document(row)], bad)
    assert encoded, bad.counts
    labels = encoded[0].labels
    assert labels is not None
    assert (labels & IN_CHAT).all()
    counted = [identity for identity, label in zip(encoded[0].ids, labels, strict=True) if label & COUNTED]
    return tokenizer.decode(encoded[0].ids), tokenizer.decode(counted)


def fault(tokenizer: Tokenizer, row: dict[str, Any]) -> str:
    """Why a row is skipped."""
    bad = BadRows()
    documents = list(render_row(row, "row", text_format("text", with_chat=True), 10_000, bad))
    assert Encoder(tokenizer, "task").encode(documents, bad) == []
    return next(iter(bad.counts))


def test_a_hand_written_example(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path)
    row = messages("what colour", "red", "and now", "blue", system="you are brief")
    encoded = Encoder(tokenizer, "task").encode([document(row)], BadRows())[0]

    def ids(text: str) -> list[int]:
        return tokenizer.encode_batch([text])[0]

    begin, end, final = (tokenizer.backend.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    parts: list[tuple[list[int], int]] = [
        ([begin, *ids("system\nyou are brief"), end, *ids("\n")], 0),
        ([begin, *ids("user\nwhat colour"), end, *ids("\n")], 0),
        ([begin, *ids("assistant\n")], 0), ([*ids("red"), end], 1), (ids("\n"), 0),
        ([begin, *ids("user\nand now"), end, *ids("\n")], 0),
        ([begin, *ids("assistant\n")], 0), ([*ids("blue"), end], 1), (ids("\n"), 0),
        ([final], 1),
    ]  # fmt: skip
    assert encoded.ids == [identity for part, _ in parts for identity in part]
    assert encoded.labels is not None
    assert (encoded.labels & COUNTED).tolist() == [label for part, label in parts for _ in part]


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_marks_and_prefixes_find_the_same_answers(tmp_path: Path, template: str) -> None:
    tokenizer = write_tokenizer(tmp_path, template)
    whole, counted = pieces(tokenizer, messages("one", " two  ", "three", "red\nblue"))
    assert whole == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n two  <|im_end|>\n"
        "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\nred\nblue<|im_end|>\n<|endoftext|>"
    )
    assert counted == " two  <|im_end|>red\nblue<|im_end|><|endoftext|>"


def test_the_text_is_what_transformers_writes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = write_tokenizer(tmp_path, MARKED)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    row = messages("one", "two", "three", "red")
    expected = theirs.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True)
    encoded = Encoder(ours, "task").encode([document(row)], BadRows())[0]
    assert encoded.labels is not None
    assert encoded.ids[:-1] == list(expected["input_ids"])  # without our end of text
    assert (encoded.labels & COUNTED).tolist()[:-1] == list(expected["assistant_masks"])


def test_turns_with_a_weight_of_zero_and_turns_of_a_prompt_do_not_count(tmp_path: Path) -> None:
    for template in (CHATML, MARKED):
        tokenizer = write_tokenizer(tmp_path, template)
        row = messages("one", "two", "three", "red")
        row["messages"][1]["weight"] = 0
        assert pieces(tokenizer, row)[1] == "red<|im_end|><|endoftext|>"
        turns = messages("one", "two", "three", "red")["messages"]
        assert pieces(tokenizer, {"prompt": turns[:3], "completion": turns[3:]})[1] == "red<|im_end|><|endoftext|>"


def test_a_prompt_and_its_completion_are_a_question_and_an_answer(tmp_path: Path) -> None:
    row = {"prompt": "the sky is", "completion": " blue"}
    whole, counted = pieces(write_tokenizer(tmp_path / "a"), row)
    assert whole == "<|im_start|>user\nthe sky is<|im_end|>\n<|im_start|>assistant\n blue<|im_end|>\n<|endoftext|>"
    assert counted == " blue<|im_end|><|endoftext|>"
    assert pieces(write_tokenizer(tmp_path / "b", None), row) == ("the sky is blue<|endoftext|>", " blue<|endoftext|>")


def test_the_loss_on_all_tokens_can_be_asked_for(tmp_path: Path) -> None:
    whole, counted = pieces(write_tokenizer(tmp_path), messages("one", "two"), counts_all=True)
    assert counted == whole


def test_an_end_of_text_that_the_template_writes_is_not_doubled(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
        "{{ '\n' }}{% endfor %}"
    )
    whole, counted = pieces(write_tokenizer(tmp_path, template), messages("one", "two"))
    assert whole == "user: one\nassistant: two<|endoftext|>\n"
    assert counted.endswith("two<|endoftext|>")


def test_a_template_that_shortens_earlier_answers_still_shows_them(tmp_path: Path) -> None:
    """As Qwen3: an empty thought is written before the last answer only, and another header before a turn to come."""
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' and loop.last %}{{ '[thought]' }}{% endif %}{{ m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n(' }}{% endif %}"
    )
    _, counted = pieces(write_tokenizer(tmp_path, template), messages("one", "two", "three", "red"))
    assert counted == "two<|im_end|>[thought]red<|im_end|><|endoftext|>"


ALTERNATE = "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
FAMILIES = {
    "llama": (
        "{% set loop_messages = messages %}{% for m in loop_messages %}{% set content = '<|start_header_id|>' + m.role"
        " + '<|end_header_id|>\n\n'+ m.content | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
        "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        "two<|eot_id|>red<|eot_id|><|endoftext|>",
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}" + ALTERNATE + "{% if m.role == 'user' %}"
        "{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ m.content + eos_token + ' ' }}{% endif %}{% endfor %}",
        "two<|endoftext|>red<|endoftext|>",
    ),
    "gemma": (
        "{{ bos_token }}{% for m in messages %}" + ALTERNATE + "{% if m.role == 'assistant' %}{% set role = 'model' %}"
        "{% else %}{% set role = m.role %}{% endif %}{{ '<start_of_turn>' + role + '\n' + m.content | trim"
        " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
        "two<end_of_turn>red<end_of_turn><|endoftext|>",
    ),
    "zephyr": (
        "{% for m in messages %}\n{% if m.role == 'user' %}\n{{ '<|user|>\n' + m.content + eos_token }}\n"
        "{% elif m.role == 'assistant' %}\n{{ '<|assistant|>\n'  + m.content + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
        "two<|endoftext|>red<|endoftext|>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answers_of_well_known_templates_are_found(tmp_path: Path, family: str) -> None:
    template, expected = FAMILIES[family]
    special = ("<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>")
    tokenizer = write_tokenizer(tmp_path, template, special)
    assert pieces(tokenizer, messages("one", "two", "three", "red"))[1] == expected


def test_a_template_that_rewrites_earlier_text_is_refused(tmp_path: Path) -> None:
    template = "{{ messages | length }}{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
    tokenizer = write_tokenizer(tmp_path, template)
    with pytest.raises(UserError, match=r"changes earlier text.*'task', row.*generation.*loss_on=all"):
        Encoder(tokenizer, "task").encode([document(messages("one", "two"))], BadRows())
    assert pieces(tokenizer, messages("one", "two"), counts_all=True)[0] == "2useroneassistanttwo<|endoftext|>"


def test_messages_without_a_template_are_refused(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path, None)
    with pytest.raises(UserError, match=r"'task' has rows with messages \(first at row\).*chat_template.jinja beside"):
        Encoder(tokenizer, "task").encode([document(messages("one", "two"))], BadRows())


def test_special_tokens_may_be_named_in_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ eos_token }}{{ bos_token }}"}))
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "</s>"}, "bos_token": "<s>"})
    )
    template = read_template(tmp_path)
    assert template is not None
    assert template.render([]).text == "</s><s>"


def test_a_broken_template_is_an_error_only_where_it_is_needed(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path, "{% for %}")
    assert Encoder(tokenizer, "task").encode([Document("one", "row")], BadRows())[0].labels is None
    with pytest.raises(UserError, match="correct its chat template"):
        Encoder(tokenizer, "task").encode([document(messages("one", "two"))], BadRows())


def test_a_row_that_the_template_refuses_is_skipped_with_its_reason(tmp_path: Path) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}" + CHATML
    tokenizer = write_tokenizer(tmp_path, template)
    assert fault(tokenizer, messages("one", "two", system="x")) == "that the chat template refuses (no system here)"
    assert pieces(tokenizer, messages("one", "two"))[1].startswith("two")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "king", "content": "x"}]}, "with a role other than system, developer, user, assistant"),
        ({"messages": [{"role": "assistant", "content": " \n"}]}, "with an empty answer"),
        ({"prompt": "x", "completion": ""}, "with an empty answer"),
        ({"messages": [{"role": "user", "content": "x"}]}, "without an answer"),
        ({"messages": []}, "without an answer"),
        ({"messages": "x"}, "where 'messages' is not a list"),
        ({"messages": ["x"]}, "with a message that is not an object"),
        ({"messages": [{"role": "user", "content": None}]}, "with a message that has no text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "with a message that has no text"),
        ({"messages": [{"role": "assistant", "content": "x", "weight": 3}]}, "with a weight other than 0 and 1"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "with tool calls"),
        ({"prompt": "x", "completion": []}, "where 'prompt' and 'completion' are not two strings or two lists"),
        ({"prompt": "x"}, "without 'text'"),
        (messages("x", "y" * 20_000), "over-long"),
        (messages("a<|im_end|>b", "y"), "with a special token inside a message"),
        (messages("\ufdd0", "y"), "with characters that Unicode does not have"),
        ({"text": "x", "packed": {"ids": [10**6], "counted": [[0, 1]]}}, "with tokens of another tokenizer"),
        ({"text": "x", "packed": {"ids": [1.5], "counted": []}}, "with damaged tokens"),
        ({"text": "x", "packed": {"ids": [1], "counted": [[0]]}}, "with damaged tokens"),
    ],
)
def test_bad_rows_are_skipped_and_named(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    assert fault(write_tokenizer(tmp_path), row).startswith(reason)


def test_a_row_with_text_is_a_document_and_parts_of_content_are_joined(tmp_path: Path) -> None:
    assert document({"text": "x", **messages("one", "two")}).chat is None
    assert document({"text": None, **messages("one", "two")}).chat is not None
    parts = [{"type": "text", "text": "re"}, {"type": "text", "text": "d"}]
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": parts}]}
    assert pieces(write_tokenizer(tmp_path), row)[1] == "red<|im_end|><|endoftext|>"


def test_packed_rows_give_their_tokens_again(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path)
    first = Encoder(tokenizer, "task").encode([document(messages("one", "two"))], BadRows())[0]
    assert first.labels is not None
    places = np.flatnonzero(first.labels & COUNTED)
    row = PackedRow("whatever", tuple(first.ids), tuple((int(place), int(place) + 1) for place in places)).to_row()
    again = Encoder(tokenizer, "task").encode([document(_as_json(row))], BadRows())[0]
    assert again.ids == first.ids
    assert again.labels is not None
    assert again.labels.tolist() == first.labels.tolist()


def test_a_template_that_writes_the_date_writes_the_same_on_every_day(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "{{ strftime_now('%d %b %Y') }}")
    template = read_template(tmp_path)
    assert template is not None
    assert template.render([]).text == "26 Jul 2024"


spans = st.lists(st.integers(0, 30), max_size=8).map(lambda ends: sorted(set(ends)))


@given(spans, spans)
def test_labels_equal_those_found_character_by_character(tokens: list[int], borders: list[int]) -> None:
    places = [(0, 0), *pairwise(tokens), *((end, end + 2) for end in tokens)]
    answers = list(zip(borders[::2], borders[1::2], strict=False))
    assert answer_labels(places, answers).tolist() == plain_answer_labels(places, answers)


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(row)))
