"""A tiny model with words, and servers on free ports of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
from tests.serving.postgres import find_control, new_database, run_postgres
from trc2 import CortexNet
from trc2.backbones.saved import save_model
from trc2.serving.engine import Engine
from trc2.serving.server import Server, ServerSettings
from trc2.stream.tokenizer import train_bpe
from trc2.versions.registry import Versions

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


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The folder of the socket of a PostgreSQL server that is there for the tests."""
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed: pip install '.[postgres]'")
    control = find_control()
    if control is None:
        pytest.skip("no PostgreSQL server on this machine: apt-get install postgresql")
    with run_postgres(control) as folder:
        yield folder


@pytest.fixture(params=["sqlite", "postgresql"])
def registry(request: pytest.FixtureRequest) -> str | None:
    """The URL of a new database for files and jobs. None is the data folder's own."""
    return None if request.param == "sqlite" else new_database(request.getfixturevalue("postgres"))


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


def eventually(is_true: Callable[[], object], seconds: float = 120) -> bool:
    """Whether something becomes true. A server writes its log and frees places after its client has the answer."""
    until = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """Inside the block the engine writes no token, so that requests wait however slow their clients are."""
    gate, net = threading.Event(), engine.net
    decode = net.decode

    def decode_later(*arguments: Any, **settings: Any) -> Any:
        assert gate.wait(120)
        return decode(*arguments, **settings)

    net.decode = decode_later  # type: ignore[method-assign]
    try:
        yield
    finally:
        del net.decode
        gate.set()


@pytest.fixture(scope="session")
def first_version(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A versions folder with one version, which can be taught. Tests change copies of it."""
    folder = tmp_path_factory.mktemp("first") / "versions"
    Versions(folder).promote(trained_once, first=True)
    return folder
