"""Reading a run folder back: whatever is damaged is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report.common import write_run
from trc2.errors import UserError
from trc2.report.run import read_run
from trc2.report.summary import write_summary


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        read_run(tmp_path)


def test_a_run_is_called_as_its_folder_however_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_run(tmp_path / "mine"))
    assert read_run(Path()).name == "mine"
    assert read_run(Path("../mine/../mine")).name == "mine"


def test_a_run_before_its_first_evaluation_is_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    lines = [line for line in (folder / "metrics.jsonl").read_text().splitlines() if '"eval"' not in line]
    for content in ("", "\n".join(lines[:2]) + "\n"):
        (folder / "metrics.jsonl").write_text(content)
        with pytest.raises(UserError, match="has not been evaluated yet"):
            write_summary(folder)


def test_a_run_whose_boundaries_were_not_measured_is_still_reported(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["step"] not in (10, 20)]
    (folder / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    assert "| perplexity | nan | nan | nan | nan |" in write_summary(folder)[0].read_text()


@pytest.mark.parametrize("name", ["metrics.jsonl", "data.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"is not a whole run folder: {name} is missing"):
        read_run(folder)


DATA = [
    b"[]", b"3", b"{}", b"null", b"\xff", b"{", b"[" * 100_000, b'{"fingerprint": 1, "tasks": {}}',
    b'{"fingerprint": "x", "tasks": {}}', b'{"fingerprint": "x", "tasks": {"task0": []}}',
    b'{"fingerprint": "x", "tasks": {"task0": {"splits": {"train": {"tokens": "many", "documents": 1}}}}}',
]  # fmt: skip


SETTINGS = [b"", b"[", b"- 1", b"\xff", b"model: {1: 2}", b"model: 3", b"a: &a [*a]"]
DAMAGED = [*(("data.json", content) for content in DATA), *(("config.yaml", content) for content in SETTINGS)]


@pytest.mark.parametrize(("name", "content"), DAMAGED, ids=lambda part: str(part)[:60])
def test_a_damaged_file_is_told_in_a_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value) or name == "config.yaml"


@pytest.mark.parametrize("overlap", [[1], {"a": 3}, {"a": []}, {"a": {"b": "much"}}])
def test_damaged_overlaps_are_told_in_a_sentence(tmp_path: Path, overlap: object) -> None:
    folder = write_run(tmp_path / "run")
    data = json.loads((folder / "data.json").read_text())
    (folder / "data.json").write_text(json.dumps({**data, "overlap": overlap}))
    with pytest.raises(UserError, match=r"data\.json"):
        read_run(folder)
