"""A tiny tokenizer with a chat template, and conversations for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trc2.stream.tokenizer import Tokenizer, read_tokenizer, train_bpe

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS = "red green blue one two three the sky is what colour number assistant user system you are brief"


def write_tokenizer(folder: Path, template: str | None = CHATML, special: tuple[str, ...] = ()) -> Tokenizer:
    """A byte-level BPE with the special tokens of ChatML, and others."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_bpe([f"{WORDS}\n"] * 20, 290)
    tokenizer.backend.add_special_tokens(["<|im_start|>", "<|im_end|>", *special])
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    settings: dict[str, Any] = {"eos_token": "<|endoftext|>", "bos_token": "<s>"}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return read_tokenizer(folder)


def messages(*contents: str, system: str | None = None) -> dict[str, Any]:
    """A row whose turns are of the user and the assistant in turn."""
    roles = ("user", "assistant")
    turns = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return {"messages": [*([] if system is None else [{"role": "system", "content": system}]), *turns]}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def conversations(count: int) -> list[dict[str, Any]]:
    """Different conversations with different answers."""
    words = WORDS.split()
    return [
        messages(f"what is {number} the {words[number % 7]}", f"{words[number % 5]} {number}", system="you are brief")
        for number in range(count)
    ]
