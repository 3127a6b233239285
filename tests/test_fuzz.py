"""Hostile input: never a traceback, never a damaged state loaded, never a run that silently becomes another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trc2.cli import COMMANDS

ROOT = Path(__file__).parents[1]


def start_fuzzer(cases: int, seed: int, shard: int, shards: int, out: Path) -> subprocess.Popen[str]:
    """A process of its own: cases are forked from it, which a process with pytest's threads should not be."""
    options = ["--cases", str(cases), "--seed", str(seed), "--shard", f"{shard}/{shards}", "--out", str(out)]
    command = [sys.executable, "-m", "tests.fuzz", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def findings(fuzzer: subprocess.Popen[str], out: Path) -> dict[str, Any]:
    """The report, which must tell of no finding; else what the fuzzer printed says what and how to see it again."""
    printed, _ = fuzzer.communicate()
    assert fuzzer.returncode == 0, printed[-20_000:]
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def test_hostile_input_gets_a_sentence_or_a_right_result(tmp_path: Path) -> None:
    report = findings(start_fuzzer(1_000, 0, 0, 1, tmp_path / "fuzz.json"), tmp_path / "fuzz.json")
    assert (report["cases"], report["tracebacks"], report["hangs"]) == (1_000, 0, 0)
    assert all(report["kinds"][command]["cases"] >= 4 for command in COMMANDS)


@pytest.mark.slow
def test_a_hundred_thousand_more(tmp_path: Path) -> None:
    shards = os.cpu_count() or 1
    outs = [tmp_path / f"fuzz-{shard}.json" for shard in range(shards)]
    fuzzers = [start_fuzzer(100_000, 1, shard, shards, out) for shard, out in enumerate(outs)]
    reports = [findings(fuzzer, out) for fuzzer, out in zip(fuzzers, outs, strict=True)]
    assert sum(report["cases"] for report in reports) == 100_000
    for command in COMMANDS:
        assert sum(report["kinds"][command]["cases"] for report in reports) > 1_500
