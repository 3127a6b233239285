"""/v1/completions and /v1/models through OpenAI's own client."""

from __future__ import annotations

import asyncio
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from pydantic import ValidationError

from tests.serving.conftest import WORDS, Start, client_of, eventually, held
from trc2.generate.sampling import Sampling, stream_text
from trc2.serving.answers import AnswerLimits, Asked
from trc2.serving.app import make_app
from trc2.serving.server import Limits, Server
from trc2.serving.shelf import ServedModel
from trc2.serving.wire import MAX_PROBLEMS, ApiError, ChatRequest, CompletionRequest, parse


def served(server: Server) -> ServedModel:
    return server.service.shelf.loaded[0]


def written(server: Server, prompt: str, **settings: Any) -> str:
    engine = served(server).engine
    return "".join(stream_text(engine.net, engine.tokenizer, prompt, Sampling(**settings)))


def send(
    server: Server, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], Any]:
    """A request without a client that would check it first."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, json.loads(content or b"{}")


def test_an_answer_is_what_generate_writes_and_names_its_version(server: Server, client: openai.OpenAI) -> None:
    for settings in ({"temperature": 0.0, "seed": 0}, {"temperature": 0.9, "seed": 7}):
        answer = client.completions.create(model="latest", prompt="apple pear", max_tokens=20, **settings)
        assert answer.choices[0].text == written(server, "apple pear", max_tokens=20, **settings)
        assert answer.model == "words"
        assert answer.system_fingerprint == served(server).fingerprint
        assert answer.system_fingerprint.startswith("words@")
        assert answer.usage.prompt_tokens == len(served(server).engine.encode("apple pear"))
        assert answer.usage.completion_tokens <= 20
    assert [model.id for model in client.models.list()] == ["words", "latest"]
    assert client.models.retrieve("latest").id == "latest"


def test_streams_of_many_clients_are_each_what_generate_writes(server: Server, client: openai.OpenAI) -> None:
    prompts = ["apple", "saw axe", WORDS, "x", "日本", "fig fig fig"]

    def stream(number: int) -> str:
        parts = client.completions.create(
            model="words", prompt=prompts[number % 6], max_tokens=24, seed=number, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = list(parts)
        assert chunks[-1].usage is not None
        assert chunks[-2].choices[0].finish_reason in ("length", "stop")
        assert len({chunk.system_fingerprint for chunk in chunks}) == 1
        return "".join(choice.text for chunk in chunks for choice in chunk.choices)

    engine = served(server).engine
    with ThreadPoolExecutor(12) as pool:
        with held(engine):
            asked = [pool.submit(stream, number) for number in range(12)]
            assert eventually(lambda: engine.num_waiting == 11)  # one has begun
        said = [one.result() for one in asked]
    assert said == [written(server, prompts[number % 6], max_tokens=24, seed=number) for number in range(12)]
    assert engine.largest_batch > 1


def test_prompts_can_be_texts_or_tokens_and_each_has_n_choices(server: Server, client: openai.OpenAI) -> None:
    ids = [served(server).engine.encode(prompt) for prompt in ("apple", "saw axe")]
    settings: dict[str, Any] = {"model": "words", "max_tokens": 8, "seed": 3, "n": 2}
    by_text = client.completions.create(prompt=["apple", "saw axe"], **settings)
    by_token = client.completions.create(prompt=ids, **settings)
    assert [choice.index for choice in by_text.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in by_text.choices] == [choice.text for choice in by_token.choices]
    assert client.completions.create(prompt=ids[1], **settings).choices[0].text == by_text.choices[2].text
    assert by_text.choices[0].text == written(server, "apple", max_tokens=8, seed=3)


def test_a_stop_sequence_ends_the_answer_before_it(server: Server, client: openai.OpenAI) -> None:
    whole = written(server, "apple", max_tokens=30, temperature=0.0)
    stop = whole[3:5]
    settings: dict[str, Any] = {"model": "words", "prompt": "apple", "max_tokens": 30, "temperature": 0, "stop": [stop]}
    answer = client.completions.create(**settings)
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    chunks = client.completions.create(stream=True, **settings)
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_scores_the_prompt(server: Server, client: openai.OpenAI, stream: bool) -> None:
    settings: dict[str, Any] = {"model": "words", "prompt": "saw axe", "echo": True, "logprobs": 2, "temperature": 0}
    answer = client.completions.create(max_tokens=3, stream=stream, **settings)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    text = "".join(choice.text for choice in choices)
    tokens = [token for choice in choices for token in choice.logprobs.tokens]
    scores = [score for choice in choices for score in choice.logprobs.token_logprobs]
    offsets = [offset for choice in choices for offset in choice.logprobs.text_offset]
    assert text == "saw axe" + written(server, "saw axe", max_tokens=3, temperature=0.0)
    assert scores[0] is None
    assert all(score <= 0 for score in scores[1:])
    assert len(tokens) == len(scores) == len(offsets)
    for token, offset in zip(tokens, offsets, strict=True):
        assert token.startswith("<token ") or text[offset:].startswith(token)
    only = client.completions.create(max_tokens=0, **settings).choices[0]
    assert only.text == "saw axe"
    assert only.logprobs.token_logprobs == pytest.approx(scores[: len(only.logprobs.tokens)], abs=1e-4)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "wrods"}, "model", "model_not_found"),
    ({"prompt": [[]]}, "prompt", "invalid_prompt"),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": [70000]}, "prompt", "invalid_prompt"),
    ({"prompt": [1] * 65}, "prompt", "invalid_prompt"),
    ({"prompt": ["x"] * 129}, "prompt", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": 10**6}, "max_tokens", "invalid_value"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"n": 9}, "prompt", "invalid_prompt"),
    ({"logprobs": 6}, "logprobs", "invalid_value"),
    ({"stop": ["a"] * 5}, "stop", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"frequency_penalty": 0.5}, "frequency_penalty", "invalid_value"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "invalid_value"),
    ({"suffix": "end"}, "suffix", "invalid_value"),
    ({"extra_body": {"top_k": 3}}, "top_k", "unknown_parameter"),
]


@pytest.mark.parametrize(("change", "param", "code"), BAD, ids=lambda value: str(value)[:30])
def test_bad_requests_arrive_as_the_clients_own_errors(
    client: openai.OpenAI, change: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        client.completions.create(**{"model": "words", "prompt": "x", **change})
    assert caught.value.param == param
    assert caught.value.code == code
    assert caught.value.request_id.startswith("req_")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/completions", b"{", 400, "invalid_json"),
        ("POST", "/v1/completions", b"[1]", 400, "invalid_value"),
        ("POST", "/v1/completions", b"[" * 100_000, 400, "invalid_json"),
        ("POST", "/v1/completions", b"", 400, "missing_required_parameter"),
        ("POST", "/v1/completions", b'{"model": "words", "temperature": NaN}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"model": "\\ud800"}', 400, "invalid_json"),
        ("POST", "/v1/completions", b"x" * (5 * 2**20), 413, "request_too_large"),
        ("POST", "/v1/completions", b'{"model": "words", "prompt": "' + b"x" * 2**20 + b'"}', 400, "invalid_prompt"),
        ("GET", "/v1/completions", None, 405, "method_not_allowed"),
        ("GET", "/v1/assistants", None, 404, "unknown_url"),
        ("GET", "/v1/models/none", None, 404, "model_not_found"),
    ],
)
def test_every_refusal_has_the_shape_of_an_error(
    server: Server, method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    got, headers, content = send(server, method, path, body)
    assert (got, content["error"]["code"]) == (status, code)
    assert set(content["error"]) == {"message", "type", "param", "code"}
    assert headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, b'{"model": "words", "prompt": [%s]}' % b",".join([b"[-1]"] * 10**5)),
        (CompletionRequest, b'{"model": "words", "prompt": [%s]}' % b",".join([b"{}"] * 10**5)),
        (CompletionRequest, b"{%s}" % b",".join(b'"%x": 1' % number for number in range(10**5))),
        (
            ChatRequest,
            b'{"model": "words", "messages": [{"role": "user", "content": [%s]}]}' % b",".join([b"1"] * 10**5),
        ),
        (ChatRequest, b'{"model": "words", "messages": [%s]}' % b",".join([b"1"] * 10**4)),
    ],
)
def test_what_is_wrong_a_hundred_thousand_times_is_not_looked_at_so_often(
    kind: type[CompletionRequest | ChatRequest], body: bytes
) -> None:
    with pytest.raises(ValidationError) as found:
        kind.model_validate_json(body)
    assert found.value.error_count() < 10 or found.value.error_count() > MAX_PROBLEMS
    with pytest.raises(ApiError) as caught:
        parse(kind, body)
    assert caught.value.status == 400
    assert len(caught.value.message) < 200


def test_a_full_server_says_when_to_come_back(start: Start, words_model: Path) -> None:
    server = start(words_model, limits=Limits(requests=1))
    with client_of(server) as client:
        with held(served(server).engine):
            stream = client.completions.create(model="latest", prompt="x", max_tokens=60, stream=True)
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(model="latest", prompt="x")
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.code == "server_busy"
        assert list(stream)[-1].choices[0].finish_reason is not None
        assert eventually(lambda: server.service.open_requests == 0)
        assert client.completions.create(model="latest", prompt="x").choices


def test_a_client_that_leaves_frees_its_place_and_its_rows(start: Start, words_model: Path) -> None:
    server = start(words_model, limits=Limits(requests=1))
    engine = served(server).engine
    for stream in (True, False):
        body = {"model": "latest", "prompt": ["x"] * 100, "max_tokens": 60, "n": 8, "stream": stream}
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
        connection.request("POST", "/v1/completions", json.dumps(body))
        assert eventually(lambda: engine.num_rows > 0)
        connection.close()
        assert eventually(lambda: server.service.open_requests == 0 and engine.num_rows == 0)
    with client_of(server) as client:
        assert client.completions.create(model="latest", prompt="x", max_tokens=1).choices


def test_the_rate_of_one_caller_is_limited(start: Start, words_model: Path) -> None:
    server = start(words_model, limits=Limits(per_minute=3))
    with client_of(server) as client:
        for _ in range(3):
            client.models.list()
        with pytest.raises(openai.RateLimitError) as caught:
            client.models.list()
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 21


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("# who may do what\nask ask-0123456789abcdef reader\n\nadmin adm-0123456789abcdef\n")
    return path


def test_a_forwarded_address_does_not_escape_the_rate(start: Start, words_model: Path) -> None:
    server = start(words_model, limits=Limits(per_minute=2))
    asked = [send(server, "GET", "/v1/models", headers={"X-Forwarded-For": f"10.0.0.{one}"}) for one in range(4)]
    assert [status for status, _, _ in asked][2:] == [429, 429]


def test_echoed_scores_are_bounded(start: Start, words_model: Path) -> None:
    limits = Limits(answers=AnswerLimits(max_echoed=3))
    with client_of(start(words_model, limits=limits)) as client, pytest.raises(openai.BadRequestError, match="echoed"):
        client.completions.create(model="latest", prompt="apple pear plum fig", echo=True, logprobs=1, max_tokens=1)


def test_a_token_is_needed_where_there_are_tokens(start: Start, words_model: Path, tokens: Path) -> None:
    server = start(words_model, tokens=tokens)
    with client_of(server, "wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    for headers in ({}, {"authorization": "Basic ask-0123456789abcdef"}, {"authorization": "Bearer"}):
        assert send(server, "GET", "/v1/models", headers=headers)[0] == 401
    assert send(server, "GET", "/health")[0] == 200
    for token in ("ask-0123456789abcdef", "adm-0123456789abcdef"):
        with client_of(server, token) as client:
            assert client.models.list().data


def test_a_foreign_page_cannot_use_a_server_without_tokens(server: Server) -> None:
    port = urlsplit(server.url).port
    for headers in ({"host": "evil.example"}, {"host": f"evil.example:{port}"}, {"origin": "https://evil.example"}):
        status, _, content = send(server, "POST", "/v1/completions", b"{}", headers)
        assert (status, content["error"]["type"]) == (403, "permission_error")
    for headers in ({"host": f"localhost:{port}"}, {"origin": server.url}, {"host": "[::1]:80"}):
        assert send(server, "GET", "/v1/models", headers=headers)[0] == 200


def test_no_text_reaches_the_log(server: Server, client: openai.OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="trc2.serving")
    client.completions.create(model="words", prompt="a secret document", max_tokens=2)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="words", prompt="a secret document", max_tokens=-2)
    assert send(server, "GET", "/v1%0ainjected%1b[31m")[0] == 404

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "trc2.serving"]

    assert eventually(lambda: len([line for line in lines() if "POST /v1/completions" in line]) == 2)
    assert "secret" not in "".join(lines())
    assert eventually(lambda: any("/v1%0ainjected%1b[31m" in line for line in lines()))
    assert not {"\n", "\x1b"} & set("".join(lines()))


def test_a_stream_that_is_not_read_loses_its_place(start: Start, words_model: Path) -> None:
    server = start(words_model, limits=Limits(idle_seconds=1.0))
    service = server.service
    body = json.dumps({"model": "latest", "prompt": "x", "max_tokens": 60, "stream": True}).encode()
    app: Any = make_app(service)
    arriving, sent = [body], []

    async def receive() -> dict[str, Any]:
        if arriving:
            return {"type": "http.request", "body": arriving.pop()}
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])
        if len(sent) > 3:
            await asyncio.sleep(60)  # as if the client read nothing more

    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b"",
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1), "scheme": "http", "root_path": ""}  # fmt: skip
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 50))
    assert len(sent) == 4
    assert service.open_requests == 0


def test_an_error_inside_a_stream_is_an_event_without_its_text(
    start: Start, words_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Asked) -> Any:
        raise RuntimeError("a secret document")
        yield

    monkeypatch.setattr(Asked, "pieces", fails)
    server = start(words_model)
    with client_of(server) as client, pytest.raises(openai.APIError) as caught:
        list(client.completions.create(model="latest", prompt="x", stream=True))
    assert (caught.value.code, caught.value.type) == ("internal", "server_error")
    assert "secret" not in str(caught.value)
    assert eventually(lambda: server.service.open_requests == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_the_seed_that_was_used_is_named(server: Server, client: openai.OpenAI, stream: bool) -> None:
    raw = client.completions.with_raw_response.create(model="words", prompt="apple", max_tokens=9, stream=stream)
    seed = int(raw.headers["x-seed"])
    answer = raw.parse()
    text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
    assert text == written(server, "apple", max_tokens=9, seed=seed)
