from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from trc2.errors import UserError
from trc2.runs.first_weights import as_lines, read_sums, sums_of


def test_the_sums_are_those_of_the_files_the_weights_are_read_from(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("b.safetensors", "a.safetensors", "unused.safetensors"):
        (model / name).write_bytes(name.encode())
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    expected = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a.safetensors", "b.safetensors")}
    assert sums_of(str(model), tmp_path / "cache") == expected
    (model / "model.safetensors").write_bytes(b"whole")  # goes before shards, in transformers too
    assert sums_of(str(model), tmp_path / "cache") == {"model.safetensors": hashlib.sha256(b"whole").hexdigest()}


def test_what_is_written_is_read_back_and_a_damaged_line_is_told(tmp_path: Path) -> None:
    sums = {"b": "1" * 64, "a": "0" * 64}
    path = tmp_path / "sums"
    path.write_text(as_lines(sums))
    assert path.read_text() == f"{'0' * 64}  a\n{'1' * 64}  b\n"
    assert read_sums(path) == sums
    path.write_text("0123  a\n")
    with pytest.raises(UserError, match="no checksum and name"):
        read_sums(path)
