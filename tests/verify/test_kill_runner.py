"""Kill a command and start it again: what is found is reported, and the other kills go on."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from trc2.system.failpoints import failpoint
from trc2.verify.kill_runner import Losses, Trial, kill_and_restart

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def write_two_files(target: Path) -> None:
    """A command that cannot go on after it was killed between its files."""
    target.mkdir(exist_ok=True)
    if (target / "first").exists():
        raise SystemExit(1)
    (target / "first").touch()
    failpoint("step")
    time.sleep(0.05)
    (target / "second").touch()


def test_a_command_that_cannot_go_on_is_reported_and_the_other_kills_are_made(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    write_two_files(whole)
    losses = Losses(Counter(), Counter(), [])
    trial = Trial("two files", write_two_files, ("step",), lambda first, second: [])
    kill_and_restart(trial, tmp_path / "parted", whole, 5, 0.05, random.Random(0), losses, lambda text: None)
    assert losses.killed.total() == 5
    assert losses.differences
    assert all("ended with exit code 1 and not 0" in text for text in losses.differences)
