"""Hostile input: never a traceback, never a damaged state loaded, never a run that silently becomes another."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.fuzz.damage import mutate
from trc2.cli import COMMANDS
from trc2.config import RunConfig, load_recipe
from trc2.errors import UserError
from trc2.runs.checkpoint import Checkpoint, DamagedCheckpoint, load_checkpoint, save_checkpoint

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


# What follows needs no command: the two readers that every damaged file meets first, and how often they refuse.


def test_mutated_checkpoints_are_never_loaded(tmp_path: Path) -> None:
    rng = random.Random(0)
    tensors = {f"t{n}": torch.randn(3, n + 1) for n in range(6)}
    path = save_checkpoint(tmp_path, Checkpoint(5, tensors, {"progress": {"step": 5}, "list": [1, None, "x"]}))
    pristine = {file.name: file.read_bytes() for file in path.iterdir()}
    refused = 0
    for _ in range(1500):
        name = rng.choice(sorted(pristine))
        (path / name).write_bytes(mutate(pristine[name], rng))
        try:
            found = load_checkpoint(path)
        except DamagedCheckpoint:
            refused += 1
        else:
            # Only what does not matter may have changed: white space in the manifest, say.
            assert found.step == 5
            assert all(torch.equal(tensor, found.tensors[key]) for key, tensor in tensors.items())
            assert found.state == {"progress": {"step": 5}, "list": [1, None, "x"]}
        (path / name).write_bytes(pristine[name])
    assert refused > 0.9 * 1500
    shutil.rmtree(path)


def test_mutated_configs_give_a_sentence_or_a_config(tmp_path: Path) -> None:
    rng = random.Random(1)
    pristine = yaml.safe_dump(load_recipe("lab_trc2").model_dump(mode="json")).encode()
    path = tmp_path / "recipe.yaml"
    sentences: list[str] = []
    for _ in range(200):
        path.write_bytes(mutate(pristine, rng))
        try:
            assert isinstance(load_recipe(str(path)), RunConfig)
        except UserError as error:
            sentences.append(str(error))
    assert len(sentences) > 0.3 * 200
    assert not any("\n" in sentence for sentence in sentences)
