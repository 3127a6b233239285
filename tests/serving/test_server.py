"""Starting and stopping: addresses, tokens, and models that cannot be served."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

import trc2
from tests.command import trc2 as command
from tests.serving.conftest import Start
from trc2 import UserError
from trc2.serving.auth import RateLimit, read_tokens
from trc2.serving.connections import most_connections
from trc2.serving.server import Limits, Server, ServerSettings
from trc2.serving.wire import ApiError


def test_other_machines_need_a_token(words_model: Path) -> None:
    with pytest.raises(UserError, match="give --tokens FILE"):
        Server(ServerSettings(words_model, host="0.0.0.0"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no tokens"),
        ("all abcdefghijklmnopq", "Line 1"),
        ("ask short", "too short"),
        ("ask a b c", "Line 1"),
    ],
)
def test_a_bad_file_of_tokens_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_tokens(tmp_path / "tokens")


def test_unused_requests_add_up_to_one_minute() -> None:
    now = 0.0
    rate = RateLimit(2, lambda: now)
    for _ in range(2):
        rate.check("a")
    rate.check("b")
    with pytest.raises(ApiError) as caught:
        rate.check("a")
    assert caught.value.headers == {"retry-after": "30"}
    now = 30.0
    rate.check("a")
    now = 10_000.0
    for _ in range(2):
        rate.check("a")
    with pytest.raises(ApiError):
        rate.check("a")


def test_the_command_says_in_one_sentence_what_cannot_be_served(words_model: Path, tmp_path: Path) -> None:
    for words, sentence in (
        (["demo"], "is a recipe"),
        ([str(tmp_path)], "config.json"),
        ([str(words_model), "--host", "0.0.0.0"], "--tokens"),
    ):
        done = command("serve", *words)
        assert done.code == 2
        assert sentence in done.err
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_bytes((words_model / "config.json").read_bytes())
    done = command("serve", str(tmp_path / "broken"), "--port", "0")
    assert done.code == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = command("serve", str(words_model), "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "choose another port" in done.err


def test_a_server_lasts_as_long_as_its_block(words_model: Path) -> None:
    with trc2.serve(words_model) as server:
        assert b'"ok"' in urlopen(f"{server.url}/health").read()
    with pytest.raises(OSError, match="refused"):
        urlopen(f"{server.url}/health")
    with pytest.raises(UserError, match="out of range"):
        trc2.serve(words_model, max_rows=0)


@pytest.mark.slow
def test_the_command_serves_until_a_signal_and_logs_no_text(words_model: Path) -> None:
    arguments = [sys.executable, "-m", "trc2", "serve", str(words_model), "--port", "0"]
    with subprocess.Popen(
        arguments, stderr=subprocess.PIPE, text=True, env=os.environ.copy(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    ) as process:  # fmt: skip
        assert process.stderr is not None
        url = process.stderr.readline().split(" at ")[1].split("/v1")[0]
        while True:
            try:
                with urlopen(f"{url}/health") as answer:
                    assert answer.status == 200
                break
            except OSError:
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(30) == 130
    assert "GET /health 200" in said


def test_a_connection_that_asks_for_nothing_is_closed(start: Start, words_model: Path) -> None:
    """Also one that sends the head of a request byte by byte, or a body after its answer: others need its place."""
    server = start(words_model, limits=Limits(idle_seconds=0.5))
    address = urlsplit(server.url)
    heads = [
        b"",
        b"GET /health HTTP/1.1\r\nhost: loc",
        b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nx",
    ]
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((address.hostname, address.port), 30)) for _ in heads]
        for client, head in zip(clients, heads, strict=True):
            client.sendall(head)
        for client in clients:
            with suppress(ConnectionResetError):
                while client.recv(10_000):
                    pass
    assert urlopen(f"{server.url}/health").status == 200


def test_connections_leave_room_for_the_files_of_a_job(
    start: Start, words_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < most_connections() <= 10_000
    monkeypatch.setattr("trc2.serving.server.most_connections", lambda: 2)
    address = urlsplit(start(words_model).url)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection((address.hostname, address.port), 30)) for _ in range(3)
        ]
        with suppress(ConnectionResetError):
            assert clients[2].recv(1) == b""
        clients[0].sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert clients[0].recv(12) == b"HTTP/1.1 200"
