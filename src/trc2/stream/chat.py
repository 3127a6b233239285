"""Chat templates: how a tokenizer's own template writes a conversation, and which of its characters are answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trc2.stream.conversation import ANSWER, BadRow, Conversation
from trc2.system.files import reading, write_atomically

SETTINGS_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
TOKENS_FILE = "special_tokens_map.json"  # where older folders name special tokens
MAX_BYTES = 2**20
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
BEGIN, END = "\ufdd0", "\ufdd1"  # around what {% generation %} marks. Unicode has no characters of these numbers
FAULTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError)
DAY = datetime(2024, 7, 26)  # for templates that write the date: equal rows must give equal tokens on every day

Span = tuple[int, int]


class NoPrefixes(ValueError):
    """The template changes what it wrote before when a message is added, so answers cannot be found."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, and the spans of characters that are marked as answers."""

    text: str
    marked: tuple[Span, ...] = ()


@dataclass(frozen=True)
class ChatTemplate:
    """A template in Jinja, and the special tokens it may name. It runs in a sandbox, as in transformers."""

    source: str
    tokens: dict[str, str]
    now: Callable[[], datetime] = lambda: DAY

    @cached_property
    def compiled(self) -> jinja2.Template:
        return _environment(self.now).from_string(self.source)

    def render(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = False) -> Rendered:
        """The text of a conversation. Raises one of FAULTS if the template does not take it."""
        values = {**self.tokens, "messages": list(messages), "add_generation_prompt": add_generation_prompt}
        return _without_marks(self.compiled.render(values))

    def describe(self) -> list[Any]:
        """What decides how conversations are written."""
        return [self.source, sorted(self.tokens.items())]


def read_template(folder: Path, now: Callable[[], datetime] = lambda: DAY) -> ChatTemplate | None:
    """The chat template in a model's folder. None if it has none."""
    settings, path = _settings(folder / SETTINGS_FILE), folder / TEMPLATE_FILE
    source = settings.get("chat_template")
    if path.is_file():
        with reading(path):
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}")
            source = path.read_text(encoding="utf-8")
    if isinstance(source, list):  # several by name
        source = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}.get("default")
    if not isinstance(source, str):
        return None
    named = _settings(folder / TOKENS_FILE)
    tokens = {name: _content(settings.get(name)) or _content(named.get(name)) for name in NAMED_TOKENS}
    template = ChatTemplate(source, {name: text for name, text in tokens.items() if text is not None}, now)
    with reading(folder / SETTINGS_FILE, "correct its chat template"):
        template.compiled  # noqa: B018 - a template that is not Jinja fails here
    return template


def write_template(folder: Path, template: ChatTemplate) -> None:
    """Write a template such that `read_template` reads it from the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / SETTINGS_FILE, json.dumps(template.tokens, indent=2).encode())
    write_atomically(folder / TEMPLATE_FILE, template.source.encode())


# ------------------------------------------------------------------------------------------------------------ answers


def written(conversation: Conversation, template: ChatTemplate) -> Rendered:
    """A conversation as the template writes it. Raises BadRow if the template refuses it."""
    messages = conversation.messages()
    if any(sign in message["content"] for message in messages for sign in (BEGIN, END)):
        raise BadRow("with characters that Unicode does not have")
    return _rendered(template, messages)


def answers_in(conversation: Conversation, template: ChatTemplate, special: Sequence[str]) -> Rendered:
    """A conversation as the template writes it, with the spans of its answers.

    The end-of-turn token after an answer belongs to it, white space after that token does not. Raises BadRow for a
    conversation that the template refuses, and NoPrefixes if answers cannot be found.
    """
    messages, whole = conversation.messages(), written(conversation, template)
    assistants = [turn for turn in conversation.turns if turn.role == ANSWER]
    if whole.marked:
        if len(whole.marked) != len(assistants):
            raise NoPrefixes
        spans = [span for span, turn in zip(whole.marked, assistants, strict=True) if turn.is_answer]
    else:
        spans = [
            _answer_span(template, messages, number, whole.text, special)
            for number, turn in enumerate(conversation.turns)
            if turn.is_answer
        ]
    return Rendered(whole.text, tuple(spans))


def _answer_span(
    template: ChatTemplate, messages: list[dict[str, str]], number: int, whole: str, special: Sequence[str]
) -> Span:
    """Where an answer begins and ends, from the conversation before it and the conversation up to it.

    Both must be prefixes of the whole. Some templates write another header for a turn to come than for one that is
    there: then the answer begins where the two headers differ. Some leave out a part of earlier answers: then the
    answer must be there word for word.
    """
    before = _rendered(template, messages[:number]).text if number else ""
    begun = _rendered(template, messages[:number], add_generation_prompt=True).text if number else ""
    start = len(_common_prefix(begun, whole))
    if not whole.startswith(before) or start < len(before):
        raise NoPrefixes
    until = _rendered(template, messages[: number + 1]).text
    if len(until) > start and whole.startswith(until):
        return start, _end_of_turn(until, start, special)
    content = messages[number]["content"].strip()
    end = start + len(content)
    if whole[start:end] != content:
        raise NoPrefixes
    following = next((token for token in special if whole.startswith(token, end)), "")
    return start, end + len(following)


def _end_of_turn(text: str, start: int, special: Sequence[str]) -> int:
    """The end of a turn, without white space after its last token if that is a special one."""
    stripped = text.rstrip()
    is_closed = len(stripped) > start and any(stripped.endswith(token) for token in special)
    return len(stripped) if is_closed else len(text)


def _rendered(
    template: ChatTemplate, messages: list[dict[str, str]], *, add_generation_prompt: bool = False
) -> Rendered:
    try:
        return template.render(messages, add_generation_prompt=add_generation_prompt)
    except FAULTS as error:
        raise BadRow(f"that the chat template refuses ({_reason(error)})") from error


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:80] or type(error).__name__


def _common_prefix(a: str, b: str) -> str:
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return a[:shorter]
    low, high = 0, shorter  # a[:low] is common, a[:high] is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle)
    return a[:low]


# ------------------------------------------------------------------------------------------------------------ sandbox


class _Generation(Extension):
    """{% generation %} … {% endgeneration %}, with which newer templates mark what the assistant says."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{BEGIN}{caller()}{END}"


def _without_marks(text: str) -> Rendered:
    """The text without the marks, and the spans between them."""
    pieces, spans, size, start = [], [], 0, None
    rest = text
    while rest:
        places = [place for place in (rest.find(BEGIN), rest.find(END)) if place >= 0]
        if not places:
            break
        place = min(places)
        pieces.append(rest[:place])
        size += place
        if rest[place] == BEGIN:
            start = size
        elif start is not None:
            spans.append((start, size))
            start = None
        rest = rest[place + 1 :]
    return Rendered("".join([*pieces, rest]), tuple(spans))


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """As transformers renders templates: in a sandbox, because a model's folder may come from anywhere."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


# ------------------------------------------------------------------------------------------------------------ settings


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with reading(path):
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise TypeError("it is not an object")
        return settings


def _content(token: object) -> str | None:
    """Special tokens are text, or an object with text."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
