"""The next attempt to teach a versions folder: begun, half done, or not needed because its text was taught."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trc2.config import RunConfig, StreamConfig, TaskConfig
from trc2.continuing.acceptance import read_verdict
from trc2.continuing.earlier import SUFFIX
from trc2.continuing.heldout import MIN_DOCUMENTS, held_out_split
from trc2.continuing.request import ContinuationRequest, child_config
from trc2.errors import UserError
from trc2.runs.folder import RunFolder
from trc2.runs.identity import is_same_run
from trc2.runs.schedule import TaskSchedule
from trc2.stream.packed import PreparedStream
from trc2.stream.prepare import prepare_stream
from trc2.stream.sources import has_documents
from trc2.versions.entry import RUN, Version
from trc2.versions.registry import Versions

HOLDOUTS = {10: 0.5, 200: 0.2}  # fewer documents than so many: the share that is held out where there is no validation
VARIABLE = "TRC2_ATTEMPT"  # the folder that the first of several processes chose


@dataclass(frozen=True)
class Attempt:
    """Where the accepted version is taught. `is_begun`: an earlier command was interrupted in this folder.

    `taught_by` names the accepted version, or one that waits to replace it, that was taught exactly this text already.
    """

    parent: Path
    folder: Path
    tasks: tuple[TaskConfig, ...]
    keep: tuple[TaskConfig, ...]
    is_begun: bool = False
    taught_by: str | None = None


def plan_attempt(versions: Versions, request: ContinuationRequest, folder: Path | None = None) -> Attempt:
    """Choose the folder of the next attempt, so that the same command can be given again at any time.

    An unfinished attempt with the same settings and text is taken up again. A refused one keeps its folder.
    """
    version = versions.accepted().check()
    versions.check_room()
    parent = version.model if version.run is None else version.run
    keep = _judged(version, request)
    tasks = tuple(map(_holding_out_enough, request.tasks))
    if chosen := os.environ.get(VARIABLE):
        return Attempt(parent, Path(chosen), tasks, keep, is_begun=RunFolder(Path(chosen)).is_run)
    names = [task.name for task in request.tasks]
    wanted = replace(request, tasks=tasks, keep=keep)
    config = child_config(parent, wanted, versions.folder / "attempt")
    assert config.stream is not None
    tokenizer = None if version.run is None else RunFolder(version.run).tokenizer()
    prepared = prepare_stream(config.stream, tokenizer=tokenizer)
    for taught in (version, *versions.waiting()):
        if _was_taught(taught, config, prepared, names):
            return Attempt(parent, taught.folder, tasks, keep, taught_by=taught.name)
    _check_later_weeks(version, prepared, names)
    if folder is not None:
        return Attempt(parent, folder, tasks, keep)
    tried: list[Path] = []

    def is_of_another(path: Path) -> bool:
        if not path.exists():
            return False
        tried.append(path)
        return not _is_same(RunFolder(path), config, prepared, request, parent)

    path = versions.next_attempt(names, is_of_another)
    return Attempt(parent, path, tasks, keep, is_begun=path in tried)


def _holding_out_enough(task: TaskConfig) -> TaskConfig:
    """The task with a larger share held out if it has few documents: later weeks are judged on them."""
    usual = TaskConfig.model_fields["holdout"].default
    for fewest, share in HOLDOUTS.items():
        if task.holdout == usual and not has_documents(task, StreamConfig(tasks=(task,)), fewest):
            return task.replace(holdout=share)
    return task


def _check_later_weeks(version: Version, prepared: PreparedStream, names: Sequence[str]) -> None:
    """Refuse a new name with too few held-out documents: every later week with a limit would be refused for it."""
    for name in names:
        task = prepared.tasks[name]
        count = task.splits[held_out_split(task)].documents
        if count < MIN_DOCUMENTS and name not in version.held_out:
            raise UserError(
                f"Task '{name}' leaves {count} held-out document{'' if count == 1 else 's'} on which later weeks could "
                f"be judged, but an interval takes at least {MIN_DOCUMENTS}: give more documents, or validation text."
            )


def _judged(version: Version, request: ContinuationRequest) -> tuple[TaskConfig, ...]:
    """What the version holds itself, and the texts of --keep and --dream besides.

    Text of a known name is judged by the documents of the version, except text that is generated again.
    """
    taught = {task.name for task in request.tasks}
    past = [task for task in _kept(version) if task.name != request.generated]
    known = {task.name for task in past}
    earlier = (task.replace(name=f"{task.name}{SUFFIX}") if task.name in taught else task for task in past)
    return (*earlier, *(task for task in request.keep if task.name not in known))


def _kept(version: Version) -> list[TaskConfig]:
    """The held-out documents of a version whose checkpoint was pruned: it is continued like a saved model."""
    if version.run is not None:
        return []
    return [TaskConfig(name=name, folder=str(path.resolve())) for name, path in sorted(version.held_out.items())]


def _was_taught(version: Version, config: RunConfig, prepared: PreparedStream, names: Sequence[str]) -> bool:
    """Whether the version was taught these tasks last, with the same text and steps."""
    run = RunFolder(version.folder / RUN)
    if tuple(names) != version.tasks or not run.is_run:
        return False
    before, steps = run.config(), {span.task: span.end - span.start for span in TaskSchedule.of_run(config).spans}
    old_steps = {span.task: span.end - span.start for span in TaskSchedule.of_run(before).spans}
    data = run.data()["tasks"]
    same_text = (
        info.sha256 == data[name]["splits"][split]["sha256"]
        for name in names
        for split, info in prepared.tasks[name].splits.items()
    )
    return all(steps[name] == old_steps.get(name) for name in names) and all(same_text)


def _is_same(
    run: RunFolder, config: RunConfig, prepared: PreparedStream, request: ContinuationRequest, parent: Path
) -> bool:
    """Whether an attempt has these settings, this text, this limit and this parent, and was not refused."""
    try:
        lineage, verdict = run.lineage(), read_verdict(run)
        return (
            lineage is not None
            and (lineage.limit, lineage.stop_at) == (request.limit, request.stop_at)
            and (lineage.max_drift, lineage.interpolate) == (request.max_drift, request.interpolate)
            and lineage.find(run.path).resolve() == parent.resolve()
            and (verdict is None or verdict.passed)
            and is_same_run(run.config(), config)
            and run.data()["fingerprint"] == prepared.fingerprint()
        )
    except UserError:  # damaged, so it is left as it is
        return False
