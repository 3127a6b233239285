"""`trc2 teach URL` and `trc2 versions URL`: what they send, what they print, and how they exit."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.command import trc2 as command
from tests.serving.conftest import Start, save_words_model
from trc2.serving.client import VARIABLE, Client, ServerLost
from trc2.serving.server import JobSettings, Limits, Server, ServerSettings
from trc2.versions.registry import Versions

COLOURS = "red blue green grey " * 6


@pytest.fixture
def versions(first_version: Path, tmp_path: Path) -> Versions:
    return Versions(shutil.copytree(first_version, tmp_path / "versions"))


@pytest.fixture
def server(versions: Versions, tmp_path: Path) -> Iterator[Server]:
    with Server(ServerSettings(versions.folder, port=0, data=tmp_path / "data")) as one:
        yield one


@pytest.fixture
def week(tmp_path: Path) -> Path:
    """A folder of documents of two kinds."""
    folder = tmp_path / "week"
    folder.mkdir()
    for number in range(22):
        (folder / f"{number:02d}.txt").write_text(f"{COLOURS}{number}")
    (folder / "more.jsonl").write_text("".join(json.dumps({"text": f"{COLOURS}{n}"}) + "\n" for n in (30, 31)))
    return folder


def test_a_folder_is_uploaded_as_one_file_and_the_job_gets_the_options(server: Server, week: Path) -> None:
    options = ["--task", "colours", "--max-forgetting", "0.5", "--replay-share", "0.25", "--steps", "3", "--no-wait"]
    done = command("teach", f"{server.url}/v1/", str(week), *options, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert (said["file"]["documents"], said["file"]["filename"], said["version"]) == (24, "week.jsonl", None)
    assert said["job"]["task"] == "colours"
    assert said["job"]["metadata"] == {"max_forgetting": "0.5", "replay_share": "0.25", "steps": "3"}
    service = server.service
    assert service.files is not None
    rows = service.files.path(said["file"]["id"]).read_text().splitlines()
    assert [json.loads(row)["text"] for row in (rows[0], rows[-1])] == [f"{COLOURS}0", f"{COLOURS}31"]


def test_files_of_rows_are_sent_as_they_are(server: Server, tmp_path: Path) -> None:
    rows = [b'{"prompt": "red ", "completion": "blue"}', b'{"text": "x"}']
    for number, row in enumerate(rows):
        (tmp_path / f"{number}.jsonl").write_bytes(row)
    files = [str(tmp_path / f"{number}.jsonl") for number in range(2)]
    client = Client(server.url)
    assert command("teach", server.url, *files, "--no-wait").code == 0
    (stored,) = client.get("/v1/files")["data"]
    assert (stored["documents"], stored["bytes"]) == (2, len(b"\n".join(rows)) + 1)


def test_a_cancelled_job_exits_with_1(server: Server, week: Path) -> None:
    def cancel() -> None:
        client = Client(server.url)
        while not (jobs := client.get("/v1/fine_tuning/jobs")["data"]):
            time.sleep(0.02)
        client.post(f"/v1/fine_tuning/jobs/{jobs[0]['id']}/cancel", {})

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    done = command("teach", server.url, str(week), "--steps", "2000", "--max-forgetting", "1000")
    cancelling.join()
    assert (done.code, "cancelled" in done.err) == (1, True), done.err


@pytest.mark.slow
def test_an_accepted_job_exits_with_0_and_a_refused_one_with_3(server: Server, versions: Versions, week: Path) -> None:
    before = versions.accepted()
    harm = week.parent / "harm.jsonl"
    harm.write_text("".join(json.dumps({"text": f"日本語{number} " * 60}) + "\n" for number in range(24)))
    options = ["--steps", "40", "--replay-share", "0", "--max-forgetting", "0", "--json"]
    done = command("teach", server.url, str(harm), *options)
    assert done.code == 3, done.err
    said = json.loads(done.out)
    assert (said["job"]["error"]["code"], said["version"]) == ("forgetting", None)
    assert not all(task["passed"] for task in said["job"]["verdict"]["tasks"].values())
    assert versions.accepted().name == before.name
    done = command("teach", server.url, str(week), "--task", "colours", "--steps", "3", "--max-forgetting", "1000")
    assert done.code == 0, done.err
    accepted = versions.accepted()
    assert accepted.name != before.name
    assert f"{accepted.name} is accepted now." in done.out
    assert "documents of fruit: " in done.out
    assert "step " in done.err
    listed = json.loads(command("versions", server.url, "--json").out)
    assert listed["data"][0]["verdict"]["passed"] is True


@pytest.mark.slow
def test_a_version_waits_for_a_person_if_the_server_says_so(
    versions: Versions, week: Path, tmp_path: Path, start: Start
) -> None:
    before = versions.accepted()
    server = start(versions.folder, data=tmp_path / "data", jobs=JobSettings(hold=True))
    done = command("teach", server.url, str(week), "--task", "colours", "--steps", "3", "--max-forgetting", "1000")
    assert done.code == 0, done.err
    held = versions.all()[-1]
    assert f"{held.name} waits: `trc2 versions {server.url} --promote 2` accepts it." in done.out.replace("\n", " ")
    assert versions.accepted().name == before.name
    client = Client(server.url)
    body = {"prompt": "red", "max_tokens": 1}
    assert client.post("/v1/completions", {"model": "latest", **body})["model"] == before.name
    assert client.post("/v1/completions", {"model": held.name, **body})["model"] == held.name
    (job,) = client.get("/v1/fine_tuning/jobs")["data"]
    last = client.get(f"/v1/fine_tuning/jobs/{job['id']}/events")["data"][0]
    assert "waits until a person promotes it" in last["message"]
    assert "waits" in command("versions", server.url).out
    moved = json.loads(command("versions", server.url, "--promote", "2", "--json").out)
    assert (moved["latest"], moved["data"][0]["is_held"]) == (held.name, False)


@pytest.mark.slow
def test_a_server_that_starts_again_is_waited_for_and_one_that_does_not_is_lost(
    versions: Versions, week: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServerSettings(versions.folder, port=0, data=tmp_path / "data")
    with ExitStack() as stack:
        server = stack.enter_context(Server(settings))
        client, again = Client(server.url), replace(settings, port=int(server.url.rpartition(":")[2]))
        job = json.loads(command("teach", server.url, str(week), "--no-wait", "--json").out)["job"]["id"]
        path = f"/v1/fine_tuning/jobs/{job}"
        client.post(f"{path}/pause", {})
        seen: list[str] = []

        def see(state: dict[str, Any]) -> None:
            seen.append(state["status"])
            if len(seen) == 1:
                stack.close()
                threading.Timer(1.5, lambda: stack.enter_context(Server(again))).start()
            elif len(seen) == 2:
                client.post(f"{path}/cancel", {})

        assert client.follow(job, see)["status"] == "cancelled"
        assert seen == ["paused", "paused", "cancelled"]
    monkeypatch.setattr("trc2.serving.client.LOST_SECONDS", 0.1)
    with pytest.raises(ServerLost, match="did not come back"):
        client.follow(job, see)


def test_bad_input_is_one_sentence_and_exit_code_2(server: Server, week: Path, tmp_path: Path) -> None:
    class Html(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    other = HTTPServer(("127.0.0.1", 0), Html)
    threading.Thread(target=other.handle_request, daemon=True).start()
    address = f"http://127.0.0.1:{other.server_port}"
    for words, sentence in (
        (["teach", server.url, str(tmp_path / "none")], "There is no file or folder"),
        (["teach", server.url, str(week), "--task", "../x"], "suffix"),
        (["teach", "http://", str(week)], "is not the address of a server"),
        (["teach", "http://127.0.0.1:99999", str(week)], "is not the address of a server"),
        (["teach", str(week), str(week), "--task", "x"], "is for a server"),
        (["teach", str(week), str(week), "--no-wait"], "is for a server"),
        (["versions", server.url, "--promote", "77"], "has no version '77'"),
        (["versions", server.url, "--rollback"], "is the first version"),
        (["versions", server.url, "--rollback", "--promote", "1"], "give one of them"),
        (["versions", server.url, "--reason", "x"], "give --promote or --rollback"),
        (["versions", str(week)], "is not a versions folder"),
        (["versions", str(week), "--tokens", "x"], "is for a server"),
        (["continue", str(week), "--hold", "--task", "x=y"], "give --promote too"),
        (["versions", address], "but not as `trc2 serve` does"),
        (["versions", "http://127.0.0.1:9"], "No server answers"),
    ):
        done = command(*words)
        assert (done.code, sentence in done.err) == (2, True), (words, done.err)
    other.server_close()
    assert Client(server.url).get("/v1/fine_tuning/jobs")["data"] == []


def test_a_file_that_is_too_large_is_refused_with_the_sentence_of_the_server(
    versions: Versions, tmp_path: Path, start: Start
) -> None:
    server = start(versions.folder, data=tmp_path / "data", limits=Limits(file_bytes=1000))
    (tmp_path / "large.txt").write_text("word " * 200_000)
    done = command("teach", server.url, str(tmp_path / "large.txt"))
    assert (done.code, "more than 1,000 bytes" in done.err) == (2, True), done.err


def test_a_token_comes_from_the_environment_or_a_file(
    tmp_path: Path, words_model: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Versions(tmp_path / "versions")
    first = folder.promote(words_model, first=True)
    second = folder.promote(save_words_model(tmp_path / "other", seed=1), anyway=True)
    tokens = tmp_path / "tokens"
    tokens.write_text("ask ask-0123456789abcde\nadmin admin-0123456789abc\n")
    server = start(folder.folder, tokens=tokens)
    done = command("versions", server.url)
    assert (done.code, VARIABLE in done.err) == (2, True)
    monkeypatch.setenv(VARIABLE, "ask-0123456789abcde")
    assert f"{second.name} is accepted now." in command("versions", server.url).out
    refused = command("versions", server.url, "--rollback")
    assert (refused.code, "needs 'admin'" in refused.err) == (2, True)
    moved = command("versions", server.url, "--rollback", "--reason", "it forgot", "--tokens", str(tokens), "--json")
    assert json.loads(moved.out)["latest"] == first.name
    assert folder.events()[-1].reason == "it forgot"
    tokens.write_text("ask ask-0123456789abcde\n")
    done = command("teach", server.url, str(tmp_path), "--tokens", str(tokens))
    assert (done.code, "right 'teach'" in done.err) == (2, True)


def test_a_folder_is_listed_as_its_server_lists_it(tmp_path: Path, words_model: Path, start: Start) -> None:
    folder = Versions(tmp_path / "versions")
    first = folder.promote(words_model, first=True)
    second = folder.promote(save_words_model(tmp_path / "other", seed=1), anyway=True)
    server = start(folder.folder)
    here = json.loads(command("versions", str(folder.folder), "--json").out)["data"]
    there = json.loads(command("versions", server.url, "--json").out)["data"]
    assert here == [{name: value for name, value in one.items() if name != "is_loaded"} for one in there]
    assert json.loads(command("versions", str(folder.folder), "--rollback", "--json").out)["latest"] == first.name
    assert json.loads(command("versions", server.url, "--promote", "2", "--json").out)["latest"] == second.name
    assert folder.accepted().name == second.name
