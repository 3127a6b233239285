"""Conversations: rows with `messages`, or with `prompt` and `completion`, and which of their turns are answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ANSWER = "assistant"
ROLES = ("system", "developer", "user", ANSWER)


class BadRow(ValueError):
    """A row without usable text. The message is the kind of fault."""


@dataclass(frozen=True)
class Turn:
    """One message. The loss is taken on it if `is_answer`."""

    role: str
    content: str
    is_answer: bool


@dataclass(frozen=True)
class Conversation:
    """Turns in order. A prompt and its completion may be `is_plain`: two strings that do not need a template."""

    turns: tuple[Turn, ...]
    is_plain: bool = False

    @property
    def text(self) -> str:
        """What is said, without the words of a template."""
        return ("" if self.is_plain else "\n").join(turn.content for turn in self.turns)

    def to_row(self) -> dict[str, Any]:
        """A row that gives the same conversation."""
        if self.is_plain:
            return {"prompt": self.turns[0].content, "completion": self.turns[1].content}
        rows = zip(self.messages(), self.turns, strict=True)
        return {
            "messages": [{**row, "weight": int(turn.is_answer)} if turn.role == ANSWER else row for row, turn in rows]
        }

    def messages(self) -> list[dict[str, str]]:
        """As chat templates take them."""
        return [{"role": turn.role, "content": turn.content} for turn in self.turns]


@dataclass(frozen=True)
class PackedRow:
    """A conversation that was packed before: its tokens, and the spans of those on which the loss is taken."""

    text: str
    ids: tuple[int, ...]
    counted: tuple[tuple[int, int], ...]

    def to_row(self) -> dict[str, Any]:
        return {"text": self.text, "packed": {"ids": self.ids, "counted": self.counted}}


def conversation_of(row: Mapping[str, Any], limit: int) -> Conversation | None:
    """The conversation of a row. None if the row does not have one. Fields without a value count as missing."""
    messages, prompt, completion = (row.get(name) for name in ("messages", "prompt", "completion"))
    if messages is not None:
        turns, is_plain = _turns(messages, "messages"), False
    elif prompt is None or completion is None:
        return None
    elif isinstance(prompt, str) and isinstance(completion, str):
        turns, is_plain = [Turn("user", prompt, False), Turn(ANSWER, completion, True)], True
    elif isinstance(prompt, list | tuple) and isinstance(completion, list | tuple):
        before = [Turn(turn.role, turn.content, False) for turn in _turns(prompt, "prompt")]
        turns, is_plain = before + _turns(completion, "completion"), False
    else:
        raise BadRow("where 'prompt' and 'completion' are not two strings or two lists of messages")
    if sum(len(turn.content) for turn in turns) > limit:
        raise BadRow("over-long")
    if any(turn.role == ANSWER and not turn.content.strip() for turn in turns):
        raise BadRow("with an empty answer")
    if not any(turn.is_answer for turn in turns):
        raise BadRow("without an answer")
    return Conversation(tuple(turns), is_plain)


def packed_row_of(row: Mapping[str, Any]) -> PackedRow | None:
    """The tokens in a row that `PackedRow.to_row` made. None for any other row."""
    packed = row.get("packed")
    if not isinstance(packed, Mapping) or set(packed) != {"ids", "counted"} or not isinstance(row.get("text"), str):
        return None
    ids, counted = packed["ids"], packed["counted"]
    if not isinstance(ids, list) or not isinstance(counted, list) or not ids:
        raise BadRow("with damaged tokens")
    spans = []
    for span in counted:
        if not isinstance(span, list) or len(span) != 2 or not all(_is_whole(place) for place in span):
            raise BadRow("with damaged tokens")
        spans.append((span[0], span[1]))
    if not all(_is_whole(identity) for identity in ids):
        raise BadRow("with damaged tokens")
    return PackedRow(row["text"], tuple(ids), tuple(spans))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _turns(messages: Any, name: str) -> list[Turn]:
    if not isinstance(messages, list | tuple):
        raise BadRow(f"where '{name}' is not a list")
    return [_turn(message) for message in messages]


def _turn(message: Any) -> Turn:
    if not isinstance(message, Mapping):
        raise BadRow("with a message that is not an object")
    role, weight = message.get("role"), message.get("weight")
    if message.get("tool_calls") or role in ("tool", "function"):
        raise BadRow("with tool calls")
    if role not in ROLES:
        raise BadRow(f"with a role other than {', '.join(ROLES)}")
    if weight not in (None, 0, 1):
        raise BadRow("with a weight other than 0 and 1")
    return Turn(str(role), _text_of(message.get("content")), role == ANSWER and weight != 0)


def _text_of(content: Any) -> str:
    """A string, or a list of parts that are all text."""
    if isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content):
        parts = [part.get("text") if part.get("type") == "text" else None for part in content]
        if parts and all(isinstance(part, str) for part in parts):
            return "".join(str(part) for part in parts)
    if not isinstance(content, str):
        raise BadRow("with a message that has no text")
    return content
