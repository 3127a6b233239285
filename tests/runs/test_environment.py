from __future__ import annotations

import pytest

from trc2.runs.environment import changes_since, describe_environment


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
