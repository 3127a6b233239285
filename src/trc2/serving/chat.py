"""Conversations as one prompt: the chat template that came with a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trc2.errors import UserError, brief
from trc2.stream.tokenizer import SETTINGS_FILE, Tokenizer
from trc2.system.files import reading

TEMPLATE_FILE = "chat_template.jinja"
MAX_BYTES = 2**20


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and the tokenizer that reads the special tokens in what it writes."""

    template: jinja2.Template
    tokens: dict[str, str]
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
            text = self.template.render(messages=list(messages), add_generation_prompt=True, **self.tokens)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise UserError(
                f"The model's chat template does not take this conversation ({brief(error)}): send other messages."
            ) from error
        return self.tokenizer.encode_batch([text])[0]


def read_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template in a model's folder. None if it has none."""
    settings = _settings(folder)
    path = folder / TEMPLATE_FILE
    source = settings.get("chat_template")
    if path.is_file():
        with reading(path):
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it has {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}")
            source = path.read_text(encoding="utf-8")
    if isinstance(source, list):  # several by name
        named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    with reading(folder / SETTINGS_FILE, "correct its chat template"):
        template = _environment().from_string(source)
    tokens = {name: _content(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    special = tuple(token.content for token in tokenizer.backend.get_added_tokens_decoder().values() if token.special)
    reader = tokenizer.with_settings(True, False)
    return ChatTemplate(template, {name: text for name, text in tokens.items() if text is not None}, reader, special)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS_FILE
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


def _environment() -> ImmutableSandboxedEnvironment:
    """As transformers renders templates: in a sandbox, because a model's folder may come from anywhere."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
