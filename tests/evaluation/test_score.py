"""Scoring files and tasks: as much as was asked for, and said how much."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import QUIET, MakeRun, write_task
from trc2.errors import UserError
from trc2.evaluation.score import score_target
from trc2.hf.export import export_run
from trc2.runs.folder import RunFolder, Warn
from trc2.runs.lock import lock_folder
from trc2.runs.target import find_target
from trc2.training.setup import start_run


@pytest.fixture
def run(trained: Path) -> Path:
    return trained


def score(folder: Path, file: Path, warn: Warn = lambda message: None) -> dict[str, float]:
    scores = score_target(find_target(str(folder)), files=[file], warn=warn)
    return scores[str(file)]


def test_a_file_is_scored_whole_and_alike_by_a_run_and_by_its_export(run: Path, tmp_path: Path) -> None:
    write_task(tmp_path, "long", ["apple", "saw", "pear"], documents=40)
    file = tmp_path / "long" / "train.jsonl"
    found = score(run, file)
    assert found["tokens"] > 2 * 4 * 16  # more than eval.max_batches would let pass
    export_run(run, tmp_path / "export", "0")
    exported = score(tmp_path / "export", file)
    assert exported["tokens"] == found["tokens"]
    assert exported["perplexity"] == pytest.approx(found["perplexity"], rel=1e-6)


def test_a_task_is_scored_as_the_run_scores_it(run: Path) -> None:
    found = score_target(find_target(str(run)), tasks=["fruit"], warn=print)
    assert found["fruit"]["tokens"] == 2 * 4 * 16  # max_batches × batch_size × sequence_length


def test_the_tokens_are_those_that_were_scored(tiny_run: MakeRun) -> None:
    folder = start_run(tiny_run(eval={"batch_size": 1000, "max_batches": 1, "text_sequences": 0}), QUIET)
    available = RunFolder(folder).data()["tasks"]["fruit"]["splits"]["validation"]["tokens"] - 1
    assert available % 16
    scores = score_target(find_target(str(folder)), tasks=["fruit"], warn=print)
    assert scores["fruit"]["tokens"] == available - available % 16  # the rest would be another batch


def test_rows_that_were_skipped_are_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.dumps({"text": "apple pear plum fig apple"}), "not json", json.dumps({"title": "no text"})]
    (tmp_path / "mixed.jsonl").write_text("\n".join(rows))
    score(run, tmp_path / "mixed.jsonl", print)
    assert "2 rows were skipped" in capsys.readouterr().out


def test_a_tokenizer_that_does_not_fit_the_model_is_told(run: Path, tmp_path: Path) -> None:
    from trc2.stream.tokenizer import train_bpe

    export_run(run, tmp_path / "export", "0")
    larger = train_bpe([f"word{n} other{n * 7}" for n in range(2000)], 900)
    (tmp_path / "export" / "tokenizer.json").write_text(larger.to_json())
    (tmp_path / "a.txt").write_text("apple pear plum")
    with pytest.raises(UserError, match=r"vocab_size=300 is smaller than the tokenizer's"):
        score(tmp_path / "export", tmp_path / "a.txt")


def test_the_test_split_of_a_run_that_another_process_holds_is_not_read(run: Path) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    with lock_folder(run), pytest.raises(UserError, match="in use by process"):
        score_target(find_target(str(run)), split="test", again=True, warn=print)
    assert (run / "metrics.jsonl").read_bytes() == before
    with lock_folder(run):  # other splits leave no trace, so anybody may score them
        score_target(find_target(str(run)), tasks=["fruit"], warn=print)
    score_target(find_target(str(run)), split="test", again=True, warn=print)
    assert RunFolder(run).records()[-1].kind == "test"
