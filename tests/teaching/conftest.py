"""Saved models that are small enough to be taught in a second, and documents for them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from tests.conftest import TINY_TASKS
from trc2.hf.export import export_run
from trc2.stream.tokenizer import train_bpe

NAMES = ("ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hana")
PLACES = ("oslo", "lima", "rome", "bonn", "cork", "pune", "nice", "york")
VERBS = ("met", "saw", "left", "paid")


def documents(count: int, seed: int = 0) -> list[str]:
    """Short reports of a little world in which every person always goes to the same places."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        sentences = []
        for _ in range(4):
            person = rng.randrange(len(NAMES))
            place = PLACES[(person + rng.randrange(2)) % len(PLACES)]
            sentences.append(
                f"{NAMES[person]} {VERBS[person % 4]} {NAMES[(person + 3) % 8]} in {place} on day {person}."
            )
        rows.append(" ".join(sentences))
    return rows


@pytest.fixture(scope="session")
def exported_once(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_run(trained_once, folder, "0")
    return folder


@pytest.fixture(scope="session")
def llama_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as transformers saves it, with a tokenizer."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    words = " ".join(word for words in (*TINY_TASKS.values(), NAMES, PLACES) for word in words)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=128, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(train_bpe([f"{words} 0123456789:."] * 3, 290).to_json())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(params=["ours", "llama"])
def saved_model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A saved model of the test's own: one that we trained and exported, or a Llama."""
    name = "exported_once" if request.param == "ours" else "llama_once"
    return Path(shutil.copytree(request.getfixturevalue(name), tmp_path / "model"))


@pytest.fixture
def exported(exported_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported_once, tmp_path / "model"))


WriteRows = Callable[[str, list[str]], Path]


@pytest.fixture
def write_rows(tmp_path: Path) -> WriteRows:
    """Writes documents as rows of a file."""

    def write(name: str, texts: list[str]) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts) + "\n")
        return path

    return write
