from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.report.common import forgets, write_run
from trc2.config import RunConfig
from trc2.errors import UserError
from trc2.report.finished import read_run
from trc2.report.summary import Comparison, short, summary_text, write_summary
from trc2.training.start import start_run

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


def test_a_summary_says_in_words_what_became_of_each_task(tmp_path: Path) -> None:
    scores = {0: (400, 400, 400), 10: (85, 390, 380), 20: (107, 420, 370), 30: (107.1, 300, 40)}
    folder = write_run(tmp_path / "run", 3, lambda step, task: scores[-(-step // 10) * 10][task])
    text = summary_text(read_run(folder), [])
    assert "task0 lost 26 % (perplexity 85 → 107)." in text
    assert "task1 was not learnt" in text
    assert "(perplexity 40" not in text  # the last task has no past


def test_a_summary_names_evaluation_text_that_was_trained_on(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", 2, forgets))
    overlap = {"t0/validation": {"t0": 0.36, "t1": 0.01}, "t1/test": {"t0": 0.051}}
    text = summary_text(replace(run, data={**run.data, "overlap": overlap}), [])
    assert "36 % of t0/validation is in the train text of t0; 5.1 % of t1/test is in the train text of t0." in text
    assert "Overlap" not in summary_text(run, [])


def test_runs_are_compared_and_the_reading_follows_the_numbers(tiny_run: MakeRun, tmp_path: Path) -> None:
    plain = {**tiny_run().model.model_dump(), "memory": False, "replay": False, "thalamus": False}
    folders = [finish(tiny_run, tmp_path / "full"), finish(tiny_run, tmp_path / "plain", model=plain)]
    comparison = Comparison.of(folders)
    assert [row[0] for row in comparison.rows()] == ["full", "plain"]
    ends = {run.name: run.score("perplexity", "tools", 12) for run in comparison.runs}
    best = min(ends, key=ends.__getitem__)
    assert f"{best} learnt the last task (tools) best: perplexity {ends[best]:.3g}." in comparison.reading()
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


def scaled(factor: float) -> Callable[[int, int], float]:
    """Forgets more by the factor, and ends every task a little worse."""
    return lambda step, task: forgets(step, task) * (1 + factor * max(0, step - 10 * task - 10) / 10 + factor / 100)


def reading(tmp_path: Path, **perplexities: Callable[[int, int], float]) -> list[str]:
    folders = [write_run(tmp_path / name, 3, perplexity) for name, perplexity in perplexities.items()]
    comparison = Comparison.of(folders)
    written = comparison.write(tmp_path / "out")
    assert written[1].read_bytes().startswith(b"\x89PNG")
    return comparison.reading()


def test_the_reading_names_who_forgot_least_and_most(tmp_path: Path) -> None:
    sentences = reading(tmp_path, mild=scaled(0.1), harsh=scaled(1.0), middling=scaled(0.5))
    assert sentences[0].startswith("mild forgot least: its forgetting area is 0.")
    assert sentences[1].startswith("harsh forgot most, ")
    assert "times as much" in sentences[1]
    assert sentences[2].startswith("mild learnt the last task (task2) best: perplexity 8.1")


def test_what_is_printed_alike_is_a_tie(tmp_path: Path) -> None:
    def never(step: int, task: int) -> float:
        return 10.0

    assert reading(tmp_path / "all", a=never, b=never)[:2] == [
        "a and b tie: the forgetting area of each is 0.000.",
        "a and b tie on the last task (task2): perplexity 10.",
    ]
    assert reading(tmp_path / "some", a=never, b=never, c=scaled(1.0))[:2] == [
        "a and b forgot least, and tie: the forgetting area of each is 0.000.",
        "c forgot most: 0.430.",
    ]


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_broken_run_wins_nothing(tmp_path: Path, odd: float) -> None:
    sentences = reading(tmp_path, broken=lambda step, task: odd, sound=forgets)
    assert sentences == [
        "The forgetting area of broken is not finite: nothing can be said of it.",
        "sound has a forgetting area of 0.018.",
        "The perplexity on the last task (task2) of broken is not finite: nothing can be said of it.",
        "sound learnt the last task (task2) best: perplexity 8.12.",
        "One seed each: differences of a few percent mean nothing.",
    ]
    sentences = reading(tmp_path / "both", a=lambda step, task: odd, b=lambda step, task: odd)
    assert sentences[0] == "The forgetting area of a and b is not finite: nothing can be said of it."
    assert not any("least" in sentence or "best" in sentence for sentence in sentences)
    assert str(odd) in write_summary(tmp_path / "broken")[0].read_text()


def test_numbers_are_short_whatever_they_are() -> None:
    assert [short(value) for value in (0.0, 1.23456, 999.9, 12345.6, math.inf, math.nan)] == [
        "0",
        "1.23",
        "1e+03",
        "12,346",
        "inf",
        "nan",
    ]


def test_an_unfinished_run_is_summarised_up_to_where_it_is(tmp_path: Path) -> None:
    text = write_summary(write_run(tmp_path / "run", 3, last_step=15))[0].read_text()
    assert "unfinished, at step 15 of 30." in text
    assert "Forgetting at step 15 " in text
    assert "| task1 | 59 | 59 | – | – | – |" in text
    write_summary(write_run(tmp_path / "barely", 3, last_step=0))


def test_names_are_text_in_every_file(tmp_path: Path) -> None:
    name = "[x](http:--evil) <script>|*a*"
    folders = [write_run(tmp_path / name, 2), write_run(tmp_path / "lab_trc2", 2)]
    summary = write_summary(folders[0])[0].read_text()
    assert summary.startswith("# \\[x\\](http\\:--evil) \\<script\\>\\|\\*a\\*\n")
    compared = Comparison.of(folders).write(tmp_path / "out")[0].read_text()
    assert "\n| \\[x\\](http\\:--evil) \\<script\\>\\|\\*a\\* | 8.12→8.32 |" in compared
    assert "\n| lab_trc2 | 8.12→8.32 |" in compared
    assert "<script" not in compared.replace("\\<", "")
    assert "![comparison.png](comparison.png)" in compared
