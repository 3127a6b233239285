"""/v1/fine_tuning/jobs through OpenAI's own client: upload, teach, follow, ask the new model, and after a kill."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import openai
import psutil
import pytest
import sqlalchemy as sa

from tests.chats import conversations, messages, write_rows, write_tokenizer
from tests.conftest import QUIET, tiny_run_config, write_task
from tests.serving.conftest import client_of, eventually
from tests.versions.conftest import flip
from trc2.runs.folder import RunFolder
from trc2.serving.server import JobSettings, Server, ServerSettings
from trc2.serving.store import JOBS, open_database
from trc2.serving.worker import _is_ours
from trc2.system.failpoints import SERVING
from trc2.training.setup import start_run
from trc2.versions.registry import Versions

ROWS = "\n".join(json.dumps({"text": f"red blue green grey {number} " * 6}) for number in range(24)).encode()
GENEROUS = {"steps": "3", "max_forgetting": "1000"}


@pytest.fixture
def versions(first_version: Path, tmp_path: Path) -> Versions:
    return Versions(shutil.copytree(first_version, tmp_path / "versions"))


@pytest.fixture
def server(versions: Versions, tmp_path: Path, registry: str | None) -> Iterator[Server]:
    with Server(ServerSettings(versions.folder, port=0, data=tmp_path / "data", registry=registry)) as one:
        yield one


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as one:
        yield one


def upload(client: openai.OpenAI) -> str:
    return client.files.create(file=("week.jsonl", ROWS), purpose="fine-tune").id


def wait(client: openai.OpenAI, job: str, is_over: Callable[[Any], bool]) -> Any:
    until = time.monotonic() + 300
    while not is_over(now := client.fine_tuning.jobs.retrieve(job)):
        assert time.monotonic() < until, f"{now.status}: {now.error}"
        time.sleep(0.05)
    return now


def read_report(client: openai.OpenAI, job: Any) -> Any:
    """The one result file of a job."""
    (file,) = client.files.list(purpose="fine-tune-results")
    assert job.result_files == [file.id]
    assert (file.filename, file.purpose) == ("report.json", "fine-tune-results")
    return json.loads(client.files.content(file.id).read())


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
        {"hyperparameters": {"batch_size": 0}},
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


def test_hyperparameters_become_settings_of_the_run(tmp_path: Path) -> None:
    versions = several(tmp_path)
    run = versions.accepted().run
    assert run is not None
    before = RunFolder(run).config().train
    settings = ServerSettings(versions.folder, port=0, data=tmp_path / "data")
    with Server(settings) as server, client_of(server) as client:
        wanted: dict[str, Any] = {"model": "latest", "training_file": upload(client), "seed": 7}
        chosen = {"batch_size": 6, "learning_rate_multiplier": 0.5, "n_epochs": 2}
        job = client.fine_tuning.jobs.create(**wanted, hyperparameters=chosen)
        client.fine_tuning.jobs.pause(job.id)
        assert {name: getattr(job.hyperparameters, name) for name in chosen} == chosen
        jobs = server.service.jobs
        assert jobs is not None
        words = jobs.row(job.id).arguments
        rate = before.learning_rate * 0.5
        assert words[-3:] == ["train.seed=7", f"train.learning_rate={rate!r}", "train.batch_size=3"]
        steps = int(words[words.index("--steps") + 1])
        assert steps == math.ceil(2 * len(ROWS) / 4 / (6 * before.sequence_length))
        with pytest.raises(openai.BadRequestError, match="not a multiple of 2"):
            client.fine_tuning.jobs.create(**wanted, hyperparameters={"batch_size": 5})


def test_rows_with_messages_are_refused_without_a_chat_template(client: openai.OpenAI) -> None:
    row = json.dumps(messages("x", "y")).encode()
    file = client.files.create(file=("chat.jsonl", row), purpose="fine-tune").id
    with pytest.raises(openai.BadRequestError) as caught:
        client.fine_tuning.jobs.create(model="latest", training_file=file)
    assert caught.value.code == "unsupported_rows"


@pytest.mark.slow
def test_conversations_are_taught_to_a_model_with_a_chat_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    write_rows(tmp_path / "chats" / "train.jsonl", conversations(80))
    stream = {
        "tasks": [{"name": "chats", "folder": "chats", "steps": 2}], "tokenizer": {"path": str(tmp_path / "tokenizer")},
    }  # fmt: skip
    run = start_run(tiny_run_config(tmp_path, tmp_path / "run", stream=stream), QUIET)
    versions = Versions(tmp_path / "versions")
    versions.promote(run, first=True)
    week = [messages(f"you two {number} are three", f"sky sky {number} number") for number in range(30)]
    rows = "\n".join(map(json.dumps, [*week, {"prompt": "one two three four", "completion": "red"}])).encode()
    settings = ServerSettings(versions.folder, port=0, data=tmp_path / "data")
    with Server(settings) as server, client_of(server) as client:
        file = client.files.create(file=("week.jsonl", rows), purpose="fine-tune").id
        job = client.fine_tuning.jobs.create(model="latest", training_file=file, suffix="more", metadata=GENEROUS)
        done = wait(client, job.id, at_end)
        assert (done.status, done.error) == ("succeeded", None)
        asked = [{"role": "user", "content": "what is the sky"}]
        client.chat.completions.create(model=done.fine_tuned_model, messages=asked, max_tokens=2)
    taught = RunFolder(versions.accepted().folder / "run").data()["tasks"]["more"]["splits"]["train"]
    assert taught["chats"] == taught["documents"]
    assert taught["counted"] < taught["tokens"]


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
    report = read_report(client, done)
    assert report["version"]["name"] == done.fine_tuned_model
    assert report["verdict"]["passed"]
    assert set(report["verdict"]["tasks"]) == {"fruit", "tools"}
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert checkpoint.fine_tuned_model_checkpoint == done.fine_tuned_model
    assert not (tmp_path / "data" / "cache").exists()
    left = sorted(path.name for path in (tmp_path / "data" / "jobs" / job.id).iterdir())
    assert left == ["metrics.jsonl", "stderr", "stdout"]
    with pytest.raises(openai.ConflictError):
        client.fine_tuning.jobs.cancel(job.id)


@pytest.mark.slow
def test_a_damaged_old_version_does_not_change_how_a_job_ends(versions: Versions, tmp_path: Path) -> None:
    first = versions.accepted()
    assert first.run is not None
    versions.promote(shutil.copytree(first.run, tmp_path / "run"), anyway=True)
    flip(first.folder / "version.json")
    with Server(ServerSettings(versions.folder, port=0, data=tmp_path / "data")) as server, client_of(server) as client:
        job = client.fine_tuning.jobs.create(
            model="latest", training_file=upload(client), suffix="colours", metadata=GENEROUS
        )
        done = wait(client, job.id, at_end)
        assert (done.status, done.error) == ("succeeded", None)
        assert done.fine_tuned_model == versions.accepted().name
        assert read_report(client, done)["version"]["name"] == done.fine_tuned_model
    assert [bool(version.problem) for version in versions.all()] == [True, False, False]


@pytest.mark.slow
def test_a_job_with_text_that_a_waiting_version_learned_says_that_it_waits(versions: Versions, tmp_path: Path) -> None:
    models, before = [], versions.accepted().name
    for hold in (True, False):
        settings = ServerSettings(versions.folder, port=0, data=tmp_path / "data", jobs=JobSettings(hold=hold))
        with Server(settings) as server, client_of(server) as client:
            job = client.fine_tuning.jobs.create(
                model="latest", training_file=upload(client), suffix="colours", metadata=GENEROUS
            )
            done = wait(client, job.id, at_end)
            assert (done.status, done.error) == ("succeeded", None)
            models.append(done.fine_tuned_model)
            last = next(iter(client.fine_tuning.jobs.list_events(job.id, limit=1)))
            assert f"{done.fine_tuned_model} waits until a person promotes it" in last.message
    assert models[0] == models[1] == versions.waiting()[0].name
    assert versions.accepted().name == before


def follow(server: Server, job: str, most: int = 10**6) -> list[dict[str, Any]]:
    """Events as they happen, up to the end of the job or up to a number after which the connection is given up."""
    events: list[dict[str, Any]] = []
    with urlopen(f"{server.url}/v1/fine_tuning/jobs/{job}/events?stream=true", timeout=60) as stream:
        for line in stream:
            if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                events.append(json.loads(line[6:]))
            if len(events) == most:
                break
    return events


@pytest.mark.slow
def test_a_follower_gets_every_event_once_also_after_a_lost_connection(server: Server, client: openai.OpenAI) -> None:
    metadata = {"steps": "12", "max_forgetting": "1000"}
    job = client.fine_tuning.jobs.create(model="latest", training_file=upload(client), metadata=metadata)
    assert (job.task, job.progress, job.estimated_finish) == ("documents", None, None)
    begun = follow(server, job.id, most=2)
    worker = server.service.worker
    assert worker is not None
    wait(client, job.id, lambda one: one.progress is not None and one.progress["step"] > 2)
    running = client.fine_tuning.jobs.retrieve(job.id)
    worker.process.send_signal(signal.SIGINT)  # steps are repeated after it
    everything = follow(server, job.id)
    assert running.progress["steps"] == 12
    assert client.fine_tuning.jobs.retrieve(job.id).status == "succeeded"
    identities = [event["id"] for event in everything]
    assert len(set(identities)) == len(identities)
    assert {event["id"] for event in begun} <= set(identities)
    assert set(identities) == {event.id for event in client.fine_tuning.jobs.list_events(job.id, limit=100)}
    trained = [event["data"]["step"] for event in everything if event["data"] and event["data"]["kind"] == "train"]
    assert trained == list(range(1, 13))  # its own steps, not those of the run that it goes on from
    assert eventually(lambda: server.service.followers == 0)


def test_a_server_with_followers_stops_at_once(versions: Versions, tmp_path: Path) -> None:
    with Server(ServerSettings(versions.folder, port=0, data=tmp_path / "data")) as server, client_of(server) as client:
        job = client.fine_tuning.jobs.create(model="latest", training_file=upload(client), metadata=GENEROUS)
        client.fine_tuning.jobs.pause(job.id)
        stream = urlopen(f"{server.url}/v1/fine_tuning/jobs/{job.id}/events?stream=true", timeout=60)
        assert stream.readline().startswith(b"data: ")
        with pytest.raises(HTTPError) as caught:
            urlopen(f"{server.url}/v1/fine_tuning/jobs/none/events?stream=true")
        caught.value.close()
        begun = time.monotonic()
    assert time.monotonic() - begun < 15
    stream.close()


def test_a_job_whose_process_is_interrupted_waits_and_goes_on(server: Server, client: openai.OpenAI) -> None:
    long = {**GENEROUS, "steps": "60"}  # else it may end before the signal arrives
    job = client.fine_tuning.jobs.create(model="latest", training_file=upload(client), metadata=long)
    worker = server.service.worker
    assert worker is not None
    wait(client, job.id, lambda one: one.progress is not None)  # Python itself fails if it is interrupted as it starts
    worker.process.send_signal(signal.SIGINT)
    done = wait(client, job.id, at_end)
    assert (done.status, done.error) == ("succeeded", None)
    messages = [event.message for event in client.fine_tuning.jobs.list_events(job.id, limit=100)]
    assert messages.count("The job was interrupted and goes on later.") == 1


@pytest.mark.slow
def test_a_job_whose_process_is_killed_goes_on_until_it_is_hopeless(
    server: Server, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trc2.serving.worker.MAX_KILLS", 2)
    job = client.fine_tuning.jobs.create(model="latest", training_file=upload(client), metadata=GENEROUS)
    jobs, worker = server.service.jobs, server.service.worker
    assert jobs is not None
    assert worker is not None
    killed: set[int] = set()
    while len(killed) < 2:
        process = worker.process
        if process is not None and process.pid not in killed:
            process.kill()
            killed.add(process.pid)
        time.sleep(0.05)
    done = wait(client, job.id, at_end)
    assert (done.status, done.error.code) == ("failed", "killed")
    run = jobs.versions.accepted().run
    assert run is not None
    assert done.seed == RunFolder(run).config().train.seed
    assert not (jobs.folder / job.id / "text").exists()


def test_the_number_of_another_process_is_not_taken_for_the_job() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "ftjob-1"])
    try:
        while "ftjob-1" not in psutil.Process(sleeper.pid).cmdline():
            time.sleep(0.01)
        started = psutil.Process(sleeper.pid).create_time()
        assert _is_ours(SimpleNamespace(pid=sleeper.pid, pid_started=started, id="ftjob-1"))
        assert not _is_ours(SimpleNamespace(pid=sleeper.pid, pid_started=started - 100, id="ftjob-1"))
    finally:
        sleeper.kill()
        sleeper.wait()


def several(tmp_path: Path) -> Versions:
    """A versions folder whose model can be trained by two processes."""
    write_task(tmp_path, "fruit", ["apple", "pear"])
    write_task(tmp_path, "tools", ["saw", "axe"])
    versions = Versions(tmp_path / "versions")
    versions.promote(start_run(tiny_run_config(tmp_path, tmp_path / "run"), QUIET), first=True)
    return versions


@pytest.mark.slow
@pytest.mark.parametrize("settings", [JobSettings(nproc=2), JobSettings(launcher="ray")], ids=["two", "ray"])
def test_a_job_that_is_launched_in_another_way_survives_the_same(
    tmp_path: Path, settings: JobSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settings.launcher == "ray":
        pytest.importorskip("ray", reason="ray is an extra: pip install '.[ray]'")
    versions = several(tmp_path)
    metadata = {"steps": "40", "max_forgetting": "1000"}
    with (
        Server(ServerSettings(versions.folder, port=0, data=tmp_path / "data", jobs=settings)) as server,
        client_of(server) as client,
    ):
        job = client.fine_tuning.jobs.create(model="latest", training_file=upload(client), metadata=metadata)
        worker = server.service.worker
        assert worker is not None
        wait(client, job.id, lambda one: one.progress is not None and one.progress["step"] > 1)
        first = worker.process
        assert first is not None
        first.kill()  # those that it started save and end
        wait(client, job.id, lambda _: worker.process not in (None, first))
        wait(client, job.id, lambda one: one.progress is not None and one.status == "running")
        assert client.fine_tuning.jobs.pause(job.id).status == "paused"
        client.fine_tuning.jobs.resume(job.id)
        done = wait(client, job.id, at_end)
        assert (done.status, done.error) == ("succeeded", None)
        assert done.fine_tuned_model == versions.accepted().name
        assert client.completions.create(model="latest", prompt="red", max_tokens=2).choices


def test_a_model_that_cannot_be_divided_is_refused_before_its_job_waits(versions: Versions, tmp_path: Path) -> None:
    settings = ServerSettings(versions.folder, port=0, data=tmp_path / "data", jobs=JobSettings(nproc=2))
    with (
        Server(settings) as server,
        client_of(server) as client,
        pytest.raises(openai.BadRequestError, match="cannot be divided over 2 processes"),
    ):
        client.fine_tuning.jobs.create(model="latest", training_file=upload(client))


def test_a_job_is_cancelled_while_its_old_process_does_not_end(versions: Versions, tmp_path: Path) -> None:
    """Its server was killed, and the process hangs."""
    settings = ServerSettings(versions.folder, port=0, data=tmp_path / "data")
    with Server(settings) as server, client_of(server) as client:
        file = upload(client)
        job = client.fine_tuning.jobs.create(model="latest", training_file=file, metadata=GENEROUS).id
        client.fine_tuning.jobs.pause(job)
    hangs = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", job])
    try:
        database = open_database(tmp_path / "data")
        with database.begin() as connection:
            running = {"status": "running", "pid": hangs.pid, "pid_started": psutil.Process(hangs.pid).create_time()}
            connection.execute(sa.update(JOBS).values(**running))
        database.dispose()
        with Server(settings) as server, client_of(server) as client:
            assert client.fine_tuning.jobs.retrieve(job).status == "running"
            assert client.fine_tuning.jobs.cancel(job).status == "cancelled"
        assert hangs.wait(10) == -signal.SIGKILL
    finally:
        hangs.kill()


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
    report = read_report(client, done)
    assert (report["version"], report["verdict"]["passed"]) == (None, False)
    lost = [name for name, task in report["verdict"]["tasks"].items() if not task["passed"]]
    assert lost == done.error.param.split(",")
    assert versions.accepted().name == before
    assert client.completions.create(model="latest", prompt="red", max_tokens=1).model == before


@pytest.mark.slow
def test_a_job_pauses_goes_on_and_is_cancelled(client: openai.OpenAI, versions: Versions) -> None:
    metadata = {"steps": "50000", "max_forgetting": "1000"}
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
def test_one_of_two_servers_runs_a_job_and_both_can_stop_it(
    server: Server, versions: Versions, tmp_path: Path, registry: str | None
) -> None:
    settings = ServerSettings(versions.folder, port=0, data=tmp_path / "data", registry=registry)
    metadata = {"steps": "50000", "max_forgetting": "1000"}
    with client_of(server) as first, Server(settings) as other, client_of(other) as second:
        workers = [one.service.worker for one in (server, other)]
        assert workers[0] is not None
        assert workers[1] is not None
        made = [
            client.fine_tuning.jobs.create(model="latest", training_file=upload(client), metadata=metadata).id
            for client in (second, first)
        ]
        wait(second, made[0], lambda now: now.status == "running" and workers[0].process)
        assert workers[1].process is None
        assert first.fine_tuning.jobs.retrieve(made[1]).status == "queued"
        assert second.fine_tuning.jobs.cancel(made[1]).status == "cancelled"
        assert second.fine_tuning.jobs.pause(made[0]).status == "paused"
        assert workers[0].process is None
        assert first.fine_tuning.jobs.cancel(made[0]).status == "cancelled"
        assert [job.id for job in second.fine_tuning.jobs.list()] == made[::-1]


@pytest.mark.slow
def test_a_job_that_a_signal_stopped_says_so_and_can_be_paused(server: Server, client: openai.OpenAI) -> None:
    metadata = {"steps": "50000", "max_forgetting": "1000"}
    job = client.fine_tuning.jobs.create(model="latest", training_file=upload(client), metadata=metadata).id
    worker = server.service.worker
    assert worker is not None
    wait(client, job, lambda _: worker.process is not None)
    worker.process.send_signal(signal.SIGSTOP)

    def has_said(text: str) -> Callable[[Any], bool]:
        return lambda _: any(text in event.message for event in client.fine_tuning.jobs.list_events(job, limit=100))

    wait(client, job, has_said("was stopped by a signal and waits"))
    assert client.fine_tuning.jobs.retrieve(job).status == "running"
    assert client.fine_tuning.jobs.pause(job).status == "paused"
    assert client.fine_tuning.jobs.cancel(job).status == "cancelled"


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
        assert read_report(client, done)["version"]["name"] == done.fine_tuned_model
    ours, theirs = versions.accepted(), undisturbed.accepted()
    assert done.fine_tuned_model == ours.name
    assert len(versions.all()) == 2
    assert {name: info["sha256"] for name, info in ours.files.items() if name.endswith(".safetensors")} == {
        name: info["sha256"] for name, info in theirs.files.items() if name.endswith(".safetensors")
    }
