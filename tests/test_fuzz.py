"""Hostile input: never a traceback, never a damaged state loaded, never a run that silently becomes another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from trc2.cli import COMMANDS

ROOT = Path(__file__).parents[1]
# `serve` would not return, and lm-eval is refused where its extra is not installed.
NEVER_ACCEPTED = {"serve", "lm-eval"}


@dataclass
class Counts:
    """Cases by kind: all of them, and those that were not refused."""

    cases: Counter[str]
    accepted: Counter[str]


def cases_without_findings(
    cases: int, seed: int, folder: Path, *, shards: int = 1, kinds: Iterable[str] = ()
) -> Counts:
    """Run by processes of their own: they fork, which a process with pytest's threads should not."""
    outs = [folder / f"fuzz-{shard}.json" for shard in range(shards)]
    command = [sys.executable, "-m", "tests.fuzz", "--cases", str(cases), "--seed", str(seed)]
    command += ["--kinds", ",".join(sorted(kinds))] if kinds else []
    fuzzers = [
        subprocess.Popen(
            [*command, "--shard", f"{shard}/{shards}", "--out", str(out)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for shard, out in enumerate(outs)
    ]  # fmt: skip
    counts = Counts(Counter(), Counter())
    for fuzzer, out in zip(fuzzers, outs, strict=True):
        printed, _ = fuzzer.communicate()
        assert fuzzer.returncode == 0, printed[-20_000:]  # says what was found, and how to see it again
        for name, kind in json.loads(out.read_text())["kinds"].items():
            counts.cases[name] += kind["cases"]
            counts.accepted[name] += kind["cases"] - kind["refused"]
    return counts


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    return cases_without_findings(1000, 0, tmp_path_factory.mktemp("fuzz"))


def test_hostile_input_gets_a_sentence_or_a_right_result(thousand: Counts) -> None:
    assert thousand.cases.total() == 1000
    assert all(thousand.cases[command] >= 3 for command in COMMANDS)


def test_every_command_gets_further_than_its_refusals(thousand: Counts, tmp_path: Path) -> None:
    """A command whose cases are all refused is not tested. What a thousand cases do not reach, a hundred more must."""
    missing = {name for name in COMMANDS if not thousand.accepted[name]} - NEVER_ACCEPTED
    if missing:
        more = cases_without_findings(100, 1, tmp_path, kinds=missing)
        missing -= {name for name, count in more.accepted.items() if count}
    assert missing == set()


@pytest.mark.slow
def test_a_hundred_thousand_more(tmp_path: Path) -> None:
    counts = cases_without_findings(100_000, 1, tmp_path, shards=os.cpu_count() or 1)
    assert counts.cases.total() == 100_000
    assert all(counts.cases[command] > 250 for command in COMMANDS)
    assert all(counts.accepted[command] > 10 for command in COMMANDS if command not in NEVER_ACCEPTED)
