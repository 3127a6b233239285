from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.common import forgets, write_run
from trc2.report.run import read_run
from trc2.report.summary import run_numbers, summary_text, write_summary
from trc2.runs.lineage import Lineage
from trc2.system.numbers import short


def test_a_run_is_summarised_from_its_folder_alone(trained: Path) -> None:
    written = write_summary(trained)
    assert [path.name for path in written] == ["summary.md", "summary.png", "hippocampus.png"]
    text = written[0].read_text()
    run = read_run(trained)
    assert (
        f"| fruit | {run.score('perplexity', 'fruit', 0):.4g} | **{run.score('perplexity', 'fruit', 6):.4g}** |" in text
    )
    assert "fruit (6 steps) → tools (6 steps); seed 0; 32 tokens a step; finished." in text
    # what the trainer logged is what the report recomputes
    logged = [record for record in run.records if record.kind == "eval"][-1].metrics
    for name, value in run.summary("perplexity").items():
        assert value == pytest.approx(logged[name])


def test_a_summary_says_in_words_what_became_of_each_task(tmp_path: Path) -> None:
    scores = {0: (400, 400, 400), 10: (85, 390, 380), 20: (107, 420, 370), 30: (107.1, 300, 40)}
    folder = write_run(tmp_path / "run", 3, lambda step, task: scores[-(-step // 10) * 10][task])
    text = summary_text(read_run(folder), None)
    assert "task0 lost 26 % (perplexity 85 → 107)." in text
    assert "task1 was not learned" in text
    assert "(perplexity 40" not in text  # the last task has no past


def test_a_summary_names_evaluation_text_that_was_trained_on(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", 2, forgets))
    overlap = {"t0/validation": {"t0": 0.36, "t1": 0.01}, "t1/test": {"t0": 0.051}}
    text = summary_text(replace(run, data={**run.data, "overlap": overlap}), None)
    assert "36 % of t0/validation is in the train text of t0; 5.1 % of t1/test is in the train text of t0." in text
    assert "Overlap" not in summary_text(run, None)


def test_numbers_are_short_whatever_they_are() -> None:
    texts = {0.0: "0", 1.23456: "1.23", 999.9: "1e+03", 12345.6: "12,346", math.inf: "inf", math.nan: "nan"}
    assert [short(value) for value in texts] == list(texts.values())


def test_an_unfinished_run_is_summarised_up_to_where_it_is(tmp_path: Path) -> None:
    text = write_summary(write_run(tmp_path / "run", 3, last_step=15))[0].read_text()
    assert "unfinished, at step 15 of 30." in text
    assert "Forgetting at step 15 " in text
    assert "| task1 | 59 | 59 | – | – | – |" in text
    write_summary(write_run(tmp_path / "barely", 3, last_step=0))


def test_names_are_text_in_every_file(tmp_path: Path) -> None:
    name = "[x](http:--evil) <script>|*a*"
    summary = write_summary(write_run(tmp_path / name, 2))[0].read_text()
    assert summary.startswith("# \\[x\\](http\\:--evil) \\<script\\>\\|\\*a\\*\n")


def test_a_continued_run_that_has_not_been_evaluated_yet_is_summarised(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2, last_step=5)
    Lineage("parent", 8, ("task1",), True).write(run / "parent.json")
    assert write_summary(run)[0].is_file()
    assert run_numbers(run)["parent"]["perplexity"] == {}


def test_a_folder_in_the_place_of_a_picture_is_named_before_anything_is_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    (folder / "summary.png").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        write_summary(folder)
    assert error.value.filename == str(folder / "summary.png")
    assert not (folder / "summary.md").exists()
