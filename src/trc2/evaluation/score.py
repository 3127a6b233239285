"""Score the model of a run, or a saved model, on tasks and files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig, RunConfig, StreamConfig
from trc2.errors import UserError
from trc2.evaluation.tasks import score_task
from trc2.model.cortex import Cortex
from trc2.runs.folder import RunFolder, Warn
from trc2.runs.lock import lock_folder
from trc2.runs.records import Record, append_record
from trc2.runs.target import Target
from trc2.stream.batches import SplitWindows
from trc2.stream.cache import expanded
from trc2.stream.packed import PreparedTask
from trc2.stream.prepare import prepare_file
from trc2.stream.sources import SPLITS, check_task_names
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
    """Metrics by task or file name, of a run's newest checkpoint or of a saved model, and the number of `tokens`.

    Tasks are scored on as many batches as in the run, files as a whole. `memory="off"` empties the episodic memory and
    leaves taught documents unread.
    """
    if split not in SPLITS:
        raise UserError(f"There is no split '{split}': choose one of {', '.join(SPLITS)}.")
    run = RunFolder(target.folder) if target.is_run and target.folder is not None and (tasks or not files) else None
    is_test = run is not None and split == "test"
    with lock_folder(run.path) if run is not None and is_test else nullcontext():  # the scores are added to its log
        if run is not None and is_test:
            run.refuse_links()
        model, tokenizer = target.trained_model(warn)
        config = target.config.eval if target.is_run else EvalConfig()
        texts: dict[str, tuple[PreparedTask, str, EvalConfig]] = {}
        if run is not None:
            prepared = _tasks_of_run(run, target.config, tasks, check_test=is_test and not again)
            texts = {name: (prepared[name], split, config) for name in tasks or prepared}
        elif tasks:
            raise UserError(
                f"{target.name} is a saved model without a stream, so it has no task '{tasks[0]}': use --file."
            )
        stream, whole = target.config.stream, config.replace(max_batches=None)
        cache = expanded(StreamConfig.model_fields["cache"].default if stream is None else stream.cache)
        for path in files:
            file = prepare_file(path, text_format, tokenizer, cache)
            for message in file.messages:
                warn(message)
            texts[str(path)] = (file, "train", whole)
        if not texts:
            raise UserError("There is nothing to score: name a file with --file.")
        device = choose_device("auto")
        model.to(device).eval()
        if memory == "off":
            _empty_memory(model)
        length = target.config.train.sequence_length
        scores: dict[str, dict[str, float]] = {}
        for name, (task, part, settings) in texts.items():
            if task.splits[part].tokens < 2:
                raise UserError(f"{name} has no {part} text to score: give it at least two tokens.")
            windows = SplitWindows(task, length)
            scores[name] = score_task(model, windows, part, settings, tokenizer, device)
            batches = windows.eval_batches(part, settings.batch_size, settings.max_batches)
            scores[name]["tokens"] = sum(batch.num_labels for batch in batches)
        if run is not None and is_test:
            _record_test_scores(run, scores)
    return scores


def _tasks_of_run(
    run: RunFolder, config: RunConfig, tasks: Sequence[str], *, check_test: bool
) -> dict[str, PreparedTask]:
    """The packed tasks of a run, as it learned them."""
    assert config.stream is not None
    check_task_names(tasks, [task.name for task in config.stream.tasks])
    if check_test and any(record.kind == "test" and record.metrics for record in run.all_records()):
        raise UserError(  # test splits are read once, at the end of a run
            f"The test splits of {run} were read before, see test/… in its {run.metrics_file.name}: use --again "
            "to read them once more."
        )
    return run.prepared().tasks


def _empty_memory(model: Backbone) -> None:
    memory = model.trunk.hippocampus if isinstance(model.trunk, Cortex) else None
    if memory is None and model.recall is None:
        raise UserError(
            f"This model ({model.config.name}) has no episodic memory and no taught documents to switch off: leave "
            "--memory at read, or name a trc2 model with model.memory=true."
        )
    model.recall = None
    if memory is not None:
        memory.forget()


def _record_test_scores(run: RunFolder, scores: dict[str, dict[str, float]]) -> None:
    """Record in the metrics log that the test splits were read."""
    last = run.records()[-1]
    metrics = {f"test/{name}/{key}": value for name, values in scores.items() for key, value in values.items()}
    append_record(run.metrics_file, Record("test", last.step, last.task, metrics, last.seconds))
