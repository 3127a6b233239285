"""The metrics log: round trips, torn lines, marks, and being on disk before the checkpoint that needs it."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import QUIET, MakeRun
from trc2.cli import app
from trc2.errors import UserError
from trc2.metrics.forgetting import PERPLEXITY, TaskSpan
from trc2.report.run import read_run
from trc2.runs.checkpoint import list_checkpoints
from trc2.runs.records import MetricsLog, Record, append_record, current, parse, read_all_records, score_table
from trc2.training.resume import resume_run
from trc2.training.setup import start_run


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


def test_its_mark_is_length_and_hash_of_the_file_also_when_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        metrics_log = MetricsLog(path)
        metrics_log.see(Record("train", step, "a", {"x": 0.5}))
        metrics_log.close()
        content = path.read_bytes()
        assert metrics_log.mark() == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert [record.step for record in current(read_all_records(path))] == [1, 2]


@pytest.mark.parametrize("end", [b'{"schema": 1, "ki', b"nonsense\n", b"\0\0\0\0\n\0\0", b'{"schema": 1}\n', b"[[[[\n"])
def test_a_torn_or_bad_end_is_passed_over_by_readers_and_cut_off_by_writers(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = Record("train", 1, "a").to_json().encode() + b"\n"
    path.write_bytes(whole + end)
    assert [record.step for record in current(read_all_records(path))] == [1]
    metrics_log = MetricsLog(path)
    metrics_log.see(Record("train", 2, "a"))
    metrics_log.close()
    assert path.read_bytes().startswith(whole + b'{"schema": 1, "kind": "train", "step": 2')
    assert [record.step for record in current(read_all_records(path))] == [1, 2]


def test_empty_lines_at_the_end_are_not_torn(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    before = Record("train", 1, "a").to_json().encode() + b"\n\n\n"
    path.write_bytes(before)
    append_record(path, Record("train", 2, "a"))
    assert path.read_bytes().startswith(before)
    assert [record.step for record in read_all_records(path)] == [1, 2]


def test_it_is_on_disk_before_each_checkpoint_gets_its_name(tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, plain = [], MetricsLog.sync

    def sync(self: MetricsLog) -> None:
        synced.append((self.size > 0, len(list_checkpoints(self.path.with_name("checkpoints")))))
        plain(self)

    monkeypatch.setattr(MetricsLog, "sync", sync)
    folder = start_run(tiny_run(output={"keep_checkpoints": 9}), QUIET)
    assert len(list_checkpoints(folder / "checkpoints")) == 4
    assert synced == [(True, 0), (True, 1), (True, 2), (True, 3)]


def test_scoring_the_test_split_after_a_torn_line_does_not_brick_the_run(tiny_run: MakeRun) -> None:
    folder = start_run(tiny_run(eval={"test": False}), QUIET)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"schema": 1, "kind": "tr')
    assert CliRunner().invoke(app, ["eval", str(folder), "--split", "test"]).exit_code == 0
    assert read_run(folder).records[-1].kind == "test"
    assert resume_run(folder, [], QUIET) == folder


def test_a_look_at_the_test_split_is_remembered_after_a_resume(tiny_run: MakeRun) -> None:
    folder = start_run(tiny_run(output={"keep_checkpoints": 9}), QUIET)
    shutil.rmtree(list_checkpoints(folder / "checkpoints")[-1])
    metrics_log = MetricsLog(folder / "metrics.jsonl")
    metrics_log.see(Record("resume", 8, ""))
    metrics_log.close()
    assert not any(record.kind == "test" for record in current(read_all_records(folder / "metrics.jsonl")))
    assert any(record.kind == "test" for record in read_all_records(folder / "metrics.jsonl"))
    refused = CliRunner().invoke(app, ["eval", str(folder), "--split", "test"])
    assert "--again" in str(refused.exception)
