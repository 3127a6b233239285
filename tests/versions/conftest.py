from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import QUIET, write_task
from trc2.config import TaskConfig
from trc2.continuing.acceptance import judge_child
from trc2.continuing.continue_run import continue_run
from trc2.versions.registry import Versions

WORDS = {"colours": "red blue green grey", "fruit": "quince lemon cherry mango"}
ATTEMPT = "0002-colours"


def teach(versions: Versions, data: Path, name: str, *, limit: float = 1e6) -> Path:
    """Teach the accepted version one task in an attempt, judge it, and return the attempt."""
    write_task(data, name, WORDS[name].split(), documents=20)
    task = TaskConfig(name=name, folder=str(data / name), steps=2)
    parent = versions.accepted().run
    assert parent is not None
    child = versions.next_attempt([name])
    continue_run(parent, child, task, QUIET, limit=limit)
    judge_child(child, pytest.fail, parent)
    return child


@pytest.fixture(scope="session")
def taught_once(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A versions folder with one version, and a finished and accepted attempt to teach it colours."""
    home = tmp_path_factory.mktemp("versions")
    versions = Versions(home / "versions")
    versions.promote(trained_once, first=True)
    assert teach(versions, home / "weeks", "colours").name == ATTEMPT
    return versions.folder


@pytest.fixture
def versions(taught_once: Path, tmp_path: Path) -> Versions:
    """The same folder, of the test's own."""
    return Versions(shutil.copytree(taught_once, tmp_path / "versions"))


@pytest.fixture
def attempt(versions: Versions) -> Path:
    """The finished attempt in it."""
    return versions.attempts()[0]


def refuse(attempt: Path) -> Path:
    """A copy of an attempt that its acceptance check refused."""
    copy = attempt.with_name(f"{attempt.name}-refused")
    shutil.copytree(attempt, copy)
    for name in ("acceptance.json", "parent.json"):
        content = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**content, "limit": -1.0}))
    return copy


def add(versions: Versions, attempt: Path, count: int) -> None:
    """More versions, copies of one attempt."""
    copies = [shutil.copytree(attempt, attempt.with_name(f"copy-{number}")) for number in range(count)]
    for copy in copies:
        versions.promote(copy, anyway=True)


def flip(path: Path) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(content))
