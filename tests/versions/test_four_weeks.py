"""The example of four weeks, undisturbed and killed on the way."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from tests.backbones.hf_models.conftest import VOCAB, build
from trc2.runs.checkpoint import list_checkpoints, weights_of
from trc2.stream.tokenizer import train_bpe
from trc2.versions.registry import Versions

EXAMPLE = Path(__file__).parents[2] / "examples" / "four_weeks.py"
FOLDERS = ("old", "week1", "week2", "week3", "week4")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_texts(folder: Path, name: str) -> None:
    """40 documents over 50 words of their own."""
    rng = random.Random(name)
    words = ["".join(rng.choices(LETTERS, k=5)) for _ in range(50)]
    rows = [json.dumps({"text": " ".join(rng.choices(words, k=60))}) for _ in range(40)]
    folder.mkdir(parents=True)
    (folder / "documents.jsonl").write_text("\n".join(rows) + "\n")


def weeks(folder: Path, out: Path, *options: str) -> str:
    command = [sys.executable, str(EXAMPLE), str(folder / "llama"), str(folder), str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_has_at_most_80_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 80


@pytest.mark.slow
def test_four_weeks_killed_twice_give_the_same_versions_to_the_bit(tmp_path: Path) -> None:
    for name in FOLDERS:
        write_texts(tmp_path / name, name)
    build("llama").save_pretrained(tmp_path / "llama")
    tokenizer = train_bpe([" ".join(LETTERS)] * 3, VOCAB - 6).to_json()
    (tmp_path / "llama" / "tokenizer.json").write_text(tokenizer)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (tmp_path / "llama" / "tokenizer_config.json").write_text(json.dumps(settings))

    plain = weeks(tmp_path, tmp_path / "plain")
    killed = weeks(tmp_path, tmp_path / "killed", "--kill")
    assert re.findall(r"was killed at .* \((-?\d+)\)", killed) == ["-9", "-9"]
    assert plain.splitlines()[-1] == killed.splitlines()[-1]
    one, two = Versions(tmp_path / "plain" / "versions"), Versions(tmp_path / "killed" / "versions")
    assert [version.name for version in one.all()] == [version.name for version in two.all()]
    assert [(event.kind, event.version) for event in one.events()] == [
        (event.kind, event.version) for event in two.events()
    ]
    moves = ["promote", "promote", "promote", "rollback", "promote", "prune"]
    assert [event.kind for event in one.events()] == moves
    assert one.events()[-1].version == one.all()[2].name  # no rollback leads to week 2, so its checkpoint is removed
    for first, second in zip(one.all(), two.all(), strict=True):
        first.check()
        second.check()
        for name in first.files:  # optimizer, stores and strategy too
            if name.endswith("tensors.safetensors"):
                assert first.files[name] == second.files[name]
        if first.run is not None and second.run is not None:
            checksums = [weights_of(list_checkpoints(run / "checkpoints")[-1]) for run in (first.run, second.run)]
            assert checksums[0] == checksums[1]
    last = one.accepted()
    assert last.parent == one.all()[1].name  # week 4 goes on from week 1
    assert sorted(last.verdict["tasks"]) == ["news-earlier", "old"]  # type: ignore[index]
    assert [path.name for path in one.attempts()] == ["0004-news"]  # the refused one is still there
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain" / "model")
    assert (tmp_path / "plain" / "tree.png").is_file()
    assert "documents of news (held out by" in plain
