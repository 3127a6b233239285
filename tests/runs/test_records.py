from __future__ import annotations

import json
from pathlib import Path

import pytest

from trc2.errors import UserError
from trc2.metrics.forgetting import PERPLEXITY, TaskSpan
from trc2.runs.records import Record, current, parse, read_all_records, score_table


def test_records_survive_the_round_trip_not_finite_numbers_included() -> None:
    record = Record("train", 3, "a", {"train/loss": float("inf"), "x": 1.5}, 2.0)
    assert parse(record.to_json()) == record
    assert json.loads(record.to_json())["schema"] == 1


def test_a_resume_supersedes_what_came_after_its_step_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [Record("train", step, "a").to_json() for step in (1, 2, 3, 4)]
    lines += [Record("resume", 2, "a").to_json(), Record("train", 3, "b").to_json(), '{"schema": 1, "ki']
    path.write_text("\n".join(lines))
    assert [(r.kind, r.step, r.task) for r in current(read_all_records(path))] == [
        ("train", 1, "a"), ("train", 2, "a"), ("resume", 2, "a"), ("train", 3, "b"),
    ]  # fmt: skip


def test_damage_in_the_middle_and_newer_schemas_are_told(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("nonsense\n" + Record("train", 1, "a").to_json())
    with pytest.raises(UserError, match=r"metrics\.jsonl:1 is not a record"):
        current(read_all_records(path))
    path.write_text(Record("train", 1, "a").to_json().replace('"schema": 1', '"schema": 7'))
    with pytest.raises(UserError, match="schema 7"):
        current(read_all_records(path))


def test_scores_are_read_by_path() -> None:
    records = [
        Record("eval", 0, "a", {"eval/a/perplexity": 9.0, "eval/b/perplexity": 8.0, "eval/a/loss": 1.0}),
        Record("train", 1, "a", {"eval/a/perplexity": 1.0}),
        Record("eval", 2, "a", {"eval/a/perplexity": 5.0}),
    ]
    table = score_table(records, PERPLEXITY, (TaskSpan("a", 0, 2),))
    assert table.scores == {0: {"a": 9.0, "b": 8.0}, 2: {"a": 5.0}}
