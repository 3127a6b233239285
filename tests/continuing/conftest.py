from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import write_task
from trc2.config import TaskConfig


@pytest.fixture
def colours(tmp_path: Path) -> TaskConfig:
    """A new task of four steps."""
    write_task(tmp_path, "colours", ["red", "blue", "green", "grey"])
    return TaskConfig(name="colours", folder=str(tmp_path / "colours"), steps=4)
