"""Conversations as one prompt: the chat template that came with a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trc2.errors import UserError, brief
from trc2.stream import chat
from trc2.stream.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and the tokenizer that reads the special tokens in what it writes."""

    template: chat.ChatTemplate
    tokenizer: Tokenizer
    special: tuple[str, ...]

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The ids of a conversation, up to where the assistant's answer begins."""
        for number, message in enumerate(messages):
            hidden = next((token for token in self.special if token in message["content"]), None)
            if hidden is not None:
                raise UserError(
                    f"messages.{number}.content has {hidden}, which would end or begin a message: leave it out."
                )
        try:
            text = self.template.render(messages, add_generation_prompt=True).text
        except chat.FAULTS as error:
            raise UserError(
                f"The model's chat template does not take this conversation ({brief(error)}): send other messages."
            ) from error
        return self.tokenizer.encode_batch([text])[0]


def read_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template in a model's folder. None if it has none. Templates that write a date write that of today."""
    template = chat.read_template(folder, now=datetime.now)
    return None if template is None else ChatTemplate(template, tokenizer.with_settings(True, False), tokenizer.special)
