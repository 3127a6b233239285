"""A versions folder: accepted models over time, with `promote`, `rollback` and pruning by a rule.

VERSIONS/versions.jsonl          the table of events. The newest promote or rollback names the accepted version
VERSIONS/0007-3fa9c1d2e0b4/      a version: version.json, model/ and, unless pruned or a saved model, run/
VERSIONS/attempts/0008-news/     a run that may become the next version
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from trc2.backbones.saved import CONFIG_FILE
from trc2.continuing.acceptance import read_verdict, why_not_accepted
from trc2.errors import UserError, did_you_mean
from trc2.runs.folder import VERSIONS_TABLE, RunFolder, Warn
from trc2.runs.lock import LOCK, OWNER, is_locked, lock_folder
from trc2.stream.cache import file_checksum
from trc2.system.failpoints import failpoint
from trc2.system.files import is_partial, sync_folder
from trc2.versions.copying import copy_source
from trc2.versions.entry import (
    CHECKPOINTS,
    DESCRIPTION,
    MODEL,
    RUN,
    Version,
    content_of,
    list_files,
    make_durable,
    name_of,
    protect,
    read_version,
    write_description,
)
from trc2.versions.pruning import Pruned, prune_run, remove_texts, spent_attempts
from trc2.versions.table import (
    MOVES,
    Event,
    Kind,
    accepted,
    add_event,
    check_reason,
    gone_names,
    next_number,
    now,
    read_events,
    version_names,
)

if TYPE_CHECKING:
    from trc2.versions.difference import Difference

TABLE, ATTEMPTS = VERSIONS_TABLE, "attempts"
NAME = re.compile(r"\d{4,}-[0-9a-f]{12}")
PARTIAL = ".partial-"
KEEP_CHECKPOINTS = 3  # the accepted version, and those that two rollbacks lead to


def is_versions(folder: Path) -> bool:
    """Whether a folder is a versions folder."""
    try:
        return (folder / TABLE).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


class Versions:
    """The versions in a folder. The table is read at every call, a description again only if its file changed.

    A command needs all descriptions several times, and their number grows by one a week.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.table = self.folder / TABLE
        self._read: dict[tuple[str, str, int, int], Version] = {}

    def __repr__(self) -> str:
        return f"Versions({str(self.folder)!r})"

    # ------------------------------------------------------------------------------------------------ reading

    def events(self) -> list[Event]:
        """The table, oldest event first."""
        if not is_versions(self.folder):
            raise UserError(
                f"{self.folder} is not a versions folder: make one by `trc2 promote {self.folder} RUN --first`."
            )
        return read_events(self.table)

    def all(self) -> list[Version]:
        """All versions, oldest first. One whose description is damaged has a `problem`, and must not hide others."""
        events, versions = self.events(), []
        for name in version_names(events):
            try:
                versions.append(self._version(events, name))
            except UserError as error:
                added = next(event for event in events if event.version == name and event.manifest)
                number, _, content = name.partition("-")
                known = Version(
                    self.folder / name, int(number), content, added.time, parent=None, replaced=None, source="",
                    tasks=(), verdict=None, scores={}, files={}, reason=added.reason, problem=str(error),
                )  # fmt: skip
                versions.append(self._with_events(known, events))
        return versions

    def accepted(self) -> Version:
        """The version in use."""
        name = self.accepted_name()
        return self._version(self.events(), name)

    def accepted_name(self) -> str:
        """The name of the version in use, which the table has also if the version is damaged."""
        name = accepted(self.events())
        if name is None:
            raise UserError(f"{self.folder} has no accepted version: add one by `trc2 promote {self.folder} RUN`.")
        return name

    def waiting(self) -> list[Version]:
        """The versions that wait until a person lets them replace the accepted one, oldest first."""
        events = self.events()
        current = accepted(events)
        return [one for one in self._present(events) if one.is_held and one.replaced == current]

    def get(self, name: str) -> Version:
        """A version by its name, or by its number if that is all of digits."""
        events = self.events()
        names = version_names(events)
        numbered = [one for one in names if name.isdecimal() and int(one.split("-")[0]) == int(name)]
        if name not in names and not numbered:
            raise UserError(f"{self.folder} has no version '{name}': {did_you_mean(name, names)}")
        return self._version(events, numbered[0] if numbered else name)

    def _present(self, events: Sequence[Event]) -> list[Version]:
        """The versions that have files. Pruning bounds their number, so a command does not read all of the past.

        Versions whose description is damaged are left out: they must not keep others from use.
        """
        gone, present = gone_names(events), []
        for name in version_names(events):
            with suppress(UserError):
                present += [self._version(events, name)] if name not in gone else []
        return present

    def _version(self, events: Sequence[Event], name: str) -> Version:
        added = next(event for event in events if event.version == name and event.manifest)
        description = self.folder / name / DESCRIPTION
        if not description.is_file():
            return read_version(self.folder / name, added.manifest)  # says what to do
        info = description.stat()
        key = (name, added.manifest, info.st_mtime_ns, info.st_size)
        if key not in self._read:
            self._read[key] = read_version(self.folder / name, added.manifest)
        return self._with_events(self._read[key], events)

    def _with_events(self, version: Version, events: Sequence[Event]) -> Version:
        """The version with what happened to it since it was added."""
        own = [event for event in events if event.version == version.name]
        removed = [event.removed for event in own if event.kind == "prune"]
        is_held = not any(event.kind in MOVES for event in own)
        return replace(version, removed=removed[-1] if removed else "", is_held=is_held)

    # ------------------------------------------------------------------------------------------------ moving

    def promote(
        self,
        run: str | Path,
        *,
        first: bool = False,
        anyway: bool = False,
        hold: bool = False,
        reason: str = "",
        warn: Warn = lambda message: None,
    ) -> Version:
        """Add a finished run that passed its acceptance check, or a saved model, and make it the accepted version.

        `first` begins a versions folder with a run or model that has no verdict. `anyway` adds a run that was refused
        or not judged, or that does not go on from the accepted version. `hold` only adds it: `rollback` to its name
        makes it the accepted version. Calling it again with the same run is harmless.
        """
        source = Path(run)
        check_reason(reason)
        if first and hold:
            raise UserError("The first version has to be accepted: leave hold out.")
        if not is_versions(self.folder):
            if not first:
                self.events()  # says what to do
            _check_is_free(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(self.folder):
            events = read_events(self.table) if self.table.exists() else []
            self._remove_leftovers(events)
            origin = self._source_name(source)
            if origin.startswith(f"{ATTEMPTS}/") and (added := self._added(events, origin)):
                return added  # and the attempt is removed
            if first and events:
                raise UserError(f"{self.folder} has versions already: leave --first out.")
            earlier = self._version(events, accepted(events) or "") if events else None
            if is_locked(source):
                raise UserError(f"{source} is in use by another process: wait until that ends, and try again.")
            parent = self._check_source(source, earlier, first=first, anyway=anyway, events=events)
            kind: Kind = "hold" if hold else "promote"
            version = self._add(source, events, earlier, parent, kind, anyway=anyway or first, reason=reason, warn=warn)
            self._remove_promoted(version)
        return version

    def rollback(self, to: str | None = None, *, reason: str = "") -> Version:
        """Make another version the accepted one: by default the one that the accepted version replaced."""
        check_reason(reason)
        self.events()
        with lock_folder(self.folder):
            events = self.events()
            self._remove_leftovers(events)
            current = accepted(events)
            name = self.accepted().replaced if to is None else self.get(to).name
            if name is None:
                raise UserError(f"{current} is the first version of {self.folder}: there is none before it.")
            target = self._version(events, name).check()
            if target.is_held and target.replaced != current:
                raise UserError(
                    f"{name} waits to replace {target.replaced}, but {current} is accepted now, and what that one "
                    f"learned would be lost: go back to {target.replaced} first, or teach {self.folder} again."
                )
            failpoint("rollback")
            back = Event(len(events) + 1, "rollback", name, now(), reason)
            add_event(self.table, back)
            failpoint("rolled back")
        return self._version([*events, back], name)

    def prune(self, keep_checkpoints: int = KEEP_CHECKPOINTS, keep_models: int | None = None) -> list[Pruned]:
        """Remove checkpoints of old versions, and with `keep_models` all files of the oldest. Returns what was removed.

        The accepted version and those that rollbacks from it lead to come first in both counts, then the newest.
        """
        for name, value in (("keep_checkpoints", keep_checkpoints), ("keep_models", keep_models)):
            if value is not None and value < 1:
                raise UserError(f"{name}={value} would remove the accepted version: keep at least 1.")
        pruned: list[Pruned] = []
        lost: list[Path] = []  # runs that can be neither continued nor judged any more
        self.events()
        with lock_folder(self.folder):
            events = self.events()
            self._remove_leftovers(events)
            for number, version in enumerate(self._by_need(events)):
                removed = "checkpoint" if number >= keep_checkpoints and version.run is not None else ""
                if keep_models is not None and number >= keep_models and version.has_model:
                    removed = "all"
                if not removed:
                    continue
                events.append(Event(len(events) + 1, "prune", version.name, now(), removed=removed))
                add_event(self.table, events[-1])
                failpoint("prune")
                pruned.append(Pruned(version.name, removed, version.size - self.get(version.name).size))
                if version.run is not None and version.source.startswith(f"{ATTEMPTS}/"):
                    lost.append(version.run)
            attempts = self.attempts()
            spent = spent_attempts(attempts, next_number(events), keep_checkpoints)
            kept = [version.run for version in self._present(events) if version.run is not None]
            remove_texts([*lost, *spent], [*kept, *(path for path in attempts if path not in spent)])
            self._remove_leftovers(events)
            return [*pruned, *(Pruned(f"{ATTEMPTS}/{path.name}", "checkpoint", prune_run(path)) for path in spent)]

    def _by_need(self, events: Sequence[Event]) -> list[Version]:
        """What may be pruned: the accepted version and those that two rollbacks lead to, then from the newest on.

        The newest versions that wait to replace the accepted one are not among them: they are kept besides.
        """
        name = accepted(events)
        versions = {version.name: version for version in self._present(events)}
        for one in self.waiting()[-KEEP_CHECKPOINTS:]:
            del versions[one.name]
        needed: list[Version] = []
        while name in versions and len(needed) < KEEP_CHECKPOINTS:
            needed.append(versions.pop(name))
            name = needed[-1].replaced
        return [*needed, *reversed(versions.values())]

    def diff(self, first: str, second: str | None = None, *, warn: Warn = lambda message: None) -> Difference:
        """What a version, by default the accepted one, gained and lost against another. See `trc2 diff`."""
        from trc2.versions.difference import compare

        newer = self.accepted() if second is None else self.get(second)
        return compare(self.get(first).folder, newer.folder, warn=warn)

    # ------------------------------------------------------------------------------------------------ attempts

    def check_room(self) -> None:
        """Refuse, before anything is trained, a folder to which `promote` could not add a version."""
        for path in self._check_unknown(self.events()):
            if not self._is_of_attempt(path):
                raise self._unnamed(path)

    def attempts(self) -> list[Path]:
        """The runs that may become versions, or were refused."""
        home = self.folder / ATTEMPTS
        return sorted(path for path in home.iterdir() if RunFolder(path).is_run) if home.is_dir() else []

    def next_attempt(self, tasks: Sequence[str], is_taken: Callable[[Path], bool] = Path.exists) -> Path:
        """A folder for the next run, named by the number of the version it may become and its tasks."""
        first = f"{next_number(self.events()):04d}-{'+'.join(tasks)[:150]}"
        names = (first if attempt == 1 else f"{first}-{attempt}" for attempt in count(1))
        return next(path for path in (self.folder / ATTEMPTS / name for name in names) if not is_taken(path))

    def version_of(self, path: Path) -> str | None:
        """The name of the version to which a folder belongs. None if it lies elsewhere."""
        try:
            inside = path.resolve().relative_to(self.folder.resolve()).parts
        except ValueError:
            return None
        return inside[0] if inside and NAME.fullmatch(inside[0]) else None

    # ------------------------------------------------------------------------------------------------ adding

    def _check_source(
        self, source: Path, earlier: Version | None, *, first: bool, anyway: bool, events: Sequence[Event]
    ) -> str | None:
        """Reject a folder that must not become the accepted version. Returns the version that it goes on from."""
        run = RunFolder(source)
        if not run.is_run and not (source / CONFIG_FILE).is_file():
            raise UserError(f"{source} holds neither a finished run nor a saved model: name either.")
        lineage = run.lineage() if run.is_run else None
        if lineage is None:
            if not first and not anyway:
                raise UserError(
                    f"{source} does not go on from another run or model, so no acceptance check compared it with "
                    f"{'the accepted version' if earlier is None else earlier.name}: add it with --anyway."
                )
            return None
        step, parent = run.schedule().total_steps, None
        with suppress(UserError):
            parent = self.version_of(lineage.find(source))
        if anyway:
            return parent
        reason = why_not_accepted(run, step)
        if reason is not None:
            raise UserError(f"{source} {reason}: go on using its parent, or add it with --anyway.")
        verdict = read_verdict(run)
        if not first and (verdict is None or (verdict.limit, verdict.max_drift) == (None, None)):
            raise UserError(
                f"{source} was not judged by a limit: `trc2 check PARENT {source} --max-forgetting 0.05` judges it, or "
                "add it with --anyway."
            )
        if not any(version.source == self._source_name(source) for version in self._present(events)):
            self._check_parent(source, parent, earlier)  # else the command may come again, which its content tells
        return parent

    def _check_parent(self, source: Path, parent: str | None, earlier: Version | None) -> None:
        if earlier is not None and parent != earlier.name:
            raise UserError(
                f"{source} goes on from {parent or 'another model'}, but {earlier.name} is accepted now, and what that "
                f"one learned would be lost: teach {self.folder} again, or add it with --anyway."
            )

    def _added(self, events: Sequence[Event], origin: str, content: str | None = None) -> Version | None:
        """The version that was made from this source, if a command that was killed comes again."""
        for version in self._present(events):
            if version.source == origin and content in (version.content, None):
                if version.is_held or version.name == accepted(events):
                    return version
                raise UserError(
                    f"{origin} is {version.name} already, which is not accepted any more: `trc2 rollback "
                    f"{self.folder} --to {version.name}` makes it so."
                )
        return None

    def _add(
        self, source: Path, events: list[Event], earlier: Version | None, parent: str | None, kind: Kind, *,
        anyway: bool, reason: str, warn: Warn,
    ) -> Version:  # fmt: skip
        partial = self.folder / f"{PARTIAL}{secrets.token_hex(4)}"
        partial.mkdir()
        try:
            details = copy_source(source, partial, anyway=anyway, warn=warn)
            files = list_files(partial)
            content, origin = content_of(files), self._source_name(source)
            if added := self._added(events, origin, content):
                return added
            if not anyway:
                self._check_parent(source, parent, earlier)
            number = next_number(events)
            name, time = name_of(number, content), now()
            description = {
                "number": number, "content": content, "time": time, "parent": parent,
                "replaced": None if earlier is None else earlier.name, "source": origin, **details, "files": files,
                "reason": reason,
            }  # fmt: skip
            manifest = write_description(partial, description)
            make_durable(partial)
            protect(partial)
            failpoint("version")
            self._make_room(events, name)
            os.replace(partial, self.folder / name)
            sync_folder(self.folder)
            failpoint("version rename")
            add_event(self.table, Event(len(events) + 1, kind, name, time, reason, manifest))
            failpoint("version event")
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return self.get(name)

    def _source_name(self, source: Path) -> str:
        """Where a version came from: an attempt by its path below this folder, else a whole path."""
        home = (self.folder / ATTEMPTS).resolve()
        path = source.resolve()
        return f"{ATTEMPTS}/{path.name}" if path.parent == home else str(path)

    # ------------------------------------------------------------------------------------------------ cleaning up

    def _remove_leftovers(self, events: Sequence[Event]) -> None:
        """Remove what killed commands left: unfinished folders, and files that a `prune` event says are gone."""
        for path in self.folder.glob(f"{PARTIAL}*"):
            shutil.rmtree(path, ignore_errors=True)
        self._check_unknown(events)
        for name in gone_names(events):
            shutil.rmtree(self.folder / name / MODEL, ignore_errors=True)
            shutil.rmtree(self.folder / name / RUN, ignore_errors=True)
        for version in self._present(events):
            if version.removed:
                shutil.rmtree(version.folder / CHECKPOINTS, ignore_errors=True)
            self._remove_promoted(version)

    def _check_unknown(self, events: Sequence[Event]) -> list[Path]:
        """The version of a `promote` that was killed before its event. Others mean that the table is too old."""
        names, unknown = set(version_names(events)), []
        for path in self.folder.iterdir():
            if path.name in names or not NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
                continue
            if int(path.name.split("-")[0]) != next_number(events) or self._source_of(path) is None:
                raise self._unnamed(path)
            unknown.append(path)
        return unknown

    def _unnamed(self, version: Path) -> UserError:
        return UserError(
            f"{self.table} does not name {version.name} beside it: restore a newer copy of the table, or move "
            "that folder elsewhere if the command that added it was killed, and promote its model again."
        )

    def _make_room(self, events: Sequence[Event], name: str) -> None:
        """Remove the version of a killed `promote`, if that comes again or its attempt can still be promoted."""
        for path in self._check_unknown(events):
            if path.name != name and not self._is_of_attempt(path):
                raise self._unnamed(path)
            # Under another name first: half of a version would not be recognised if this process is killed as well.
            hidden = path.with_name(f"{PARTIAL}{secrets.token_hex(4)}")
            os.replace(path, hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def _is_of_attempt(self, version: Path) -> bool:
        """Whether the attempt that a version was made from can still be promoted."""
        return (self._source_of(version) or "").startswith(f"{ATTEMPTS}/")

    def _source_of(self, version: Path) -> str | None:
        """The run or model that a version was made from. None if it is gone, as an attempt is once it is a version.

        An attempt of the same name with another checkpoint is a later one: with an older table, its name is free again.
        """
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            content = json.loads((version / DESCRIPTION).read_bytes())
            name, files = content["source"], content["files"]
            source = self.folder / name
            saved = [file for file in files if file.startswith(CHECKPOINTS)] if name.startswith(f"{ATTEMPTS}/") else []
            if any(file_checksum(source / Path(file).relative_to(RUN)) != files[file]["sha256"] for file in saved):
                return None
            return str(name) if source.exists() else None
        return None

    def _remove_promoted(self, version: Version) -> None:
        """Remove the attempt that became a version. Its number is never used again, so the name is its own."""
        home, _, name = version.source.partition("/")
        if home == ATTEMPTS and name and (self.folder / ATTEMPTS / name).is_dir():
            shutil.rmtree(self.folder / ATTEMPTS / name, ignore_errors=True)


def _check_is_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose a new folder for the versions.")
    files = (folder / LOCK, folder / OWNER, folder / TABLE)
    for path in folder.iterdir() if folder.is_dir() else ():
        if path in files[:2] or any(is_partial(path, of) for of in files):
            continue  # of a command that was killed before it wrote the table
        if path.name.startswith(PARTIAL) or NAME.fullmatch(path.name):
            continue
        raise UserError(f"{folder} holds other files and is not a versions folder: choose a new folder.")
