"""Variables that describe a group are read, and single left-over ones are ignored."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trc2.system.torchrun import Place, is_first_process, is_worker, left_over, num_restarts, place_of_process


@pytest.mark.parametrize(
    "stray",
    [
        {"RANK": "1"},
        {"RANK": "x"},
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": "2", "RANK": "1"},  # without an address the group cannot meet
        {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost"},
        {"WORLD_SIZE": "9" * 5000, "RANK": "1", "MASTER_ADDR": "localhost"},
        {"LOCAL_RANK": "-1"},
        {"RANK": "1", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "y"},
    ],
)
def test_variables_that_describe_no_group_leave_a_process_alone(
    stray: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stray.items():
        monkeypatch.setenv(name, value)
    assert place_of_process() == Place()
    assert is_first_process()
    assert not is_worker()
    assert num_restarts() == 0
    expected = [f"{name}={stray[name]}" for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in stray]
    assert left_over() == expected


def test_a_group_is_known_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    group = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    for name, value in group.items():
        monkeypatch.setenv(name, value)
    assert place_of_process() == Place(3, 4, 1, 2)
    assert not is_first_process()
    assert left_over() == []


def test_a_stray_rank_does_not_silence_the_command() -> None:
    stray = {"RANK": "x", "WORLD_SIZE": "0", "LOCAL_RANK": "1"}
    command = [sys.executable, "-m", "trc2.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **stray})
    assert done.returncode == 0, done.stderr
    assert "continue" in done.stdout
