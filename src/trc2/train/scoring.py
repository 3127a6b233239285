"""Scoring a finished or running model on tasks and files."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from trc2.artifact import load_model, trained_length
from trc2.backbones.registry import build_model
from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig, RunConfig, StreamConfig, TaskConfig
from trc2.errors import UserError, plain
from trc2.stream.batches import TaskData
from trc2.stream.cache import expanded
from trc2.stream.prepare import PreparedTask, prepare_stream, prepare_task
from trc2.stream.sources import SPLITS, FileSource, check_task_names
from trc2.stream.tokenizer import Tokenizer
from trc2.train.evaluate import score_task
from trc2.train.loop import check_vocabulary, load_state
from trc2.train.precision import choose_device
from trc2.train.records import Record, append_record, read_all_records, read_records
from trc2.train.resume import check_data, newest_checkpoint
from trc2.train.start import read_run_config, read_tokenizer


def score_folder(
    folder: Path, *, tasks: list[str], files: list[Path], split: str, text_format: str, again: bool,
    console: Console | None = None,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Metrics by task or file name, of a run's newest checkpoint or of a saved model; `tokens` counts what was scored.

    Tasks are scored as the run scores them, on as many batches; files whole. Warnings go to the console.
    """
    console = console or Console(stderr=True)
    if split not in SPLITS:
        raise UserError(f"There is no split '{split}': choose one of {', '.join(SPLITS)}.")
    device = choose_device("auto")
    is_run = (folder / "config.yaml").is_file()
    run = read_run_config(folder) if is_run else None
    model = load_run_model(folder, run, console=console)[0] if run is not None else load_model(folder)
    tokenizer = read_tokenizer(folder)
    check_vocabulary(model.config.vocab_size, tokenizer.vocab_size)
    prepared: dict[str, PreparedTask] = {}
    if run is not None and run.stream is not None and (tasks or not files):
        check_task_names(tasks, [task.name for task in run.stream.tasks])
        if split == "test":
            _check_test_split(folder, again)
        stream = prepare_stream(run.stream, tokenizer=tokenizer)
        check_data(folder, stream)
        prepared |= {name: stream.tasks[name] for name in tasks or stream.tasks}
    elif tasks:
        raise UserError(f"{folder} is a saved model without a stream, so it has no task '{tasks[0]}': use --file.")
    cache = (
        run.stream.cache if run is not None and run.stream is not None else StreamConfig.model_fields["cache"].default
    )
    of_files = {str(path): _prepare_file(path, text_format, tokenizer, expanded(cache)) for path in files}
    for message in (message for task in of_files.values() for message in task.messages):
        console.print(plain(message), style="yellow", markup=False, highlight=False)
    prepared |= of_files
    if not prepared:
        raise UserError("There is nothing to score: name a file with --file.")
    model.to(device).eval()
    config = run.eval if run is not None else EvalConfig()
    length = run.train.sequence_length if run is not None else trained_length(folder)
    scores = {}
    for name, task in prepared.items():
        part, settings = (split, config) if name not in of_files else ("train", config.replace(max_batches=None))
        if task.splits[part].tokens < 2:
            raise UserError(f"{name} has no {part} text to score: give it at least two tokens.")
        data = TaskData.for_scoring(task, length)
        scores[name] = score_task(model, data, part, settings, tokenizer, device)
        scored = task.splits[part].tokens - 1
        if settings.max_batches is not None:
            scored = min(scored, settings.max_batches * settings.batch_size * length)
        scores[name]["tokens"] = scored
    if is_run and split == "test" and prepared.keys() - of_files.keys():
        _note_test_split(folder, scores)
    return scores


def load_run_model(
    folder: Path, run: RunConfig, *, with_replay: bool = True, console: Console | None = None
) -> tuple[Backbone, int]:
    """The network of a run's newest checkpoint, and the step it was taken at."""
    checkpoint = newest_checkpoint(folder, console or Console(stderr=True))
    if checkpoint is None:
        raise UserError(f"{folder} has no checkpoint yet: let the run reach its first one.")
    model = build_model(run.model if with_replay else run.model.replace(replay=False))
    load_state(model, checkpoint, without="-" if with_replay else "replay.")
    return model, checkpoint.step


def _check_test_split(folder: Path, again: bool) -> None:
    """Test splits are read once, at the end of a run; a second look must be asked for, also after a resume."""
    seen = any(record.kind == "test" and record.metrics for record in read_all_records(folder / "metrics.jsonl"))
    if seen and not again:
        raise UserError(
            f"The test splits of {folder} were read before, see test/… in its metrics.jsonl: use --again to read "
            "them once more."
        )


def _note_test_split(folder: Path, scores: dict[str, dict[str, float]]) -> None:
    """Leave a trace in the diary that the test splits were looked at."""
    last = read_records(folder / "metrics.jsonl")[-1]
    metrics = {f"test/{name}/{key}": value for name, values in scores.items() for key, value in values.items()}
    append_record(folder / "metrics.jsonl", Record("test", last.step, last.task, metrics, last.seconds))


def _prepare_file(path: Path, text_format: str, tokenizer: Tokenizer, cache: Path) -> PreparedTask:
    if not path.is_file():
        raise UserError(f"There is no file {path}: check the path.")
    splits = {"train": path.name, "validation": None, "test": None}
    task = TaskConfig(name="file", folder=".", format=text_format, splits=splits, holdout=0.0)
    return prepare_task(task, FileSource(task, path.parent), tokenizer, cache)
