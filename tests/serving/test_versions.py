"""Versions: a request is answered wholly by one of them, and there is a way back."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from tests.serving.conftest import Start, client_of, eventually, save_words_model
from tests.serving.test_completions import send
from tests.test_commands import make_llama
from tests.versions.conftest import flip
from trc2 import UserError
from trc2.generate.sampling import Sampling, stream_text
from trc2.runs.target import find_target
from trc2.serving.server import Limits
from trc2.serving.shelf import Choice, OneModel, ServedModel, Shelf, VersionsFolder
from trc2.versions.entry import Version
from trc2.versions.registry import Versions

PROMPTS = ("apple", "saw axe drill", "fig")


@pytest.fixture
def versions(tmp_path: Path, words_model: Path) -> Versions:
    """Two versions with other weights. The second is accepted."""
    folder = Versions(tmp_path / "versions")
    folder.promote(words_model, first=True)
    folder.promote(save_words_model(tmp_path / "other", seed=1), anyway=True)
    return folder


def expected(versions: Versions, number: int) -> dict[tuple[str, str], str]:
    """What each version says to each prompt."""
    texts = {}
    for version in versions.all():
        net, tokenizer = find_target(str(version.model)).trained_model(lambda _: None)
        for prompt in PROMPTS:
            said = stream_text(net, tokenizer, prompt, Sampling(max_tokens=number, temperature=0.9, seed=5))
            texts[version.name, prompt] = "".join(said)
    return texts


def test_versions_are_listed_and_each_can_be_asked(versions: Versions, start: Start) -> None:
    first, second = versions.all()
    server = start(versions.folder)
    texts = expected(versions, 12)
    with client_of(server) as client:
        assert [model.id for model in client.models.list()] == [first.name, second.name, "latest"]
        for model in (first.name, second.name, "latest", first.name):
            answer = client.completions.create(model=model, prompt="apple", max_tokens=12, temperature=0.9, seed=5)
            name = second.name if model == "latest" else model
            assert (answer.model, answer.system_fingerprint) == (name, name)
            assert answer.choices[0].text == texts[name, "apple"]
    status, _, listed = send(server, "GET", "/v1/versions")
    assert status == 200
    assert listed["latest"] == second.name
    assert [(one["id"], one["is_latest"], one["replaced"]) for one in listed["data"]] == [
        (second.name, True, first.name),
        (first.name, False, None),
    ]
    assert send(server, "GET", f"/v1/versions/{first.name}")[2]["is_loaded"] is True
    assert send(server, "GET", "/v1/versions/none")[0] == 404


def test_promote_and_rollback_move_latest_and_are_events(versions: Versions, start: Start) -> None:
    first, second = versions.all()
    server = start(versions.folder)
    status, _, moved = send(server, "POST", "/v1/versions/rollback", b'{"reason": "it forgot fruit"}')
    assert (status, moved["id"]) == (200, first.name)
    assert versions.accepted().name == first.name
    assert versions.events()[-1].reason == "it forgot fruit"
    assert send(server, "GET", "/health")[2] == {"status": "ok", "latest": first.name, "problem": None}
    assert send(server, "POST", "/v1/versions/rollback")[2]["error"]["code"] == "version_conflict"
    for _ in range(2):  # the second changes nothing
        assert send(server, "POST", f"/v1/versions/{second.name}/promote")[2]["id"] == second.name
    assert [event.kind for event in versions.events()] == ["promote", "promote", "rollback", "rollback"]
    assert send(server, "POST", "/v1/versions/none/promote")[0] == 404


def test_another_process_moves_latest_too(versions: Versions, start: Start) -> None:
    first, _ = versions.all()
    server = start(versions.folder)
    versions.rollback()
    assert eventually(lambda: send(server, "GET", "/health")[2]["latest"] == first.name)
    with client_of(server) as client:
        assert client.completions.create(model="latest", prompt="x", max_tokens=1).model == first.name


def test_a_damaged_version_never_answers(versions: Versions, start: Start) -> None:
    first, second = versions.all()
    server = start(versions.folder)
    damage(first)
    assert send(server, "POST", "/v1/versions/rollback")[0] == 409
    with client_of(server) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=first.name, prompt="x", max_tokens=1)
        assert caught.value.code == "model_unreadable"
        assert "checksum differs" in caught.value.message
        assert client.completions.create(model="latest", prompt="x", max_tokens=1).model == second.name


def test_a_damaged_description_is_listed_and_the_others_answer(versions: Versions, start: Start) -> None:
    first, second = versions.all()
    flip(first.folder / "version.json")
    server = start(versions.folder)  # also after a restart
    listed = send(server, "GET", "/v1/versions")[2]["data"]
    assert [(row["id"], row["is_damaged"]) for row in listed] == [(second.name, False), (first.name, True)]
    with client_of(server) as client:
        assert client.completions.create(model="latest", prompt="x", max_tokens=1).model == second.name
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=first.name, prompt="x", max_tokens=1)
        assert caught.value.code == "model_unreadable"
        assert str(versions.folder) not in caught.value.message
    assert send(server, "POST", "/v1/versions/rollback")[0] == 409
    flip(first.folder / "version.json")  # restored from a copy
    assert send(server, "POST", f"/v1/versions/{first.name}/promote")[0] == 200


def damage(version: Version) -> Path:
    weights = next(version.model.glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(content)
    return weights


def test_a_damaged_version_is_not_read_at_every_request(
    versions: Versions, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = versions.all()
    weights = damage(first)
    server, reads, load = start(versions.folder), 0, Shelf.load

    def counted(shelf: Shelf, choice: Choice) -> ServedModel:
        nonlocal reads
        reads += 1
        return load(shelf, choice)

    monkeypatch.setattr(Shelf, "load", counted)
    body = json.dumps({"model": first.name, "prompt": "x", "max_tokens": 1}).encode()
    for _ in range(5):
        status, headers, content = send(server, "POST", "/v1/completions", body)
        assert (status, content["error"]["code"], headers["retry-after"]) == (503, "model_unreadable", "60")
        assert str(versions.folder) not in content["error"]["message"]
    assert reads == 1
    restored = bytearray(weights.read_bytes())
    restored[-3] ^= 1
    weights.write_bytes(restored)
    assert send(server, "POST", f"/v1/versions/{first.name}/promote")[0] == 200  # it is tried at once
    assert reads == 2


def test_the_reason_of_a_problem_needs_a_token(versions: Versions, start: Start, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("ask ask-0123456789abcdef\n")
    server = start(versions.folder, tokens=tmp_path / "tokens")
    server.service.shelf.problem = "folder/of/a/customer is damaged"
    with_token = {"authorization": "Bearer ask-0123456789abcdef"}
    assert "customer" not in send(server, "GET", "/health")[2]["problem"]
    assert "customer" in send(server, "GET", "/health", headers=with_token)[2]["problem"]


def test_promote_does_not_wait_for_ever(versions: Versions, start: Start) -> None:
    server = start(versions.folder, max_loaded=1, limits=Limits(load_seconds=0.2))

    class Busy:
        def join(self, _timeout: float) -> bool:
            return False

    server.service.shelf._closing.append(Busy())  # a version whose answers take long
    status, headers, content = send(server, "POST", "/v1/versions/rollback")
    assert (status, content["error"]["code"], headers["retry-after"]) == (503, "still_loading", "5")
    server.service.shelf._closing.clear()


def test_only_an_administrator_moves_latest(versions: Versions, start: Start, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("teach teach-0123456789abc\nadmin admin-0123456789abc\n")
    server = start(versions.folder, tokens=tmp_path / "tokens")

    def status(token: str) -> int:
        headers = {"authorization": f"Bearer {token}-0123456789abc"}
        return send(server, "POST", "/v1/versions/rollback", headers=headers)[0]

    assert [status("teach"), status("admin")] == [403, 200]


def test_versions_are_read_one_after_the_other(versions: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, load = 0, 0, Shelf.load

    def counted(shelf: Shelf, choice: Choice) -> ServedModel:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return load(shelf, choice)

    async def ask_for_all() -> None:
        shelf = Shelf(VersionsFolder(versions.folder), max_loaded=1)
        await asyncio.gather(*(shelf.model(choice.name) for choice in shelf.choices()))
        shelf.close()

    monkeypatch.setattr(Shelf, "load", counted)
    asyncio.run(ask_for_all())
    assert (len(versions.all()) > 1, most) == (True, 1)


def test_one_model_has_no_versions_to_move(words_model: Path, start: Start) -> None:
    server = start(words_model)
    assert send(server, "POST", "/v1/versions/rollback")[2]["error"]["code"] == "no_versions"
    assert [one["id"] for one in send(server, "GET", "/v1/versions")[2]["data"]] == ["words"]


def test_no_answer_mixes_two_versions(versions: Versions, start: Start) -> None:
    """Clients ask the same prompts before, during and after swaps, streamed and in batches."""
    texts = expected(versions, 40)
    names = [version.name for version in versions.all()]
    server = start(versions.folder, max_loaded=1)
    is_over = threading.Event()
    seen: list[tuple[str, str, str]] = []

    def ask(number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        settings: dict[str, Any] = {"max_tokens": 40, "temperature": 0.9, "seed": 5}
        with client_of(server) as client:
            while not is_over.is_set():
                if number % 2:
                    chunks = list(client.completions.create(model="latest", prompt=prompt, stream=True, **settings))
                    (name,) = {chunk.system_fingerprint for chunk in chunks}
                    text = "".join(chunk.choices[0].text for chunk in chunks)
                else:
                    answer = client.completions.create(model="latest", prompt=prompt, **settings)
                    name, text = answer.system_fingerprint, answer.choices[0].text
                seen.append((name, prompt, text))

    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask, number) for number in range(6)]
        try:
            for swap in range(4):
                name = names[swap % 2]
                assert send(server, "POST", f"/v1/versions/{name}/promote")[2]["id"] == name
                with client_of(server) as client:  # after the answer, the swap has happened
                    answer = client.completions.create(
                        model="latest", prompt="apple", max_tokens=40, temperature=0.9, seed=5
                    )
                assert (answer.model, answer.choices[0].text) == (name, texts[name, "apple"])
                before = len(seen)  # all clients go on asking before the next swap
                assert eventually(lambda: {one[:2] for one in seen[before:]} >= {(name, one) for one in PROMPTS})  # noqa: B023
        finally:
            is_over.set()
        for one in asking:
            one.result()
    for name, prompt, text in seen:
        assert text == texts[name, prompt]


def test_a_version_that_was_put_away_while_it_was_checked_is_read_again(versions: Versions) -> None:
    first, second = (version.name for version in versions.all())

    async def load_in_between() -> None:
        shelf = Shelf(VersionsFolder(versions.folder), max_loaded=1)
        accepted, asked = Shelf._accepted, 0

        async def slow() -> str:
            nonlocal asked
            asked += 1
            if asked == 2:  # after the accepted version was loaded, another one takes its place
                await shelf.model(first)
            return await accepted(shelf)

        shelf._accepted = slow  # type: ignore[method-assign]
        model = await shelf.refresh()
        assert model.choice.name == second
        assert not model.engine._is_closing
        shelf.close()

    asyncio.run(load_in_between())


def test_a_broken_template_leaves_no_engine_behind(words_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(words_model, tmp_path / "broken"))
    (model / "chat_template.jinja").write_text("{% for %}")
    shelf = Shelf(OneModel(model))
    with pytest.raises(UserError, match="template"):
        shelf.load(shelf.choices()[0])
    assert not [thread for thread in threading.enumerate() if thread.name == "engine broken"]


def test_a_loaded_model_does_not_follow_its_file(tmp_path: Path) -> None:
    make_llama(tmp_path)  # Transformers maps the file of its weights into memory
    shelf = Shelf(OneModel(tmp_path))
    loaded = shelf.load(shelf.choices()[0])
    before = [parameter.clone() for parameter in loaded.engine.net.parameters()]
    (file,) = tmp_path.glob("*.safetensors")
    with file.open("r+b") as weights:
        weights.write(bytes(file.stat().st_size))
    assert all(torch.equal(old, new) for old, new in zip(before, loaded.engine.net.parameters(), strict=True))
    loaded.engine.close()
