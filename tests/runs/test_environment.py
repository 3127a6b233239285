from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from trc2.errors import UserError
from trc2.runs.environment import (
    changes_since,
    checksum_lines,
    describe_environment,
    read_checksums,
    weight_checksums,
)


def test_the_command_is_kept_without_the_folders_that_may_name_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        "/home/me/.venv/bin/trc2",
        "train",
        "/home/me/my.yaml",
        "stream.data_root=/srv/me/data",
        "runs/a/b",
        "x=~/y/z",
    ]
    monkeypatch.setattr("sys.argv", given)
    kept = describe_environment()["command"]
    assert kept == ["trc2", "train", "…/my.yaml", "stream.data_root=…/data", "runs/a/b", "x=…/z"]


def test_versions_that_changed_came_or_went_are_named() -> None:
    before = {"python": "3.11", "versions": {"torch": "2.12", "gone": "1"}}
    after = {"python": "3.11", "versions": {"torch": "2.13", "new": "2"}}
    assert changes_since(before, after) == {"torch": "2.12 → 2.13", "gone": "1 → None", "new": "None → 2"}


def test_the_sums_are_those_of_the_files_the_weights_are_read_from(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("b.safetensors", "a.safetensors", "unused.safetensors"):
        (model / name).write_bytes(name.encode())
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    expected = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a.safetensors", "b.safetensors")}
    assert weight_checksums(str(model), tmp_path / "cache") == expected
    (model / "model.safetensors").write_bytes(b"whole")  # goes before shards, in transformers too
    assert weight_checksums(str(model), tmp_path / "cache") == {
        "model.safetensors": hashlib.sha256(b"whole").hexdigest()
    }


def test_what_is_written_is_read_back_and_a_damaged_line_is_told(tmp_path: Path) -> None:
    sums = {"b": "1" * 64, "a": "0" * 64}
    path = tmp_path / "sums"
    path.write_text(checksum_lines(sums))
    assert path.read_text() == f"{'0' * 64}  a\n{'1' * 64}  b\n"
    assert read_checksums(path) == sums
    path.write_text("0123  a\n")
    with pytest.raises(UserError, match="not a checksum with a name"):
        read_checksums(path)
