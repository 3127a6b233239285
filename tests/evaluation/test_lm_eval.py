"""lm-evaluation-harness with a local task and no network. Skipped where it is not installed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import QUIET, MakeRun
from trc2 import RunConfig
from trc2.hf.export import export_run
from trc2.runs.target import find_target
from trc2.training.setup import start_run

pytest.importorskip("lm_eval")
lm_eval_module = pytest.importorskip("trc2.evaluation.lm_eval")
TASK = """
task: fruits
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: ["apple", "axe"]
doc_to_target: 0
metric_list: [{{metric: acc}}]
---
"""


def test_a_long_answer_leaves_room_for_the_question(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, tokenizer = find_target(str(trained)).trained_model(print)
    assert net.config.max_positions == 32
    prompts: list[list[int]] = []

    def generate(_net: object, prompt: list[int], **_: object) -> Iterator[int]:
        prompts.append(prompt)
        return iter(())

    monkeypatch.setattr(lm_eval_module, "generate_ids", generate)
    context = "apple pear plum fig saw axe drill file " * 20
    for wanted in (256, 4):
        lm_eval_module.NetworkLM(net, tokenizer).generate_until(
            [SimpleNamespace(args=(context, {"max_gen_toks": wanted}))]
        )
    ids = tokenizer.encode_batch([context])[0]
    assert prompts == [ids[-16:], ids[-28:]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["trc2", "transformer", "llama"])
def test_the_command_scores_a_local_task(kind: str, tiny_run: MakeRun, tmp_path: Path) -> None:
    if kind == "llama":
        from tests.backbones.hf_models.conftest import build

        build("llama").save_pretrained(tmp_path / "model")
        from trc2.stream.tokenizer import train_bpe

        (tmp_path / "model" / "tokenizer.json").write_text(train_bpe(["an apple an axe"], 290).to_json())
    else:
        model = tiny_run().model.model_dump() if kind == "trc2" else {
            "name": "transformer", "vocab_size": 300, "d_model": 16, "num_layers": 1, "num_heads": 2,
            "max_positions": 32,
        }  # fmt: skip
        config = tiny_run()
        start_run(RunConfig(**{**config.model_dump(), "model": model}), QUIET)
        export_run(tmp_path / "run", tmp_path / "model", "0")
    rows = [{"text": "an"}, {"text": "a pear and an"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "fruits.yaml").write_text(TASK.format(data=tmp_path / "rows.jsonl").rstrip("-\n") + "\n")
    command = [sys.executable, "-W", "ignore", "-m", "trc2.evaluation.lm_eval", "--model", "trc2", "--model_args",
               f"pretrained={tmp_path / 'model'}", "--tasks", "fruits", "--include_path", str(tmp_path / "tasks"),
               "--output_path", str(tmp_path / "out"), "--log_samples"]  # fmt: skip
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=offline)
    assert done.returncode == 0, done.stderr[-3000:]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    accuracy = json.loads(results.read_text())["results"]["fruits"]["acc,none"]
    ours = [sys.executable, "-W", "ignore", "-m", "trc2", "lm-eval", str(tmp_path / "model"), "--tasks", "fruits",
            "--include", str(tmp_path / "tasks"), "--json"]  # fmt: skip
    told = subprocess.run(ours, capture_output=True, text=True, env=offline)
    assert told.returncode == 0, told.stderr[-3000:]
    (score,) = json.loads(told.stdout)
    assert (score["task"], score["metric"], score["value"]) == ("fruits", "acc", accuracy)
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    rows_of = [json.loads(line) for line in samples.read_text().splitlines()]
    net, tokenizer = find_target(str(tmp_path / "model")).trained_model(print)
    sample = next(row for row in rows_of if row["doc"]["text"] == "an")
    whole, before = (tokenizer.encode_batch([text])[0] for text in ("an apple", "an"))
    with torch.no_grad():
        scores = net.eval()(torch.tensor([whole]))[0].log_softmax(dim=-1)
    expected = sum(float(scores[0, place - 1, whole[place]]) for place in range(len(before), len(whole)))
    assert math.isclose(float(sample["filtered_resps"][0][0]), expected, rel_tol=1e-4)
