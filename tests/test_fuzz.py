"""Hostile input: never a traceback, never a damaged state loaded, never a run that silently becomes another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from trc2.cli import COMMANDS

ROOT = Path(__file__).parents[1]


def cases_without_findings(cases: int, seed: int, folder: Path, shards: int = 1) -> Counter[str]:
    """Cases per kind, run by processes of their own: they fork, which a process with pytest's threads should not."""
    outs = [folder / f"fuzz-{shard}.json" for shard in range(shards)]
    command = [sys.executable, "-m", "tests.fuzz", "--cases", str(cases), "--seed", str(seed)]
    fuzzers = [
        subprocess.Popen(
            [*command, "--shard", f"{shard}/{shards}", "--out", str(out)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for shard, out in enumerate(outs)
    ]  # fmt: skip
    kinds: Counter[str] = Counter()
    for fuzzer, out in zip(fuzzers, outs, strict=True):
        printed, _ = fuzzer.communicate()
        assert fuzzer.returncode == 0, printed[-20_000:]  # says what was found, and how to see it again
        kinds.update({name: kind["cases"] for name, kind in json.loads(out.read_text())["kinds"].items()})
    return kinds


def test_hostile_input_gets_a_sentence_or_a_right_result(tmp_path: Path) -> None:
    kinds = cases_without_findings(1000, 0, tmp_path)
    assert kinds.total() == 1000
    assert all(kinds[command] >= 3 for command in COMMANDS)


@pytest.mark.slow
def test_a_hundred_thousand_more(tmp_path: Path) -> None:
    kinds = cases_without_findings(100_000, 1, tmp_path, shards=os.cpu_count() or 1)
    assert kinds.total() == 100_000
    assert all(kinds[command] > 250 for command in COMMANDS)
