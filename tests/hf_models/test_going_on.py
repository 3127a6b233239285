"""A plain folder of transformers is gone on from, without a run or a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.command import trc2
from tests.conftest import write_task
from trc2.report.finished import read_run


def test_a_llama_folder_learns_two_tasks_and_is_gated_by_what_it_should_keep(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    for name, words in {"law": ["saw", "axe"], "tax": ["red", "blue"], "news": ["apple", "pear"]}.items():
        write_task(tmp_path, name, words)
    done = trc2(
        "continue", str(model_folder("llama")), "train.batch_size=2", "train.sequence_length=32",
        "eval.text_sequences=0", "eval.max_batches=1", "model.replay_chunk_length=16",
        f"stream.cache={tmp_path / 'cache'}",
        "--task", f"law={tmp_path / 'law'}", "--task", f"tax={tmp_path / 'tax'}", "--steps", "2",
        "--keep", f"news={tmp_path / 'news'}", "--max-forgetting", "1e9", "--out", str(tmp_path / "child"), "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert list(json.loads(done.out)["tasks"]) == ["news"]
    run = read_run(tmp_path / "child")
    assert [(stretch.task, stretch.start, stretch.end) for stretch in run.stretches] == [("law", 0, 2), ("tax", 2, 4)]
    assert run.config.model.name == "hf"
    assert run.config.train.learning_rate == 1e-4
