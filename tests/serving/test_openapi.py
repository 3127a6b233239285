"""/openapi.json and /metrics: they name what there is, and hostile requests made from them never get a 500."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import urlopen

import openai
import pytest

from tests.serving.test_completions import send
from trc2.serving.app import ROUTES
from trc2.serving.metrics import _family
from trc2.serving.openapi import SHAPES
from trc2.serving.server import Server


def test_the_document_names_every_route_and_only_those(server: Server) -> None:
    status, _, document = send(server, "GET", "/openapi.json")
    assert status == 200
    named = {(method.upper(), path) for path, one in document["paths"].items() for method in one}
    assert named == {(method, path) for method, path, _, _ in ROUTES}
    assert set(SHAPES) <= named
    identities = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(set(identities)) == len(identities)
    text = str(document)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in document["components"]["schemas"]


def test_metrics_count_requests_and_tokens(server: Server, client: openai.OpenAI) -> None:
    def value(name: str) -> float:
        with urlopen(f"{server.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    answered = 'trc2_requests_total{route="/v1/completions",status="200"}'
    requests, tokens = value(answered), value("trc2_generated_tokens_total")
    made = client.completions.create(model="latest", prompt="apple", max_tokens=7, seed=1).usage
    assert made is not None
    assert value(answered) == requests + 1
    assert value("trc2_generated_tokens_total") == tokens + made.completion_tokens
    assert value('trc2_latest{version="words"}') == 1


def test_large_counters_keep_their_units() -> None:
    assert _family("n", "counter", "Many.", [({}, 12_345_678), ({"a": '"'}, 0.5)]).splitlines()[2:] == [
        "n 12345678",
        'n{a="\\""} 0.5',
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("examples", "fewest"), [(20, 200), (800, 10_000)])
def test_no_request_made_from_the_document_gets_a_500(
    words_model: Path, tmp_path: Path, examples: int, fewest: int
) -> None:
    pytest.importorskip("schemathesis")
    from tests.serving.hostile import prove

    figures = prove(tmp_path, words_model, examples)
    print(figures)
    assert figures["requests"] > fewest
