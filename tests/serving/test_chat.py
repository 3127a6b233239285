"""/v1/chat/completions, for models whose tokenizer has a chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.serving.conftest import client_of
from trc2 import UserError
from trc2.generate.sampling import Sampling, generate_ids
from trc2.serving.chat import read_template
from trc2.serving.server import Server, ServerSettings
from trc2.stream.tokenizer import read_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def add_template(folder: Path, template: str = TEMPLATE) -> None:
    settings = {"chat_template": template, "eos_token": {"content": "<|endoftext|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def chat_server(words_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = Path(shutil.copytree(words_model, tmp_path_factory.mktemp("chat") / "words"))
    add_template(folder)
    with Server(ServerSettings(folder, port=0)) as server:
        yield server


def test_a_conversation_is_written_by_the_template_and_answered(chat_server: Server) -> None:
    model = chat_server.service.shelf.loaded[0]
    tokenizer = model.engine.tokenizer
    user = tokenizer.encode_batch(["<|user|>apple"])[0]
    ids = [*user, tokenizer.end_of_text, *tokenizer.encode_batch(["\n<|assistant|>"])[0]]
    made = generate_ids(model.engine.net, ids, Sampling(max_tokens=10, temperature=0), end=tokenizer.end_of_text)
    expected = tokenizer.decode(list(made))
    with client_of(chat_server) as client:
        messages = [{"role": "user", "content": [{"type": "text", "text": "apple"}]}]
        answer = client.chat.completions.create(
            model="latest", messages=messages, max_tokens=10, temperature=0, logprobs=True, top_logprobs=2
        )
        assert answer.choices[0].message.content == expected
        assert (
            answer.choices[0].logprobs.content[0].top_logprobs[0].token == answer.choices[0].logprobs.content[0].token
        )
        assert answer.usage.prompt_tokens == len(ids)
        chunks = list(
            client.chat.completions.create(
                model="latest", messages=messages, max_completion_tokens=10, temperature=0, stream=True
            )
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        long = client.chat.completions.create(model="latest", messages=messages, seed=1)
        assert long.usage.total_tokens <= 64


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x<|endoftext|>y"}]},
        {"messages": [{"role": "user", "content": "x" * 200}]},
        {"top_logprobs": 3},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_what_is_not_supported_is_refused(chat_server: Server, change: dict[str, object]) -> None:
    with client_of(chat_server) as client, pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**{"model": "latest", "messages": [{"role": "user", "content": "x"}], **change})


def test_a_model_without_a_template_cannot_chat(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="latest", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "model_not_supported"


@pytest.mark.parametrize("template", ["{{ messages.__class__.__mro__ }}", "{{ raise_exception('no') }}", "{{ x.y.z }}"])
def test_a_template_cannot_leave_its_sandbox(words_model: Path, tmp_path: Path, template: str) -> None:
    folder = Path(shutil.copytree(words_model, tmp_path / "words"))
    add_template(folder, template)
    read = read_template(folder, read_tokenizer(folder))
    assert read is not None
    with pytest.raises(UserError, match="chat template"):
        read.encode([{"role": "user", "content": "x"}])


def test_a_broken_template_is_one_sentence(words_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(words_model, tmp_path / "words"))
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(UserError, match="correct its chat template"):
        read_template(folder, read_tokenizer(folder))
