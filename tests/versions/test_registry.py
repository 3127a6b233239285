"""A versions folder: whole entries, one table, and no half state whenever the process dies."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.command import trc2
from tests.small_disk import SmallDisk
from tests.versions.conftest import add, flip, refuse
from trc2.errors import UserError
from trc2.recall.store import store_path
from trc2.runs.folder import RunFolder
from trc2.runs.lock import lock_folder
from trc2.system.failpoints import GOING_BACK, PROMOTING
from trc2.verify.kill_runner import run_in_child
from trc2.versions import registry, table
from trc2.versions.entry import Version
from trc2.versions.registry import Versions, is_versions

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def test_a_version_is_whole_in_itself(versions: Versions, attempt: Path) -> None:
    first = versions.accepted()
    assert first.name == f"0001-{first.content[:12]}"
    assert (first.model / "model.safetensors").is_file()
    assert set(first.held_out) == {"fruit", "tools"}
    second = versions.promote(attempt, reason="week 2")
    assert versions.accepted().name == second.name
    assert (second.parent, second.replaced, second.reason) == (first.name, first.name, "week 2")
    assert second.tasks == ("colours",)
    assert set(second.held_out) == {"colours", "fruit", "tools"}
    assert second.verdict is not None
    assert set(second.verdict["tasks"]) == {"fruit", "tools"}
    assert not attempt.exists()  # the version holds it
    assert [event.kind for event in versions.events()] == ["promote", "promote"]
    assert second.run is not None
    assert RunFolder(second.run).newest_checkpoint(pytest.fail) is not None


def test_going_back_is_one_line_in_the_table(versions: Versions, attempt: Path) -> None:
    add(versions, attempt, 2)
    first, second, third = [version.name for version in versions.all()]
    assert versions.rollback(reason="bad answers").name == second
    assert versions.rollback().name == first
    with pytest.raises(UserError, match="is the first version"):
        versions.rollback()
    assert versions.rollback("3").name == third
    with pytest.raises(UserError, match="has no version '0009-x': "):
        versions.rollback("0009-x")
    assert [event.kind for event in versions.events()] == ["promote"] * 3 + ["rollback"] * 3
    assert versions.events()[3].reason == "bad answers"


def test_a_version_that_is_held_waits_until_a_person_moves_to_it(versions: Versions, attempt: Path) -> None:
    first = versions.accepted()
    held = versions.promote(attempt, hold=True)
    assert (held.is_held, held.replaced, first.is_held) == (True, first.name, False)
    assert versions.accepted().name == first.name
    assert versions.promote(attempt, hold=True).name == held.name  # after a kill
    assert versions.rollback(held.name).is_held is False
    assert versions.accepted().name == held.name
    assert versions.rollback().name == first.name
    assert [event.kind for event in versions.events()] == ["promote", "hold", "rollback", "rollback"]
    with pytest.raises(UserError, match="leave hold out"):
        versions.promote(attempt, first=True, hold=True)


def test_a_version_that_waits_is_stale_once_another_one_is_accepted(versions: Versions, attempt: Path) -> None:
    first, late = versions.accepted(), shutil.copytree(attempt, attempt.with_name("late"))
    held = versions.promote(attempt, hold=True)
    assert [one.name for one in versions.waiting()] == [held.name]
    versions.promote(late, anyway=True)
    assert versions.waiting() == []
    with pytest.raises(UserError, match=f"{held.name} waits to replace {first.name}, but .* would be lost"):
        versions.rollback(held.name)
    versions.rollback(first.name)
    assert [one.name for one in versions.waiting()] == [held.name]
    assert versions.rollback(held.name).name == held.name


def test_versions_that_wait_are_kept_besides_those_that_pruning_counts(versions: Versions, attempt: Path) -> None:
    copies = [shutil.copytree(attempt, attempt.with_name(f"copy-{number}")) for number in range(4)]
    held = [versions.promote(copy, hold=True).name for copy in copies]
    versions.prune(keep_checkpoints=1, keep_models=1)
    assert [one.name for one in versions.all() if one.has_model] == [versions.accepted().name, *held[1:]]
    assert [one.name for one in versions.waiting()] == held[1:]
    assert all(one.run is not None for one in versions.waiting())


def test_a_damaged_description_hides_no_other_version(versions: Versions, attempt: Path) -> None:
    add(versions, attempt, 2)
    first, second, third = (version.name for version in versions.all())
    flip(versions.folder / first / "version.json")
    damaged, *others = versions.all()
    assert (damaged.name, damaged.number, damaged.has_model, damaged.run) == (first, 1, True, None)
    assert "its checksum differs" in damaged.problem
    assert [(one.name, one.problem) for one in others] == [(second, ""), (third, "")]
    with pytest.raises(UserError, match="its checksum differs"):
        damaged.check()
    assert versions.rollback().name == second
    with pytest.raises(UserError, match="its checksum differs"):
        versions.rollback()
    assert versions.prune(keep_models=1)
    assert (versions.folder / first / "model").is_dir()  # what is not known is not removed
    flip(versions.folder / second / "version.json")
    assert versions.accepted_name() == second
    assert [bool(one.problem) for one in versions.all()] == [True, True, False]


def test_a_run_that_was_refused_or_has_another_parent_is_not_promoted(
    versions: Versions, attempt: Path, trained: Path
) -> None:
    refused = refuse(attempt)
    with pytest.raises(UserError, match="was refused by its acceptance check"):
        versions.promote(refused)
    late = shutil.copytree(attempt, attempt.with_name("late"))
    versions.promote(attempt)
    with pytest.raises(UserError, match="is accepted now, and what that one learned would be lost"):
        versions.promote(late)
    with pytest.raises(UserError, match="no acceptance check compared it"):
        versions.promote(trained)
    assert refused.exists()
    assert versions.promote(refused, anyway=True, reason="for a test").number == 3
    with pytest.raises(UserError, match="leave --first out"):
        versions.promote(trained, first=True)


def test_names_are_never_used_again(versions: Versions, attempt: Path) -> None:
    assert versions.next_attempt(["colours"]).name == "0002-colours-2"
    versions.promote(attempt)
    versions.rollback()
    assert versions.next_attempt(["colours"]).name == "0003-colours"


@pytest.mark.parametrize("name", ["model/model.safetensors", "run/metrics.jsonl", "version.json"])
def test_a_flipped_bit_is_one_sentence(versions: Versions, name: str) -> None:
    flip(versions.accepted().folder / name)
    with pytest.raises(UserError, match="is not what was written, its checksum differs"):
        versions.accepted().check()


@pytest.mark.parametrize("name", ["model/model-2.safetensors", "run/held_out/x.jsonl", "run/checkpoints/step_9/x"])
def test_a_file_that_was_added_is_one_sentence(versions: Versions, name: str) -> None:
    path = versions.accepted().folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    with pytest.raises(UserError, match="was added to the version"):
        versions.accepted().check()
    path.unlink()
    (versions.accepted().folder / "run" / "summary.md").write_text("written later by `trc2 report`")
    versions.accepted().check()


def test_a_description_is_read_again_only_if_it_changed(versions: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    first = versions.all()
    reads: list[Path] = []
    plain = registry.read_version

    def read(folder: Path, manifest: str) -> Version:
        reads.append(folder)
        return plain(folder, manifest)

    monkeypatch.setattr(registry, "read_version", read)
    assert versions.all() == first
    assert not reads
    description = first[0].folder / "version.json"
    os.utime(description, ns=(1, 1))
    assert versions.all() == first
    assert reads == [first[0].folder]


def test_the_lines_of_the_table_are_hashed_once(
    versions: Versions, attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(versions, attempt, 2)
    count = len(versions.events())
    hashed: list[object] = []
    plain = table.digest

    def digest(content: object) -> str:
        hashed.append(content)
        return plain(content)

    monkeypatch.setattr(table, "digest", digest)
    versions.rollback()
    assert len(hashed) == 1  # the new line
    versions.rollback("3")
    assert len(hashed) == 1 + (count + 1) + 1  # the changed table, and the new line


def test_an_empty_table_is_damaged(versions: Versions, attempt: Path) -> None:
    versions.table.write_bytes(b"")
    with pytest.raises(UserError, match="it is empty"):
        versions.events()
    with pytest.raises(UserError, match="it is empty"):
        versions.promote(attempt)
    assert len(list(versions.folder.glob("0*"))) == 1


def test_every_flipped_bit_of_the_table_is_found(versions: Versions) -> None:
    content = versions.table.read_bytes()
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 7)
        versions.table.write_bytes(bytes(changed))
        with pytest.raises(UserError):
            versions.events()
    versions.table.write_bytes(content)
    versions.events()


@pytest.mark.parametrize("point", [*PROMOTING, "export rename"])
def test_killed_while_promoting_nothing_half_is_visible(versions: Versions, attempt: Path, point: str) -> None:
    first = versions.accepted().name
    assert run_in_child(versions.promote, attempt, f"{point}:1") < 0
    assert len(versions.all()) == (2 if point == "version event" else 1)
    versions.accepted().check()
    second = versions.promote(attempt)  # the same command again
    assert (second.number, second.replaced, len(versions.all())) == (2, first, 2)
    assert sorted(path.name for path in versions.folder.iterdir() if path.name.startswith((".", "0"))) == [
        first,
        second.name,
    ]
    assert versions.attempts() == []


def test_killed_while_the_rest_of_a_killed_promote_is_removed(versions: Versions, attempt: Path) -> None:
    first = versions.accepted().name
    assert run_in_child(versions.promote, attempt, "version rename:1") < 0

    def die_after_the_description(folder: Path) -> None:
        remove = shutil.rmtree

        def remove_some(path: Path, **options: bool) -> None:
            if (path / "version.json").exists():  # unfinished copies have none
                (path / "version.json").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            remove(path, **options)

        shutil.rmtree = remove_some  # type: ignore[assignment]
        versions.promote(folder)

    assert run_in_child(die_after_the_description, attempt) < 0
    assert [version.name for version in versions.all()] == [first]
    second = versions.promote(attempt)
    assert sorted(path.name for path in versions.folder.iterdir() if path.name.startswith((".", "0"))) == [
        first,
        second.name,
    ]


def test_a_version_that_an_older_table_does_not_name_stays(versions: Versions, attempt: Path) -> None:
    older, mine = versions.table.read_bytes(), shutil.copytree(attempt, versions.folder.with_name("mine"))
    second = versions.promote(attempt)
    versions.table.write_bytes(older)  # the attempt that it was made from is gone, so this is no killed command
    for command in (versions.prune, versions.rollback, lambda: versions.promote(mine, anyway=True)):
        with pytest.raises(UserError, match=f"does not name {second.name} beside it: restore a newer copy"):
            command()
    assert (second.folder / "model").is_dir()


def test_a_version_that_an_older_table_does_not_name_stays_also_if_its_attempt_has_a_namesake(
    versions: Versions, attempt: Path, trained: Path
) -> None:
    older = versions.table.read_bytes()
    second = versions.promote(attempt)
    versions.table.write_bytes(older)
    assert versions.next_attempt(["colours"]) == attempt  # the next week gets the same name
    shutil.copytree(trained, attempt)
    for command in (functools.partial(versions.promote, attempt, anyway=True), versions.rollback, versions.prune):
        with pytest.raises(UserError, match=f"does not name {second.name} .* or move that folder elsewhere"):
            command()
    assert (second.folder / "model").is_dir()


def test_a_version_that_the_table_does_not_name_is_replaced_only_by_the_same_one(
    versions: Versions, attempt: Path
) -> None:
    older, mine = versions.table.read_bytes(), shutil.copytree(attempt, versions.folder.with_name("mine"))
    second = versions.promote(mine, anyway=True)
    versions.table.write_bytes(older)  # as if the command had been killed before its last step: `mine` is still there
    with pytest.raises(UserError, match="is the first version"):
        versions.rollback()
    assert versions.prune() == []
    with pytest.raises(UserError, match="go on using its parent"):
        versions.promote(refuse(attempt))
    with pytest.raises(UserError, match=f"does not name {second.name} .* or move that folder elsewhere"):
        versions.promote(versions.accepted().model, anyway=True)
    assert (second.folder / "model").is_dir()
    assert versions.promote(mine, anyway=True).name == second.name


def test_another_week_replaces_what_a_killed_promote_of_an_attempt_left(versions: Versions, attempt: Path) -> None:
    first = versions.accepted()
    assert run_in_child(versions.promote, attempt, "version rename:1") < 0
    (unknown,) = (path for path in versions.folder.glob("0*") if path.name != first.name)
    other = versions.promote(first.model, anyway=True)
    assert not unknown.exists()
    assert [version.name for version in versions.all()] == [first.name, other.name]


def test_a_killed_promote_of_a_model_that_is_gone_since_leaves_a_way_out(versions: Versions, attempt: Path) -> None:
    model = shutil.copytree(attempt, versions.folder.with_name("mine"))
    first = versions.accepted().name
    promote = functools.partial(versions.promote, anyway=True)
    assert run_in_child(promote, model, "version rename:1") < 0
    (unknown,) = (path for path in versions.folder.glob("0*") if path.name != first)
    shutil.rmtree(model)
    with pytest.raises(UserError, match=f"does not name {unknown.name} .* or move that folder elsewhere"):
        versions.prune()
    moved = unknown.rename(versions.folder.with_name("moved"))
    assert versions.prune() == []
    assert versions.promote(moved / "model", anyway=True).name == unknown.name  # equal models have equal hashes


@pytest.mark.parametrize("point", GOING_BACK)
def test_killed_while_going_back_one_of_both_is_accepted(versions: Versions, attempt: Path, point: str) -> None:
    first = versions.accepted().name
    second = versions.promote(attempt).name
    assert run_in_child(lambda _: versions.rollback(), versions.folder, f"{point}:1") < 0
    assert versions.accepted().name == (second if point == "rollback" else first)


@pytest.mark.parametrize("room", [0, 100, 400])
def test_on_a_full_disk_the_accepted_version_stays_and_the_same_command_works_later(
    versions: Versions, attempt: Path, disk: SmallDisk, room: int
) -> None:
    with disk.full(200_000):
        shutil.move(versions.folder, disk.folder / "versions")
    folder = Versions(disk.folder / "versions")
    mine = folder.attempts()[0]
    first, before = folder.accepted(), folder.table.read_bytes()
    for command in (["promote", str(folder.folder), str(mine)], ["rollback", str(folder.folder), "--to", "1"]):
        with disk.full(disk.used() + room):
            done = trc2(*command)
        if command[0] == "promote" or (disk.is_mounted and room == 0):  # a line of the table needs little room
            assert done.code == 2, done
            assert done.err.startswith("error: ")
            assert any(word in done.err for word in ("No space left", "File too large"))
            assert folder.table.read_bytes() == before
            assert folder.accepted().check().name == first.name
            assert [version.name for version in folder.all()] == [first.name]
    assert trc2("promote", str(folder.folder), str(mine)).code == 0
    assert folder.accepted().check().number == 2
    assert not list(folder.folder.glob(".*"))


def test_two_processes_do_not_promote_at_once(versions: Versions, attempt: Path) -> None:
    with lock_folder(versions.folder), pytest.raises(UserError, match="is in use by process"):
        versions.promote(attempt)


def test_pruning_never_takes_what_a_rollback_needs(versions: Versions, attempt: Path) -> None:
    add(versions, attempt, 4)
    assert [one.version[:4] for one in versions.prune()] == ["0002", "0001"]
    assert [version.run is not None for version in versions.all()] == [False, False, True, True, True]
    for version in versions.all():
        version.check()
        assert (version.folder / "run" / "checkpoints").exists() == (version.run is not None)
    assert versions.prune() == []
    assert run_in_child(lambda _: versions.prune(keep_models=4), versions.folder, "prune:1") < 0
    assert not versions.get("1").has_model
    versions.prune(keep_models=4)
    assert [path.name for path in (versions.folder / versions.all()[0].name).iterdir()] == ["version.json"]
    with pytest.raises(UserError, match="were pruned"):
        versions.rollback("1")
    versions.rollback("2")  # its model is there
    with pytest.raises(UserError, match="keep at least 1"):
        versions.prune(0)


@pytest.mark.parametrize("name", ["lock.owner", "versions.jsonl"])
def test_a_first_version_may_be_promoted_again_after_a_kill_while_a_file_was_written(
    name: str, trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "versions"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / f".{name}.0123abcd.partial").touch()
    Versions(folder).promote(trained, first=True)
    assert not list(folder.glob(".*"))


def test_a_first_version_needs_a_new_folder_and_a_finished_run(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--first"):
        Versions(tmp_path / "versions").promote(trained)
    assert not (tmp_path / "versions").exists()
    with pytest.raises(UserError, match="holds other files"):
        Versions(trained).promote(trained, first=True)
    with pytest.raises(UserError, match="neither a finished run nor a saved model"):
        Versions(tmp_path / "new").promote(tmp_path, first=True)
    assert not is_versions(tmp_path / "new")
    last = max((trained / "checkpoints").iterdir())
    shutil.rmtree(last)
    with pytest.raises(UserError, match="has not ended"):
        Versions(tmp_path / "new").promote(trained, first=True)
    shutil.rmtree(trained / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint any more, because old attempts are pruned"):
        Versions(tmp_path / "new").promote(trained, first=True)


def test_a_run_without_an_end_is_not_a_version(trained: Path, tmp_path: Path) -> None:
    log = trained / "metrics.jsonl"
    lines = [line for line in log.read_text().splitlines(keepends=True) if '"kind": "end"' not in line]
    log.write_text("".join(lines))  # killed after its last checkpoint, before its test scores
    with pytest.raises(UserError, match="has not ended"):
        Versions(tmp_path / "new").promote(trained, first=True)


def test_a_saved_model_can_be_first(versions: Versions, tmp_path: Path) -> None:
    model = shutil.copytree(versions.accepted().model, tmp_path / "model")
    other = Versions(tmp_path / "other")
    version = other.promote(Path(model), first=True)
    assert version.run is None
    assert version.content == versions.accepted().content  # equal models have equal hashes
    assert RunFolder(version.model).is_run is False


def test_a_model_that_was_taught_documents_is_promoted_with_a_warning(versions: Versions, tmp_path: Path) -> None:
    model = Path(shutil.copytree(versions.accepted().model, tmp_path / "model"))
    store = store_path(model)
    store.parent.mkdir()
    store.touch()
    warnings: list[str] = []
    version = Versions(tmp_path / "other").promote(model, first=True, warn=warnings.append)
    assert not store_path(version.model).exists()
    assert len(warnings) == 1
    assert "was taught are not part of the version" in warnings[0]
