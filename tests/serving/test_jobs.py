"""/v1/fine_tuning/jobs through OpenAI's own client: upload, teach, follow, ask the new model, and after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import openai
import pytest

from tests.serving.conftest import client_of
from trc2.serving.server import Server, ServerSettings
from trc2.system.failpoints import SERVING
from trc2.versions.registry import Versions

ROWS = "\n".join(json.dumps({"text": f"red blue green grey {number} " * 6}) for number in range(24)).encode()
GENEROUS = {"steps": "3", "max_forgetting": "1000"}


@pytest.fixture(scope="module")
def first_version(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "versions"
    Versions(folder).promote(trained_once, first=True)
    return folder


@pytest.fixture
def versions(first_version: Path, tmp_path: Path) -> Versions:
    return Versions(shutil.copytree(first_version, tmp_path / "versions"))


@pytest.fixture
def server(versions: Versions, tmp_path: Path) -> Iterator[Server]:
    with Server(ServerSettings(versions.folder, port=0, data=tmp_path / "data")) as one:
        yield one


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as one:
        yield one


def upload(client: openai.OpenAI) -> str:
    return client.files.create(file=("week.jsonl", ROWS), purpose="fine-tune").id


def wait(client: openai.OpenAI, job: str, is_over: Callable[[Any], bool]) -> Any:
    for _ in range(2400):
        now = client.fine_tuning.jobs.retrieve(job)
        if is_over(now):
            return now
        time.sleep(0.05)
    raise AssertionError(f"{now.status}: {now.error}")


def at_end(job: Any) -> bool:
    return job.status in ("succeeded", "failed", "cancelled")


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"training_file": "file-none"},
        {"validation_file": "file-none"},
        {"suffix": "../x"},
        {"suffix": "a=b"},
        {"metadata": {"max_forgetting": "much"}},
        {"metadata": {"steps": "0"}},
        {"metadata": {"replay_share": "nan"}},
        {"metadata": {"keep_file": "file-none"}},
        {"metadata": {str(number): "x" for number in range(17)}},
        {"hyperparameters": {"batch_size": 4}},
        {"method": {"type": "dpo"}},
        {"extra_body": {"learning": 1}},
    ],
    ids=str,
)
def test_a_job_that_cannot_run_is_refused_before_it_waits(
    client: openai.OpenAI, tmp_path: Path, change: dict[str, Any]
) -> None:
    file = upload(client)
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
        client.fine_tuning.jobs.create(**{"model": "latest", "training_file": file, **change})
    assert client.fine_tuning.jobs.list().data == []
    assert list((tmp_path / "data" / "jobs").iterdir()) == []


def test_rows_with_messages_are_refused(client: openai.OpenAI) -> None:
    row = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
    file = client.files.create(file=("chat.jsonl", row), purpose="fine-tune").id
    with pytest.raises(openai.BadRequestError) as caught:
        client.fine_tuning.jobs.create(model="latest", training_file=file)
    assert caught.value.code == "unsupported_rows"


def test_one_model_cannot_be_taught(words_model: Path, tmp_path: Path) -> None:
    with Server(ServerSettings(words_model, port=0, data=tmp_path)) as server, client_of(server) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            client.fine_tuning.jobs.list()
        assert caught.value.code == "no_jobs"


@pytest.mark.slow
def test_from_documents_to_an_accepted_and_served_version(
    client: openai.OpenAI, versions: Versions, tmp_path: Path
) -> None:
    before = versions.accepted().name
    file = upload(client)
    job = client.fine_tuning.jobs.create(model="latest", training_file=file, suffix="colours", metadata=GENEROUS)
    assert (job.status, job.model, job.training_file) == ("queued", before, file)
    client.files.delete(file)  # the job has a copy
    done = wait(client, job.id, at_end)
    assert (done.status, done.error) == ("succeeded", None)
    assert done.fine_tuned_model == versions.accepted().name != before
    assert versions.accepted().tasks == ("colours",)
    answer = client.completions.create(model=done.fine_tuned_model, prompt="red", max_tokens=4)
    assert answer.system_fingerprint == done.fine_tuned_model
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=3))
    assert len({event.id for event in events}) == len(events)
    assert events[0].message == f"The model is accepted as {done.fine_tuned_model}."
    assert [event.data["step"] for event in events if event.type == "metrics" and event.data["kind"] == "train"]
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert checkpoint.fine_tuned_model_checkpoint == done.fine_tuned_model
    assert (tmp_path / "data" / "cache").is_dir()
    with pytest.raises(openai.ConflictError):
        client.fine_tuning.jobs.cancel(job.id)


def test_a_job_whose_process_is_interrupted_waits_and_goes_on(server: Server, client: openai.OpenAI) -> None:
    job = client.fine_tuning.jobs.create(model="latest", training_file=upload(client), metadata=GENEROUS)
    jobs = server.service.jobs
    assert jobs is not None
    wait(client, job.id, lambda one: one.status == "running")
    jobs._process.send_signal(signal.SIGINT)
    done = wait(client, job.id, at_end)
    assert (done.status, done.error) == ("succeeded", None)


@pytest.mark.slow
def test_a_model_that_forgot_is_refused_and_latest_stays(client: openai.OpenAI, versions: Versions) -> None:
    before = versions.accepted().name
    hyperparameters = {"learning_rate_multiplier": 100.0, "n_epochs": 1}
    harmful = "\n".join(json.dumps({"text": "\u65e5\u672c\u8a9e" * 60 + str(number)}) for number in range(24))
    file = client.files.create(file=("harm.jsonl", harmful.encode()), purpose="fine-tune").id
    job = client.fine_tuning.jobs.create(
        model="latest", training_file=file, suffix="colours", seed=1,
        method={"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
        metadata={"steps": "20", "max_forgetting": "0", "replay_share": "0", "owner": "me"},
    )  # fmt: skip
    done = wait(client, job.id, at_end)
    assert done.status == "failed"
    assert done.error.code == "forgetting"
    assert {"fruit", "tools"} & set(done.error.param.split(","))
    assert done.metadata["owner"] == "me"
    assert versions.accepted().name == before
    assert client.completions.create(model="latest", prompt="red", max_tokens=1).model == before


@pytest.mark.slow
def test_a_job_pauses_goes_on_and_is_cancelled(client: openai.OpenAI, versions: Versions) -> None:
    metadata = {"steps": "2000", "max_forgetting": "1000"}
    file = upload(client)
    job = client.fine_tuning.jobs.create(model="latest", training_file=file, suffix="colours", metadata=metadata)
    waiting = client.fine_tuning.jobs.create(model="latest", training_file=file, metadata=metadata)
    wait(client, job.id, lambda now: now.status == "running")

    def has_steps(_: Any) -> bool:
        return any(event.type == "metrics" for event in client.fine_tuning.jobs.list_events(job.id, limit=100))

    wait(client, job.id, has_steps)
    assert client.fine_tuning.jobs.retrieve(waiting.id).status == "queued"
    assert client.fine_tuning.jobs.cancel(waiting.id).status == "cancelled"
    assert client.fine_tuning.jobs.pause(job.id).status == "paused"
    assert client.completions.create(model="latest", prompt="red", max_tokens=1).choices
    assert client.fine_tuning.jobs.resume(job.id).status == "queued"
    wait(client, job.id, lambda now: now.status == "running")
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    assert versions.attempts() == []
    assert [one.id for one in client.fine_tuning.jobs.list(limit=1)] == [waiting.id, job.id]


@pytest.mark.slow
@pytest.mark.parametrize("point", [*SERVING, "server stops"])
def test_a_restarted_server_finishes_the_job_with_the_same_weights(
    first_version: Path, versions: Versions, tmp_path: Path, point: str
) -> None:
    undisturbed = Versions(shutil.copytree(first_version, tmp_path / "undisturbed"))

    def teach(client: openai.OpenAI) -> str:
        metadata = {"steps": "8", "max_forgetting": "1000"}
        file = upload(client)
        return client.fine_tuning.jobs.create(
            model="latest", training_file=file, suffix="colours", metadata=metadata
        ).id

    settings = ServerSettings(undisturbed.folder, port=0, data=tmp_path / "quiet")
    with Server(settings) as server, client_of(server) as client:
        assert wait(client, teach(client), at_end).status == "succeeded"

    arguments = [sys.executable, "-m", "trc2", "serve", str(versions.folder), "--port", "0"]
    arguments += ["--data", str(tmp_path / "data")]
    environment = {**os.environ, "TRC2_KILL_AT": f"{point}:1"}
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    url = process.stderr.readline().split(" at ")[1].split("/v1")[0]
    while True:
        try:
            urlopen(f"{url}/health").close()
            break
        except OSError:
            time.sleep(0.1)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        job = teach(client)
        if point == "server stops":
            wait(client, job, lambda now: now.status == "running")
            time.sleep(2)
            process.terminate()
    process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (-9, -15)
    with Server(ServerSettings(versions.folder, port=0, data=tmp_path / "data")) as server, client_of(server) as client:
        done = wait(client, job, at_end)
        assert (done.status, done.error) == ("succeeded", None)
        assert [one.id for one in client.fine_tuning.jobs.list()] == [job]
    ours, theirs = versions.accepted(), undisturbed.accepted()
    assert done.fine_tuned_model == ours.name
    assert len(versions.all()) == 2
    assert {name: info["sha256"] for name, info in ours.files.items() if name.endswith(".safetensors")} == {
        name: info["sha256"] for name, info in theirs.files.items() if name.endswith(".safetensors")
    }
