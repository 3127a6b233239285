"""A plain folder of transformers is gone on from, without a run or a recipe."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.command import trc2
from tests.conftest import write_task
from trc2.report.run import read_run


def test_a_llama_folder_learns_two_tasks_and_is_gated_by_what_it_should_keep(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    words = {"law": "saw axe drill file", "tax": "red blue grey", "news": "apple pear plum fig"}
    for name, choices in words.items():
        write_task(tmp_path, name, choices.split())
    base = shutil.copytree(model_folder("llama"), tmp_path / "base")
    (base / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# Base\n")
    done = trc2(
        "continue", str(base), "train.batch_size=2", "train.sequence_length=32",
        "eval.text_sequences=0", "eval.max_batches=1", "model.replay_chunk_length=16",
        f"stream.cache={tmp_path / 'cache'}",
        "--task", f"law={tmp_path / 'law'}", "--task", f"tax={tmp_path / 'tax'}", "--steps", "2",
        "--keep", f"news={tmp_path / 'news'}", "--max-forgetting", "1e9", "--out", str(tmp_path / "child"), "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert list(json.loads(done.out)["tasks"]) == ["news"]
    run = read_run(tmp_path / "child")
    assert [(span.task, span.start, span.end) for span in run.spans] == [("law", 0, 2), ("tax", 2, 4)]
    assert run.config.model.name == "hf"
    assert run.config.train.learning_rate == 1e-4

    shutil.rmtree(base)  # what the card says of it is in the run
    exported = trc2("export", str(tmp_path / "child"), str(tmp_path / "model"), "--json")
    assert exported.code == 0, exported.err
    _, front, body = (tmp_path / "model" / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(front)
    assert (facts["base_model"], facts["license"], facts["library_name"]) == ("base", "apache-2.0", "transformers")
    assert "import trc2" not in body
    assert "and nothing else" not in body
    assert 'memory="off"' not in body
    assert "| news | test, " in body  # its verdict
    assert "Measured and not trained: news." in body
