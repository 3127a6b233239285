"""parent.json: what is written is read again, and values of a wrong type are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trc2.errors import UserError
from trc2.runs.lineage import Lineage, Prediction, read_lineage

CHILD = Lineage("parent", 12, ("new",), True, limit=0.05, prediction=Prediction(0.2, float("inf")), kept=("old",))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    CHILD.write(tmp_path / "parent.json")
    assert read_lineage(tmp_path / "parent.json") == CHILD


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("relative", ["up"]), ("limit", "0.05"), ("limit", float("nan")), ("stop_at", float("inf")), ("step", True),
        ("step", 1.5), ("tasks", "new"), ("trial", {"share": 0.2}), ("parent", None), ("weights", 3),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_refused(tmp_path: Path, name: str, value: object) -> None:
    file = tmp_path / "parent.json"
    CHILD.write(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    with pytest.raises(UserError, match=r"parent\.json cannot be read .*restore it from a copy"):
        read_lineage(file)
