from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trc2.runs.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    list_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    step_of,
)


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step, {"a": torch.arange(5), "b": torch.randn(2, 3)}, {"x": [1, 2.5], "y": None})


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    saved = checkpoint(7)
    found = load_checkpoint(save_checkpoint(tmp_path, saved))
    assert found.step == 7
    assert found.state == saved.state
    assert all(torch.equal(tensor, found.tensors[name]) for name, tensor in saved.tensors.items())


def test_old_ones_go_boundaries_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        save_checkpoint(tmp_path, checkpoint(step))
    prune_checkpoints(tmp_path, keep_last=2, keep_steps={2})
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [2, 4, 5]


def test_what_others_put_beside_checkpoints_is_left_alone(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, checkpoint(step))
    (tmp_path / "step-00000001.bak").mkdir()
    (tmp_path / "step-notes").mkdir()
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [1, 2]
    prune_checkpoints(tmp_path, keep_last=1, keep_steps=set())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001.bak", "step-00000002", "step-notes"]


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".step-00000007.partial").mkdir()
    (tmp_path / ".step-00000005.abcd.old").mkdir()
    save_checkpoint(tmp_path, checkpoint(8))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000008"]


@pytest.mark.parametrize(
    ("change", "message"),
    [*(({"step": step}, "says that it is of step") for step in (4, None, "3", 3.5)), ({"schema": 99}, "schema 99")],
)
def test_a_manifest_of_another_step_or_a_newer_schema_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = save_checkpoint(tmp_path, checkpoint(3))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with pytest.raises(DamagedCheckpoint, match=message):
        load_checkpoint(path)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize(
    "damage", [Path.unlink, flip, lambda p: p.write_bytes(b""), lambda p: p.write_bytes(p.read_bytes()[:-3])]
)
def test_a_damaged_one_is_never_loaded(tmp_path: Path, name: str, damage: object) -> None:
    path = save_checkpoint(tmp_path, checkpoint(3))
    damage(path / name)
    with pytest.raises(DamagedCheckpoint):
        load_checkpoint(path)
