"""Programs that users already have, pointed at the server: each gets what the library itself writes.

They are in no extra of the package. A test is skipped where its client is not installed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.serving.conftest import WORDS, save_words_model
from tests.serving.test_chat import add_template
from tests.serving.test_completions import written
from trc2.runs.target import find_target
from trc2.serving.server import Server, ServerSettings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of other people's code
SETTINGS: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, "seed": 1}
HARNESS = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{answer}}}}"
"""
KINDS = {
    "likely": "output_type: loglikelihood\nmetric_list: [{metric: acc}, {metric: perplexity}]\n",
    "written": "output_type: generate_until\nmetric_list: [{metric: exact_match}]\n"
    'generation_kwargs: {until: ["s", "größ"], max_gen_toks: 12, do_sample: false}\n',
}
NUM_DOCUMENTS = 30


def needs(name: str) -> None:
    if find_spec(name) is None:
        pytest.skip(f"the client {name} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = save_words_model(tmp_path_factory.mktemp("clients") / "words")
    add_template(model)
    return model


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(ServerSettings(folder, port=0)) as running:
        yield running


def expected(server: Server, prompt: str) -> str:
    return written(server, prompt, max_tokens=12, temperature=0.0, seed=1)


def test_litellm(server: Server) -> None:
    needs("litellm")
    import litellm

    litellm.suppress_debug_info = True
    address: dict[str, Any] = {"api_base": f"{server.url}/v1", "api_key": "none", "num_retries": 0}
    model = "text-completion-openai/latest"
    answer = litellm.text_completion(model=model, prompt="apple pear", **SETTINGS, **address)
    assert answer.choices[0].text == expected(server, "apple pear")
    parts = litellm.text_completion(model=model, prompt="apple pear", stream=True, **SETTINGS, **address)
    assert "".join(part.choices[0].text or "" for part in parts) == expected(server, "apple pear")
    messages = [{"role": "user", "content": "apple"}]
    said = litellm.completion(model="openai/latest", messages=messages, **SETTINGS, **address)
    assert said.choices[0].message.content
    assert said.usage.completion_tokens <= 12
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/none", messages=messages, **address)


def test_langchain(server: Server) -> None:
    needs("langchain_openai")
    from langchain_openai import ChatOpenAI, OpenAI

    address: dict[str, Any] = {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
    model = OpenAI(model="latest", **SETTINGS, **address)
    assert model.invoke("apple pear") == expected(server, "apple pear")
    assert "".join(model.stream("apple pear")) == expected(server, "apple pear")
    chat = ChatOpenAI(model="latest", **SETTINGS, **address)
    whole = chat.invoke("apple")
    assert whole.content
    assert "".join(str(part.content) for part in chat.stream("apple")) == whole.content
    assert whole.response_metadata["system_fingerprint"].startswith("words@")


def test_llm(server: Server, tmp_path: Path) -> None:
    needs("llm")
    models = [
        {"model_id": "ours", "model_name": "latest", "api_base": f"{server.url}/v1", "completion": True},
        {"model_id": "ours-chat", "model_name": "latest", "api_base": f"{server.url}/v1"},
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def ask(*words: str) -> str:
        options = ["-o", "max_tokens", "12", "-o", "temperature", "0", "-o", "seed", "1"]
        command = [sys.executable, "-W", "ignore", "-m", "llm", *words, *options]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for stream in ([], ["--no-stream"]):
        assert ask("-m", "ours", "apple pear", *stream).rstrip("\n") == expected(server, "apple pear").rstrip("\n")
    assert ask("-m", "ours-chat", "apple").strip()


def harness_rows(server: Server, folder: Path) -> list[dict[str, Any]]:
    """Documents of the two tasks. The model writes every third answer exactly, so that scores are between 0 and 1."""
    choose, rows = random.Random(0), []
    for number in range(NUM_DOCUMENTS):
        words = choose.choices(WORDS.split(), k=choose.randint(1, 6))
        text = " ".join([*words, "größer"] if number % 5 == 0 else words)
        whole = written(server, text, max_tokens=12, temperature=0.0)
        answer = min((whole.partition(stop)[0] for stop in ("s", "größ")), key=len)
        rows.append({"text": text, "answer": answer if number % 3 == 0 and answer else " " + choose.choice(words)})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tasks").mkdir()
    for name, kind in KINDS.items():
        (folder / "tasks" / f"{name}.yaml").write_text(HARNESS.format(name=name, data=folder / "rows.jsonl") + kind)
    return rows


def test_the_harness_gets_the_numbers_of_our_own_command(server: Server, folder: Path, tmp_path: Path) -> None:
    needs("lm_eval")
    rows = harness_rows(server, tmp_path)
    tokenizer = Path(shutil.copytree(folder, tmp_path / "tokenizer"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    (tokenizer / "config.json").unlink()
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache"), "OPENAI_API_KEY": "none"
    }  # fmt: skip

    def told(program: str, *words: str) -> str:
        command = [sys.executable, "-W", "ignore", "-m", program, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    names, tasks = ",".join(KINDS), str(tmp_path / "tasks")
    address = f"model=latest,base_url={server.url}/v1/completions,tokenizer={tokenizer},max_length=64,num_concurrent=1"
    told(
        "lm_eval", "--model", "local-completions", "--model_args", address, "--tasks", names, "--include_path", tasks,
        "--output_path", str(tmp_path / "out"), "--log_samples",
    )  # fmt: skip
    (results,) = (tmp_path / "out").rglob("results_*.json")
    scores = json.loads(results.read_text())["results"]

    def samples(task: str) -> list[dict[str, Any]]:
        (path,) = (tmp_path / "out").rglob(f"samples_{task}_*.jsonl")
        found = sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])
        assert [sample["doc"] for sample in found] == rows
        return found

    net, reader = find_target(str(folder)).trained_model(print)
    greedy = []
    for sample, row in zip(samples("likely"), rows, strict=True):
        whole, before = (reader.encode_batch([one])[0] for one in (row["text"] + row["answer"], row["text"]))
        with torch.no_grad():
            logprobs = net.eval()(torch.tensor([whole]))[0].log_softmax(dim=-1)
        places = range(len(before), len(whole))
        likelihood = sum(float(logprobs[0, place - 1, whole[place]]) for place in places)
        ((found, is_greedy),) = sample["filtered_resps"]
        assert float(found) == pytest.approx(likelihood, rel=1e-4)
        assert str(is_greedy) == str(all(int(logprobs[0, place - 1].argmax()) == whole[place] for place in places))
        greedy.append(str(is_greedy))
    assert {"True", "False"} <= set(greedy)
    for sample, row in zip(samples("written"), rows, strict=True):
        whole = written(server, row["text"], max_tokens=12, temperature=0.0)
        assert sample["filtered_resps"] == [min((whole.partition(stop)[0] for stop in ("s", "größ")), key=len)]

    ours = json.loads(told("trc2", "lm-eval", str(folder), "--tasks", names, "--include", tasks, "--json"))
    for score in ours:
        theirs = scores[score["task"]][f"{score['metric']},none"]
        assert theirs == (
            pytest.approx(score["value"], rel=1e-4) if score["metric"] == "perplexity" else score["value"]
        )
    assert sorted(score["metric"] for score in ours) == ["acc", "exact_match", "perplexity"]
    assert all(0 < score["value"] < 1 for score in ours if score["metric"] != "perplexity")
