"""Scoring a finished or running model on tasks and files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig, StreamConfig
from trc2.errors import UserError
from trc2.evaluation.tasks import score_task
from trc2.model.cortex import Cortex
from trc2.runs.folder import RunFolder, Warn
from trc2.runs.lock import lock_folder
from trc2.runs.records import Record, append_record
from trc2.runs.target import Target
from trc2.stream.batches import SplitWindows
from trc2.stream.cache import expanded
from trc2.stream.packed import PreparedStream, PreparedTask
from trc2.stream.prepare import prepare_file, prepare_stream
from trc2.stream.sources import SPLITS, check_task_names
from trc2.stream.tokenizer import Tokenizer
from trc2.system.precision import choose_device

Memory = Literal["read", "off"]


def score_target(
    target: Target,
    *,
    warn: Warn,
    tasks: Sequence[str] = (),
    files: Sequence[Path] = (),
    split: str = "validation",
    text_format: str = "text",
    again: bool = False,
    memory: Memory = "read",
) -> dict[str, dict[str, float]]:
    """Metrics by task or file name, of a run's newest checkpoint or of a saved model; `tokens` counts what was scored.

    Tasks are scored as the run scores them, on as many batches; files whole. `memory="off"` empties
    the episodic memory first.
    """
    if split not in SPLITS:
        raise UserError(f"There is no split '{split}': choose one of {', '.join(SPLITS)}.")
    with ExitStack() as held:
        if split == "test" and target.is_run and (tasks or not files):  # that it was read is added to the run's log
            held.enter_context(lock_folder(_folder_of(target).path))
            _folder_of(target).refuse_links()
        return _score(target, tasks, files, split, text_format, again, memory, warn)


def _score(
    target: Target, tasks: Sequence[str], files: Sequence[Path], split: str, text_format: str, again: bool,
    memory: Memory, warn: Warn,
) -> dict[str, dict[str, float]]:  # fmt: skip
    model, tokenizer = target.trained_model(warn)
    stream = target.config.stream
    of_tasks: dict[str, PreparedTask] = {}
    if stream is not None and (tasks or not files):
        prepared = _prepare_tasks(target, stream, tasks, tokenizer, check_test=split == "test" and not again)
        of_tasks = {name: prepared.tasks[name] for name in tasks or prepared.tasks}
    elif tasks:
        raise UserError(f"{target.name} is a saved model without a stream, so it has no task '{tasks[0]}': use --file.")
    cache = StreamConfig.model_fields["cache"].default if stream is None else stream.cache
    of_files = {str(path): prepare_file(path, text_format, tokenizer, expanded(cache)) for path in files}
    for message in (message for task in of_files.values() for message in task.messages):
        warn(message)
    if not of_tasks and not of_files:
        raise UserError("There is nothing to score: name a file with --file.")
    device = choose_device("auto")
    model.to(device).eval()
    if memory == "off":
        _empty_memory(model)
    config = target.config.eval if target.is_run else EvalConfig()
    length = target.config.train.sequence_length
    whole = config.replace(max_batches=None)
    parts = {name: (task, split, config) for name, task in of_tasks.items()}
    parts |= {name: (task, "train", whole) for name, task in of_files.items()}
    scores: dict[str, dict[str, float]] = {}
    for name, (task, part, settings) in parts.items():
        available = task.splits[part].tokens - 1
        if available < 1:
            raise UserError(f"{name} has no {part} text to score: give it at least two tokens.")
        scores[name] = score_task(model, SplitWindows(task, length), part, settings, tokenizer, device)
        limit = None if settings.max_batches is None else settings.max_batches * settings.batch_size * length
        scores[name]["tokens"] = available if limit is None else min(available, limit)
    if of_tasks and split == "test":
        _note_test_split(_folder_of(target), scores)
    return scores


def _empty_memory(model: Backbone) -> None:
    memory = model.trunk.hippocampus if isinstance(model.trunk, Cortex) else None
    if memory is None:
        raise UserError(
            f"This model ({model.config.name}) has no episodic memory to switch off: leave --memory at read, or name a "
            "trc2 model with model.memory=true."
        )
    memory.forget()


def _folder_of(target: Target) -> RunFolder:
    assert target.folder is not None, "only a run has tasks"
    return RunFolder(target.folder)


def _prepare_tasks(
    target: Target, stream: StreamConfig, tasks: Sequence[str], tokenizer: Tokenizer, *, check_test: bool
) -> PreparedStream:
    """The packed tasks of a run, as it learnt them."""
    folder = _folder_of(target)
    check_task_names(tasks, [task.name for task in stream.tasks])
    if check_test:
        _check_test_split(folder)
    prepared = prepare_stream(stream, tokenizer=tokenizer, known=folder.data()["tasks"])
    folder.check_data(prepared)
    return prepared


def _check_test_split(folder: RunFolder) -> None:
    """Test splits are read once, at the end of a run; scoring them again needs an option, also after a resume."""
    if any(record.kind == "test" and record.metrics for record in folder.all_records()):
        raise UserError(
            f"The test splits of {folder} were read before, see test/… in its {folder.metrics_file.name}: use --again "
            "to read them once more."
        )


def _note_test_split(folder: RunFolder, scores: dict[str, dict[str, float]]) -> None:
    """Leave a trace in the diary that the test splits were looked at."""
    last = folder.records()[-1]
    metrics = {f"test/{name}/{key}": value for name, values in scores.items() for key, value in values.items()}
    append_record(folder.metrics_file, Record("test", last.step, last.task, metrics, last.seconds))
