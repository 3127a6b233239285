"""A full disk and a server that stands still: a clear answer, and never a wrong one."""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

import openai
import pytest

from tests.serving.kills import ServerProcess
from trc2.generate.sampling import stream_text
from trc2.runs.target import find_target

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="it has neither of these limits")]


def test_a_full_disk_is_said_and_nothing_half_stays(words_model: Path, tmp_path: Path) -> None:
    server = ServerProcess(words_model, tmp_path / "data")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, before[1]))  # the process of the server inherits it
    try:
        server.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    try:
        with server.client() as client:
            small = client.files.create(file=("a.txt", b"text"), purpose="user_data").id
            with pytest.raises(openai.APIStatusError) as caught:
                client.files.create(file=("b.txt", b"x" * 3 * 10**6), purpose="user_data")
            assert (caught.value.status_code, caught.value.code) == (507, "disk_full")
            assert [file.id for file in client.files.list()] == [small]
            assert [path.name for path in (tmp_path / "data" / "files").iterdir()] == [small]
            assert client.completions.create(model="latest", prompt="apple", max_tokens=2).choices
    finally:
        server.stop()


def test_a_server_that_stood_still_goes_on_with_right_answers(words_model: Path, tmp_path: Path) -> None:
    net, tokenizer = find_target(str(words_model)).trained_model(lambda _: None)
    expected = "".join(stream_text(net, tokenizer, "apple", max_new_tokens=20, seed=1))
    server = ServerProcess(words_model, tmp_path / "data")
    server.start()
    assert server.process is not None
    try:
        with server.client() as client:
            server.process.send_signal(signal.SIGSTOP)
            with pytest.raises(openai.APITimeoutError):
                client.completions.create(model="latest", prompt="apple", max_tokens=20, seed=1, timeout=1)
            server.process.send_signal(signal.SIGCONT)
            answer = client.completions.create(model="latest", prompt="apple", max_tokens=20, seed=1)
            assert answer.choices[0].text == expected
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.stop()
