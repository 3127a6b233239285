"""A tiny model with words, and servers on free ports of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("sqlalchemy")
pytest.importorskip("python_multipart")
pytest.importorskip("openai")

import openai

from tests.backbones.common import excited
from tests.conftest import TINY_TASKS, tiny_config
from trc2 import CortexNet
from trc2.backbones.saved import save_model
from trc2.serving.server import Server, ServerSettings
from trc2.stream.tokenizer import train_bpe

WORDS = " ".join(word for words in TINY_TASKS.values() for word in words)
TEXT = [f"{WORDS} größer — 日本語 {number}" for number in range(20)]


def save_words_model(folder: Path, seed: int = 0) -> Path:
    """A network whose next token depends on all earlier ones, with a tokenizer of 300 tokens."""
    net = CortexNet(tiny_config(vocab_size=300, max_positions=64, replay=False))
    excited(net, seed)
    save_model(net, folder)
    (folder / "tokenizer.json").write_text(train_bpe(TEXT, 300).to_json())
    return folder


@pytest.fixture(scope="session")
def words_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words_model(tmp_path_factory.mktemp("served") / "words")


Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers, which end with the test."""
    with ExitStack() as stack:

        def start_server(model: Path, **settings: Any) -> Server:
            return stack.enter_context(Server(ServerSettings(model, port=0, **settings)))

        yield start_server


@pytest.fixture(scope="session")
def server(words_model: Path) -> Iterator[Server]:
    """One server for all tests that only ask."""
    with Server(ServerSettings(words_model, port=0)) as running:
        yield running


def client_of(server: Server, token: str = "none", **settings: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=token, max_retries=0, timeout=60, **settings)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as one:
        yield one
