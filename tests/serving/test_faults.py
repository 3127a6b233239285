"""A full disk and a server that stands still: a clear answer, and never a wrong one."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serving.conftest import client_of, eventually
from tests.serving.kills import ServerProcess
from tests.small_disk import SmallDisk
from trc2.generate.sampling import Sampling, stream_text
from trc2.runs.target import find_target
from trc2.serving.server import Server, ServerSettings
from trc2.versions.registry import Versions

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="it has neither of these limits")]

ROOM = 300  # kilobytes: enough to begin a run, too little for its first checkpoint


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
    expected = "".join(stream_text(net, tokenizer, "apple", Sampling(max_tokens=20, seed=1)))
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


def test_a_job_without_room_for_its_checkpoint_fails_and_latest_stays(
    first_version: Path, disk: SmallDisk, tmp_path: Path
) -> None:
    if not disk.is_mounted:
        pytest.skip("a small file system takes root")
    with disk.full(200_000):
        versions = Versions(shutil.copytree(first_version, disk.folder / "versions"))
    before, events = versions.accepted().name, versions.events()
    with Server(ServerSettings(versions.folder, port=0, data=tmp_path / "data")) as server, client_of(server) as client:
        with disk.full(disk.used() + ROOM):
            job = teach(client)
            assert (job.status, job.error.code) == ("failed", "training_failed")
            assert "A checkpoint could not be written to" in job.error.message
            assert client.completions.create(model="latest", prompt="red", max_tokens=2).model == before
            assert versions.events() == events
            versions.accepted().check()
        job = teach(client)  # the same text, once there is room
        assert (job.status, job.error) == ("succeeded", None)
        assert job.fine_tuned_model == versions.accepted().check().name != before
    assert len(versions.all()) == 2


def test_a_database_without_room_says_so_and_its_job_ends_well_once_there_is_some(
    first_version: Path, disk: SmallDisk, tmp_path: Path
) -> None:
    if not disk.is_mounted:
        pytest.skip("a small file system takes root")
    versions = Versions(shutil.copytree(first_version, tmp_path / "versions"))
    with disk.full(200_000):
        (disk.folder / "data").mkdir()
    data = disk.folder / "data"
    with Server(ServerSettings(versions.folder, port=0, data=data)) as server, client_of(server) as client:
        job = begin(client, steps=40)
        assert eventually(lambda: client.fine_tuning.jobs.retrieve(job).status == "running")
        with disk.full(disk.used()):
            filler = disk.folder / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))
            with pytest.raises(openai.APIStatusError) as caught:
                client.fine_tuning.jobs.cancel(job)
            assert (caught.value.status_code, caught.value.code) == (507, "disk_full")
            with pytest.raises(openai.APIStatusError) as caught:
                begin(client, steps=1)
            assert (caught.value.status_code, caught.value.code) == (507, "disk_full")
            time.sleep(8)  # the worker tries and cannot write what it does
            assert client.fine_tuning.jobs.retrieve(job).status == "running"
            assert client.completions.create(model="latest", prompt="red", max_tokens=2).choices
            filler.unlink()
        done = at_end(client, job)
        assert (done.status, done.error) == ("succeeded", None)
        assert done.fine_tuned_model == versions.accepted().check().name
        assert [one.id for one in client.fine_tuning.jobs.list()] == [job]
    assert len(versions.all()) == 2


def begin(client: openai.OpenAI, steps: int = 3) -> str:
    rows = "\n".join(json.dumps({"text": f"red blue green grey {number} " * 6}) for number in range(24))
    file = client.files.create(file=("week.jsonl", rows.encode()), purpose="fine-tune").id
    metadata = {"steps": str(steps), "max_forgetting": "1000"}
    return client.fine_tuning.jobs.create(model="latest", training_file=file, suffix="colours", metadata=metadata).id


def at_end(client: openai.OpenAI, job: str) -> Any:
    ended = ("succeeded", "failed", "cancelled")
    assert eventually(lambda: client.fine_tuning.jobs.retrieve(job).status in ended, 300)
    return client.fine_tuning.jobs.retrieve(job)


def teach(client: openai.OpenAI) -> Any:
    return at_end(client, begin(client))
