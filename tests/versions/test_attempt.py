"""What the next attempt of a versions folder is taught and judged on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import write_task
from tests.versions.conftest import add
from trc2.config import TaskConfig
from trc2.continuing.request import ContinuationRequest
from trc2.errors import UserError
from trc2.runs.folder import RunFolder
from trc2.versions.attempt import plan_attempt
from trc2.versions.registry import Versions


def task(home: Path, name: str) -> TaskConfig:
    write_task(home, name, ["iron", "tin", "zinc", "lead"], documents=20)
    return TaskConfig(name=name, folder=str(home / name), steps=2)


def test_a_version_without_checkpoint_is_judged_on_its_past_besides_what_is_kept(
    versions: Versions, attempt: Path, tmp_path: Path
) -> None:
    add(versions, attempt, 3)
    versions.prune()
    first = versions.rollback("1")
    assert first.run is None
    kept = (task(tmp_path, "extra"), task(tmp_path, "tools"))
    planned = plan_attempt(versions, ContinuationRequest((task(tmp_path, "fruit"),), keep=kept))
    assert [one.name for one in planned.keep] == ["fruit-earlier", "tools", "extra"]
    held_out = [str(first.held_out[name].resolve()) for name in ("fruit", "tools")]
    assert [one.folder for one in planned.keep] == [*held_out, str(tmp_path / "extra")]
    generated = ContinuationRequest((task(tmp_path, "metals"),), keep=kept, generated="tools")
    assert [one.name for one in plan_attempt(versions, generated).keep] == ["fruit", "extra", "tools"]


def test_a_week_that_later_weeks_could_not_be_judged_on_is_refused(versions: Versions, tmp_path: Path) -> None:
    for name in ("new", "fruit"):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / f"{number}.txt").write_text(f"{name} {number}: iron tin zinc lead " * 20)
    small, known = (TaskConfig(name=name, folder=str(tmp_path / name), steps=2) for name in ("new", "fruit"))
    with pytest.raises(UserError, match="'new' leaves 1 held-out document on which later weeks"):
        plan_attempt(versions, ContinuationRequest((small,)))
    plan_attempt(versions, ContinuationRequest((known,)))  # the documents of earlier weeks are there, too
    (tmp_path / "new" / "validation").mkdir()
    for number in range(2):
        (tmp_path / "new" / "validation" / f"{number}.txt").write_text(f"validation {number}: tin zinc lead " * 20)
    plan_attempt(versions, ContinuationRequest((small,)))


def test_nothing_is_planned_where_its_version_could_not_be_added(
    versions: Versions, attempt: Path, tmp_path: Path
) -> None:
    request = ContinuationRequest((task(tmp_path, "metals"),))
    older, mine = versions.table.read_bytes(), shutil.copytree(attempt, tmp_path / "mine")
    second = versions.promote(mine, anyway=True)
    versions.table.write_bytes(older)
    with pytest.raises(UserError, match=f"does not name {second.name} beside it"):
        plan_attempt(versions, request)
    shutil.rmtree(second.folder)
    assert versions.promote(attempt).name
    versions.table.write_bytes(older)  # its attempt is gone
    with pytest.raises(UserError, match="does not name"):
        plan_attempt(versions, request)


def test_text_that_a_waiting_version_learned_is_not_planned_again_while_it_waits(
    versions: Versions, attempt: Path
) -> None:
    stream = RunFolder(attempt).config().stream
    assert stream is not None
    late = shutil.copytree(attempt, attempt.with_name("late"))
    request, first = ContinuationRequest((stream.tasks[-1],), limit=1e6), versions.accepted()
    held = versions.promote(attempt, hold=True)
    assert plan_attempt(versions, request).taught_by == held.name
    later = versions.promote(late, anyway=True)
    assert plan_attempt(versions, request).taught_by == later.name
    versions.rollback(first.name)
    assert plan_attempt(versions, request).taught_by == held.name  # a person may still accept it
    versions.rollback(held.name)
    assert plan_attempt(versions, request).taught_by == held.name
