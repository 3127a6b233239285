from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from trc2.config import RunConfig
from trc2.errors import UserError
from trc2.report.runs import read_run
from trc2.report.summary import Comparison, write_summary
from trc2.train.start import start_run

QUIET = Console(quiet=True)
MakeRun = Callable[..., RunConfig]


def finish(tiny_run: MakeRun, folder: Path, **changes: dict[str, object]) -> Path:
    output = {"folder": folder, "checkpoint_every": 100, **changes.pop("output", {})}
    return start_run(tiny_run(output=output, **changes), QUIET)


def test_a_run_is_summarised_from_its_folder_alone(tiny_run: MakeRun, tmp_path: Path) -> None:
    folder = finish(tiny_run, tmp_path / "one")
    written = write_summary(folder)
    assert [path.name for path in written] == ["summary.md", "summary.png", "hippocampus.png"]
    text = written[0].read_text()
    run = read_run(folder)
    assert (
        f"| fruit | {run.score('perplexity', 'fruit', 0):.4g} | **{run.score('perplexity', 'fruit', 6):.4g}** |" in text
    )
    assert "fruit (6 steps) → tools (6 steps); seed 0; 64 tokens a step; finished." in text
    # what the trainer logged is what the report recomputes
    logged = [record for record in run.records if record.kind == "eval"][-1].metrics
    for name, value in run.summary("perplexity").items():
        assert value == pytest.approx(logged[name])


def test_runs_are_compared_and_the_reading_follows_the_numbers(tiny_run: MakeRun, tmp_path: Path) -> None:
    plain = {**tiny_run().model.model_dump(), "memory": False, "replay": False, "thalamus": False}
    folders = [finish(tiny_run, tmp_path / "full"), finish(tiny_run, tmp_path / "plain", model=plain)]
    comparison = Comparison.of(folders)
    assert [row[0] for row in comparison.rows()] == ["full", "plain"]
    areas = {run.name: run.summary()["cl/perplexity/aufc"] for run in comparison.runs}
    least = min(areas, key=areas.__getitem__)
    assert comparison.reading()[0] == f"{least} forgot least: its forgetting area is {areas[least]:.3f}."
    written = comparison.write(tmp_path / "out")
    assert all(path.stat().st_size > 200 for path in written)


def test_unequal_runs_are_not_compared(tiny_run: MakeRun, tmp_path: Path) -> None:
    first = finish(tiny_run, tmp_path / "first")
    tasks = [{"name": name, "folder": name, "steps": 4} for name in ("fruit", "tools")]
    shorter = finish(tiny_run, tmp_path / "shorter", stream={"tasks": tasks})
    with pytest.raises(UserError, match="other numbers of steps"):
        Comparison.of([first, shorter])
    other = finish(tiny_run, tmp_path / "other", stream={"tokenizer": {"vocab_size": 280}})
    with pytest.raises(UserError, match="different data"):
        Comparison.of([first, other])
    diary = first / "metrics.jsonl"
    lines = diary.read_text().splitlines()
    diary.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    with pytest.raises(UserError, match="stopped at step"):
        Comparison.of([first, other])


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        read_run(tmp_path)
