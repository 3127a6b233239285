"""The page at `/` in a real browser: versions, jobs, comparing, moving, tokens, keyboard, phone, lost connections."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.browser import Page, find_browser, open_browser
from tests.serving.conftest import Start, save_words_model
from tests.serving.test_completions import send
from trc2.runs.records import Record
from trc2.serving.client import Client
from trc2.serving.server import Server, ServerSettings
from trc2.serving.store import JOBS, now
from trc2.serving.worker import Worker
from trc2.versions.registry import Versions

EVIL = "<img src=x onerror=document.body.dataset.evil=1>"
READY = "document.body.dataset.ready === 'yes'"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = find_browser()
    if program is None:
        pytest.skip("no chromium here: the page is not tried in a browser")
    with open_browser(program, tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture
def versions(tmp_path: Path, words_model: Path) -> Versions:
    """Two versions. The second, which is accepted, has a reason that is markup."""
    folder = Versions(tmp_path / "versions")
    folder.promote(words_model, first=True)
    folder.promote(save_words_model(tmp_path / "other", seed=1), anyway=True, reason=EVIL)
    return folder


def click(page: Page, identity: str) -> None:
    page.run(f"document.getElementById({json.dumps(identity)}).click()")


def text(page: Page, identity: str) -> str:
    return str(page.run(f"document.getElementById({json.dumps(identity)}).textContent"))


def test_the_page_allows_only_its_own_files(words_model: Path, start: Start) -> None:
    server = start(words_model)
    with urlopen(f"{server.url}/") as answer:
        policy, html = answer.headers["content-security-policy"], answer.read().decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "style=" not in html
    assert "onclick" not in html
    for address in ("page/page.css", "page/page.js", "page/icon.svg"):
        assert f'"{address}"' in html
        assert urlopen(f"{server.url}/{address}").status == 200
    script = urlopen(f"{server.url}/page/page.js").read().decode()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script
    assert send(server, "GET", "/page/../page_routes.py")[0] == 404


@pytest.mark.slow
def test_two_versions_are_compared_and_one_is_promoted_after_a_confirmation(
    page: Page, versions: Versions, start: Start
) -> None:
    first, second = versions.all()
    server = start(versions.folder)
    page.problems.clear()
    page.open(server.url)
    page.wait(READY)
    assert text(page, "served-name") == second.name
    assert page.run("document.querySelectorAll('#versions > li').length") == 2
    assert EVIL in text(page, "versions")  # as text

    page.run("document.getElementById('prompt').focus()")
    page.type("apple <b>pear</b>")
    click(page, "ask")
    for side in ("left", "right"):
        page.wait(f"document.getElementById('{side}-note').textContent.startsWith('Answered')")
    for side, version in (("left", second), ("right", first)):
        body = {"model": version.name, "prompt": "apple <b>pear</b>", "max_tokens": 60, "temperature": 0, "seed": 1}
        expected = send(server, "POST", "/v1/completions", json.dumps(body).encode())[2]["choices"][0]["text"]
        assert text(page, f"{side}-answer") == body["prompt"] + expected
        assert text(page, f"{side}-note") == f"Answered by {version.name}."

    click(page, "rollback")
    page.wait("document.getElementById('confirm').open")
    assert page.run("document.activeElement.id") == "confirm-no"
    page.press("Escape")
    page.wait("!document.getElementById('confirm').open")
    assert versions.accepted().name == second.name
    click(page, f"promote-{first.name}")
    page.run("document.getElementById('reason').value = 'it forgot fruit'")
    click(page, "confirm-yes")
    page.wait(f"document.getElementById('served-name').textContent === '{first.name}'")
    assert versions.accepted().name == first.name
    assert versions.events()[-1].reason == "it forgot fruit"
    assert page.run("document.body.dataset.evil") is None
    assert page.problems == []


@pytest.mark.slow
def test_a_token_is_asked_for_and_kept_for_the_tab(
    page: Page, versions: Versions, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text("ask ask-0123456789abcde\n")
    server = start(versions.folder, tokens=tmp_path / "tokens")
    page.open(server.url)
    page.wait("document.getElementById('token-dialog').open")
    assert versions.accepted().name not in page.run("document.body.innerText")
    for given, sentence in (("wrong-0123456789abc", ""), ("ask-0123456789abcde", "does not know")):
        # A field in a closed dialog has the focus until the next frame, so the dialog and its sentence are awaited too.
        page.wait(
            "document.getElementById('token-dialog').open && document.activeElement.id === 'token' && "
            f"document.getElementById('token-error').textContent.includes({json.dumps(sentence)})"
        )
        page.type(given)
        page.press("Enter")
    page.wait(READY)
    assert page.run("JSON.stringify([sessionStorage.length, localStorage.length, document.cookie])") == '[1,0,""]'
    click(page, "rollback")
    click(page, "confirm-yes")
    page.wait("document.getElementById('confirm-error').textContent.includes(\"needs 'admin'\")")
    click(page, "confirm-no")
    page.open(server.url)
    page.wait(READY)  # without another question
    click(page, "forget-token")
    page.wait("document.getElementById('token-dialog').open")


@pytest.mark.slow
def test_everything_can_be_reached_by_the_keyboard(page: Page, versions: Versions, start: Start) -> None:
    first, _ = versions.all()
    page.open(start(versions.folder).url)
    page.wait(READY)
    reached = []
    for _ in range(20):
        page.press("Tab")
        reached.append(page.run("document.activeElement.id"))
    wanted = [
        "rollback",
        "prompt",
        "left",
        "right",
        "max-tokens",
        "temperature",
        "seed",
        "ask",
        f"promote-{first.name}",
    ]
    assert [identity for identity in reached if identity in wanted][: len(wanted)] == wanted
    page.run("document.getElementById('rollback').focus()")
    page.press("Enter")
    page.wait("document.getElementById('confirm').open")
    page.press("Tab", shift=True)
    assert page.run("document.activeElement.id") == "confirm-yes"
    page.press("Enter")
    page.wait(f"document.getElementById('served-name').textContent === '{first.name}'")
    assert page.run("document.querySelectorAll('input:not([id]), button:empty:not([hidden])').length") == 0
    unlabelled = "[...document.querySelectorAll('input, select, textarea')].filter((one) => !one.labels.length).length"
    assert page.run(unlabelled) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_does_not_scroll_sideways(page: Page, versions: Versions, start: Start, dark: bool) -> None:
    page.open(start(versions.folder).url, 320, 640, dark=dark)
    page.wait(READY)
    assert page.run("document.documentElement.scrollWidth") == 320
    heights = page.run("[...document.querySelectorAll('main button')].map((one) => one.offsetHeight)")
    assert min(height for height in heights if height) >= 40  # a thumb can hit them
    # Text on its background has a contrast of at least 4.5 (WCAG AA).
    contrast = """(() => {
      const light = (colour) => {
        const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const back = (one) => {
        while (one && getComputedStyle(one).backgroundColor === 'rgba(0, 0, 0, 0)') one = one.parentElement;
        return light(getComputedStyle(one ?? document.body).backgroundColor);
      };
      const all = [...document.querySelectorAll('h1, h2, p, button, label, li, span')];
      const found = all.filter((one) => one.offsetHeight && one.innerText);
      return Math.min(...found.map((one) => {
        const pair = [light(getComputedStyle(one).color), back(one)].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05);
      }));
    })()"""
    assert page.run(contrast) >= 4.5


# ------------------------------------------------------------------------------------------------------------ the jobs


@pytest.fixture
def teaching(first_version: Path, tmp_path: Path) -> ServerSettings:
    """A server that can teach."""
    return ServerSettings(shutil.copytree(first_version, tmp_path / "versions"), port=0, data=tmp_path / "data")


def add_job(server: Server, identity: str, status: str, **values: Any) -> None:
    """A job in a certain state, as the server itself writes it."""
    jobs = server.service.jobs
    assert jobs is not None
    (jobs.folder / identity).mkdir()
    row = {
        "id": identity, "created_at": now(), "status": status, "model": server.service.shelf.latest.choice.name,
        "training_file": "file-none", "seed": 0, "tokens": 1, "metadata": {}, "hyperparameters": {},
        "arguments": ["continue", "--task", f"{EVIL}=x"], "started_at": now(), **values,
    }  # fmt: skip
    with jobs.database.begin() as connection:
        connection.execute(JOBS.insert().values(row))


def add_scores(server: Server, identity: str, step: int) -> None:
    jobs = server.service.jobs
    assert jobs is not None
    metrics = {"eval/fruit/perplexity": 20.0 + step, f"eval/{EVIL.replace('/', '')}/perplexity": 100.0 / (1 + step)}
    with (jobs.folder / identity / "metrics.jsonl").open("a") as log:
        log.write(Record("eval", step, "fruit", metrics, float(step)).to_json() + "\n")


@pytest.mark.slow
def test_points_of_a_job_are_neither_lost_nor_doubled_when_the_server_starts_again(
    page: Page, teaching: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "_next", lambda _: None)  # the worker leaves the job alone, the test plays it
    circles = "document.querySelectorAll('#chart circle').length"
    with Server(teaching) as server:
        add_job(server, "ftjob-1", "running")
        for step in range(5):
            add_scores(server, "ftjob-1", step)
        add_job(server, "ftjob-2", "queued")
        error = {"code": "forgetting", "message": f"It forgot {EVIL}.", "param": "fruit"}
        add_job(server, "ftjob-0", "failed", error=error, finished_at=now())
        verdict = {"rise": 0.3, "low": 0.2, "high": 0.4, "documents": 4, "passed": False, "verdict": "above"}
        assert teaching.data is not None
        (teaching.data / "jobs" / "ftjob-0" / "stdout").write_text(json.dumps({"tasks": {"fruit": verdict}}))
        page.problems.clear()
        page.open(server.url)
        page.wait(f"{READY} && {circles} === 10")
        assert "queued" in text(page, "queue")
        assert "fruit +30.0 % (+20.0 % … +40.0 %) above" in text(page, "ended")
        port = int(server.url.rpartition(":")[2])
    page.wait("document.getElementById('connection').textContent.startsWith('No connection')")
    with Server(replace(teaching, port=port)) as server:
        for step in range(5, 8):
            add_scores(server, "ftjob-1", step)
        page.wait(f"{circles} === 16", 60)
        page.wait("document.getElementById('connection').textContent === 'Connected'")
        assert page.run("state.following.connections") == 2
        titles = page.run("[...document.querySelectorAll('#chart circle title')].map((one) => one.textContent)")
        assert len(set(titles)) == 16
        fruit = [title for title in titles if title.startswith("fruit")]
        assert fruit == [f"fruit, step {step}: {20 + step}" for step in range(8)]

        page.resize(320, 640)  # names of the lines are then below the picture
        page.wait("document.querySelectorAll('.legend li').length === 2")
        assert page.run("document.documentElement.scrollWidth") == 320
        jobs = server.service.jobs
        assert jobs is not None
        jobs.update("ftjob-1", EVIL)
        page.wait(f"document.getElementById('message-list').textContent.includes({json.dumps(EVIL)})")
        jobs.update("ftjob-1", status="succeeded", finished_at=now(), fine_tuned_model="0002-0123456789ab")
        page.wait("document.getElementById('ended').textContent.includes('became 0002-0123456789ab')")
        assert page.run("document.getElementById('job').hidden")
    assert page.run("document.body.dataset.evil") is None
    assert page.problems == []


@pytest.mark.slow
def test_a_real_job_is_shown_with_its_progress_and_becomes_the_served_version(
    page: Page, teaching: ServerSettings, tmp_path: Path, start: Start
) -> None:
    server = start(teaching.model, data=teaching.data)
    page.open(server.url)
    page.wait(READY)
    client, rows = Client(server.url), tmp_path / "week.jsonl"
    rows.write_text("".join(json.dumps({"text": f"red blue green grey {n} " * 6}) + "\n" for n in range(24)))
    wanted = {"model": "latest", "training_file": client.upload(rows, "week.jsonl")["id"], "suffix": "colours"}
    metadata = {"steps": "300", "max_forgetting": "1000"}  # twelve are over before a page looks again
    client.post("/v1/fine_tuning/jobs", {**wanted, "metadata": metadata})
    page.run("refresh()")  # a page without a job looks every ten seconds
    page.wait("/^Step \\d+ of 300/.test(document.getElementById('job-state').textContent)", 120)
    page.wait("document.getElementById('served-name').textContent.startsWith('0002-')", 120)
    card = page.run("document.querySelector('#versions > li').textContent")
    assert "colours" in card
    assert "passed, limit" in card
    assert "fruit" in card
