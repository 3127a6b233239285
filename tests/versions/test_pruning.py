"""Pruning: what a year of weeks leaves behind is bounded, and text that a run needs stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.versions.conftest import add, refuse, teach
from trc2.continuing.acceptance import judge_child
from trc2.runs.folder import RunFolder
from trc2.stream.prepare import prepare_stream
from trc2.versions import registry
from trc2.versions.entry import Version
from trc2.versions.pruning import remove_texts
from trc2.versions.registry import Versions


def packed(run: Path) -> dict[str, Path]:
    """Where the cache has the texts of a run. Missing ones are packed."""
    stream = RunFolder(run).config().stream
    assert stream is not None
    prepared = prepare_stream(stream, tokenizer=RunFolder(run).tokenizer(), known=RunFolder(run).data()["tasks"])
    return {name: task.folder for name, task in prepared.tasks.items()}


def test_packed_text_is_removed_unless_another_run_has_it(attempt: Path) -> None:
    folders = packed(attempt)
    copies = [shutil.copytree(folder, folder.with_name(f"{name}-0")) for name, folder in folders.items()]
    remove_texts([attempt], [attempt])
    assert all(folder.is_dir() for folder in folders.values())
    damaged = attempt.with_name("damaged")
    shutil.copytree(attempt, damaged)
    (damaged / "data.json").write_text("{")
    remove_texts([attempt], [damaged])
    assert not any(folder.exists() for folder in (*folders.values(), *copies))
    judge_child(attempt, pytest.fail, again=True)  # packed again
    assert all(folder.is_dir() for folder in folders.values())


def test_a_version_that_loses_its_checkpoint_leaves_no_text_in_the_cache(
    versions: Versions, attempt: Path, tmp_path: Path
) -> None:
    first = packed(attempt)
    second = versions.promote(attempt)
    third = versions.promote(teach(versions, tmp_path, "fruit"))
    assert second.run is not None
    assert third.run is not None
    last = packed(third.run)
    versions.prune(keep_checkpoints=1)
    assert not first["colours"].exists()
    assert all(folder.is_dir() for folder in last.values())


def test_attempts_that_cannot_become_versions_lose_their_checkpoints(versions: Versions, attempt: Path) -> None:
    overtaken = [shutil.copytree(attempt, attempt.with_name(f"0002-colours-{number}")) for number in (2, 3, 10)]
    refused = refuse(attempt)
    refused = refused.rename(refused.with_name("0003-colours"))
    own = shutil.copytree(attempt, attempt.with_name("mine"))
    versions.prune()
    assert all(RunFolder(path).checkpoints.is_dir() for path in (*overtaken, refused, own))
    versions.promote(attempt)  # they would undo what this one learned
    pruned = versions.prune(keep_checkpoints=2)
    assert [one.version for one in pruned] == ["attempts/0002-colours-2", "attempts/0002-colours-3"]
    assert [RunFolder(path).checkpoints.is_dir() for path in (*overtaken, refused, own)] == [False] * 2 + [True] * 3
    assert not RunFolder(overtaken[0]).held_out.exists()
    assert json.loads((overtaken[0] / "acceptance.json").read_text())["passed"]
    assert versions.prune(keep_checkpoints=2) == []


def test_a_command_does_not_read_versions_that_were_pruned(
    versions: Versions, attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = shutil.copytree(attempt, attempt.with_name("last"))
    add(versions, attempt, 3)
    versions.prune(keep_models=2)
    reads: set[str] = set()
    plain = registry.read_version

    def read(folder: Path, manifest: str) -> Version:
        reads.add(folder.name[:4])
        return plain(folder, manifest)

    monkeypatch.setattr(registry, "read_version", read)
    again = Versions(versions.folder)
    again.promote(last, anyway=True)
    again.prune(keep_models=2)
    assert reads == {"0003", "0004", "0005"}
    assert len(again.all()) == 5
