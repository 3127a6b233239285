"""Mutated checkpoints and configs: never a traceback, never a damaged state loaded."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from trc2.config import RunConfig, load_recipe
from trc2.errors import UserError
from trc2.runs.checkpoint import Checkpoint, DamagedCheckpoint, load_checkpoint, save_checkpoint


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Flip, cut, insert, repeat or overwrite a few bytes."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0 if data:
                data[place % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                del data[place : place + chance.randint(1, 64)]
            case 2:
                data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 16)))
            case 3:
                data[place:place] = data[place : place + chance.randint(1, 64)]
            case _:
                data[place : place + 8] = b"\xff" * 8
    return bytes(data)


def fuzz_checkpoints(folder: Path, rounds: int) -> None:
    chance = random.Random(0)
    tensors = {f"t{n}": torch.randn(3, n + 1) for n in range(6)}
    path = save_checkpoint(folder, Checkpoint(5, tensors, {"progress": {"step": 5}, "list": [1, None, "x"]}))
    pristine = {file.name: file.read_bytes() for file in path.iterdir()}
    refused = 0
    for _ in range(rounds):
        name = chance.choice(sorted(pristine))
        (path / name).write_bytes(mutate(pristine[name], chance))
        try:
            found = load_checkpoint(path)
        except DamagedCheckpoint:
            refused += 1
        else:
            # Only what does not matter may have changed: white space in the manifest, say.
            assert found.step == 5 or (path / name).name == "manifest.json"
            assert all(torch.equal(tensor, found.tensors[key]) for key, tensor in tensors.items())
            assert found.state == {"progress": {"step": 5}, "list": [1, None, "x"]}
        (path / name).write_bytes(pristine[name])
    assert refused > 0.9 * rounds
    shutil.rmtree(path)


def fuzz_configs(folder: Path, rounds: int) -> None:
    chance = random.Random(1)
    pristine = yaml.safe_dump(load_recipe("lab_trc2").model_dump(mode="json")).encode()
    path = folder / "recipe.yaml"
    refused = 0
    sentences: list[str] = []
    for _ in range(rounds):
        path.write_bytes(mutate(pristine, chance))
        try:
            config = load_recipe(str(path))
        except UserError as error:
            refused += 1
            sentences.append(str(error))
        else:
            assert isinstance(config, RunConfig)
    assert refused > 0.3 * rounds
    assert not any("\n" in sentence for sentence in sentences)


def test_mutated_checkpoints_are_never_loaded(tmp_path: Path) -> None:
    fuzz_checkpoints(tmp_path, 1500)


def test_mutated_configs_give_a_sentence_or_a_config(tmp_path: Path) -> None:
    fuzz_configs(tmp_path, 200)


@pytest.mark.slow
def test_many_more_of_both(tmp_path: Path) -> None:
    fuzz_checkpoints(tmp_path, 20_000)
    fuzz_configs(tmp_path, 4_000)
