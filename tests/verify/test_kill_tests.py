from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trc2.runs.environment import git_revision
from trc2.verify.kill_tests import SHARES, verify_resume


def test_every_command_killed_once_ends_as_if_it_never_was(tmp_path: Path) -> None:
    kills = str(len(SHARES) + 1)
    command = [sys.executable, "-m", "trc2.cli", "verify", "--resume", "--kills", kills, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "resume.json").read_text())
    assert report["passed"] is True
    assert sum(report["killed_at"].values()) >= len(SHARES)  # and some of the six processes on one cold cache
    assert {place.split(":")[0] for place in report["killed_at"]} == set(SHARES)
    assert all(report["ended"][name] >= 1 for name in SHARES)
    assert f"{report['kills']} kills of {len(SHARES)} commands" in done.stdout
    assert report["tensors"] > 100
    assert report["revision"] == git_revision()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_twenty_kills(tmp_path: Path) -> None:
    report = verify_resume(tmp_path, kills=20, seed=1)
    assert report.passed, report.differences
