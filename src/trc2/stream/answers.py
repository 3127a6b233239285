"""The tokens of a document, and on which of them the loss is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trc2.errors import UserError
from trc2.stream.chat import NoPrefixes, Rendered, Span, answers_in, written
from trc2.stream.conversation import BadRow, Conversation, PackedRow
from trc2.stream.document import BadRows, Document
from trc2.stream.packed import COUNTED, IN_CHAT
from trc2.stream.tokenizer import Tokenizer


@dataclass(frozen=True)
class Encoded:
    """A packed document: its ids, a label for each of them, and the bytes of its text. Without labels, all count."""

    ids: list[int]
    size: int
    labels: NDArray[np.uint8] | None = None


class Encoder:
    """Turns documents into tokens. Conversations are written by the tokenizer's chat template.

    With `counts_all` the loss is taken on all tokens of conversations too.
    """

    def __init__(self, tokenizer: Tokenizer, task: str, *, counts_all: bool = False) -> None:
        self.tokenizer, self.task, self.counts_all = tokenizer, task, counts_all
        self._reader: Tokenizer | None = None
        self.num_plain = 0  # prompts and completions that were joined, because there is no template

    def encode(self, documents: Sequence[Document], bad: BadRows) -> list[Encoded]:
        """The documents in order. Conversations that cannot be written go to `bad`."""
        plain = iter(self.tokenizer.encode_batch([document.text for document in documents if document.chat is None]))
        encoded = []
        for document in documents:
            if document.chat is None:
                ids = [*self.tokenizer.begin_of_text, *next(plain), self.tokenizer.end_of_text]
                encoded.append(Encoded(ids, len(document.text.encode())))
                continue
            try:
                chat = document.chat
                of_chat = self._packed(chat) if isinstance(chat, PackedRow) else self._encoded(chat, document.where)
            except BadRow as fault:
                bad.add(str(fault), document.where)
            else:
                encoded.append(of_chat)
        return encoded

    def _packed(self, row: PackedRow) -> Encoded:
        if max(row.ids) >= self.tokenizer.vocab_size:
            raise BadRow("with tokens of another tokenizer")
        labels = np.full(len(row.ids), IN_CHAT, dtype=np.uint8)
        for start, end in row.counted:
            labels[start:end] |= COUNTED
        return Encoded(list(row.ids), len(row.text.encode()), labels)

    def _encoded(self, conversation: Conversation, where: str) -> Encoded:
        tokenizer, template = self.tokenizer, self.tokenizer.chat
        if template is None and not conversation.is_plain:
            raise UserError(
                f"Task '{self.task}' has rows with messages (first at {where}), but the tokenizer has no chat "
                "template: put a chat_template.jinja beside its tokenizer.json, use the tokenizer of an instruct "
                "model, or give rows with 'text', or with 'prompt' and 'completion'."
            )
        if template is None:
            self.num_plain += 1
            rendered = _joined(conversation)
            ids, places = tokenizer.encode_with_places([rendered.text])[0]
            ids, places = [*tokenizer.begin_of_text, *ids], [(0, 0)] * len(tokenizer.begin_of_text) + places
        else:
            self._refuse_special(conversation)
            try:
                rendered = (
                    written(conversation, template)
                    if self.counts_all
                    else answers_in(conversation, template, tokenizer.special)
                )
            except NoPrefixes:
                raise UserError(
                    f"The chat template of the tokenizer changes earlier text when a message is added (task "
                    f"'{self.task}', {where}), so answers cannot be told from the rest: mark them in the template by "
                    "{% generation %} and {% endgeneration %}, give one answer per row, or set the task's loss_on=all."
                ) from None
            ids, places = self._template_reader.encode_with_places([rendered.text])[0]
        labels = answer_labels(places, rendered.marked)
        end = str(tokenizer.backend.id_to_token(tokenizer.end_of_text))
        if template is None or not rendered.text.rstrip().endswith(end):
            ids = [*ids, tokenizer.end_of_text]
            labels = np.append(labels, np.uint8(conversation.turns[-1].is_answer))
        if self.counts_all:
            labels = np.ones_like(labels)
        elif not labels.any():
            raise BadRow("with an answer that has no tokens")
        return Encoded(list(ids), len(rendered.text.encode()), labels | np.uint8(IN_CHAT))

    def _refuse_special(self, conversation: Conversation) -> None:
        """A special token inside a message would end it or begin another one."""
        if self.tokenizer.special_in_text:
            return
        if any(token in turn.content for turn in conversation.turns for token in self.tokenizer.special):
            raise BadRow("with a special token inside a message")

    @property
    def _template_reader(self) -> Tokenizer:
        """The tokenizer that reads the special tokens in what the template writes."""
        if self._reader is None:
            self._reader = self.tokenizer.with_settings(True, False)
        return self._reader


def _joined(conversation: Conversation) -> Rendered:
    """A prompt and its completion without a template."""
    text = conversation.text
    return Rendered(text, ((len(conversation.turns[0].content), len(text)),))


def answer_labels(places: Sequence[Span], answers: Sequence[Span]) -> NDArray[np.uint8]:
    """1 for every token that covers a character of an answer, else 0. Answers are in order and do not overlap."""
    if not places:
        return np.zeros(0, dtype=np.uint8)
    first, last = np.asarray(places, dtype=np.int64).T
    starts, ends = np.asarray(answers, dtype=np.int64).reshape(-1, 2).T
    following = np.searchsorted(ends, first, side="right")  # the first answer that ends after the token begins
    reached = np.append(starts, np.iinfo(np.int64).max)[following]
    return ((last > first) & (reached < last)).astype(np.uint8)


def plain_answer_labels(places: Sequence[Span], answers: Sequence[Span]) -> list[int]:
    """The same, character by character."""
    labels = []
    for first, last in places:
        is_answer = False
        for character in range(first, last):
            for start, end in answers:
                is_answer = is_answer or start <= character < end
        labels.append(int(is_answer))
    return labels
