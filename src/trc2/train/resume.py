"""Going on with a run: exactly where it stopped, or with a task nobody knew of before."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from trc2.baselines import build_model
from trc2.config import RunConfig, TaskConfig
from trc2.config.run import apply_overrides
from trc2.errors import UserError, plain
from trc2.metrics.forgetting import PERPLEXITY
from trc2.nn.chance import keyed_generator
from trc2.stream.prepare import PreparedStream
from trc2.train.checkpoint import Checkpoint, DamagedCheckpoint, list_checkpoints, load_checkpoint
from trc2.train.evaluate import score_task
from trc2.train.lock import lock_folder
from trc2.train.loop import Trainer
from trc2.train.plan import Plan
from trc2.train.records import Record, read_records, score_table
from trc2.train.start import (
    build_observers_for,
    prepare_with_progress,
    read_run_config,
    read_tokenizer,
    run,
    set_up_process,
    write_description,
)

# Free to change on resume besides output.…: where the data lies is not what it says, the fingerprint guards that.
EXECUTION = {"stream.cache", "stream.data_root"}


def resume_run(folder: Path, overrides: Iterable[str], console: Console) -> Path:
    """Continue an interrupted run bit-exactly from its newest whole checkpoint."""
    config = _resumed_config(folder, overrides)
    with lock_folder(folder):
        set_up_process(config)
        prepared = prepare_with_progress(config, console, read_tokenizer(folder))
        check_data(folder, prepared)
        checkpoint = newest_checkpoint(folder, console)
        history = read_records(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        start = -1 if checkpoint is None else checkpoint.step
        if checkpoint is not None and any(r.kind == "end" for r in history) and start >= _total(config):
            console.print(f"{folder} is finished; add a task with `trc2 continue`.", highlight=False)
            return folder
        _end_torn_line(folder / "metrics.jsonl")
        trainer = Trainer(config, prepared, folder, build_observers_for(config, folder, console, max(0, start)))
        if checkpoint is not None:
            trainer.restore(checkpoint, history)
        for observer in trainer.observers:
            observer.see(Record("resume", start, "", {}, 0.0))
        run(trainer)
    return folder


def newest_checkpoint(folder: Path, console: Console) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over. None before the first one."""
    paths = list_checkpoints(folder / "checkpoints")
    for path in reversed(paths):
        try:
            return load_checkpoint(path)
        except DamagedCheckpoint as error:
            console.print(plain(f"{error} Trying the one before."), style="yellow", markup=False, highlight=False)
    if paths:
        raise UserError(
            f"None of the {len(paths)} checkpoints in {folder} is whole: restore one from a copy, or run it again."
        )
    return None


def _resumed_config(folder: Path, overrides: Iterable[str]) -> RunConfig:
    """The run's own config; overrides may change *execution* (output.…), never *learning*."""
    config = read_run_config(folder)
    changed = RunConfig(**apply_overrides(config.model_dump(mode="json"), overrides))
    changed = changed.replace(output={**changed.output.model_dump(), "folder": folder})
    differences = [
        f"{section}.{field} from {getattr(old, field)!r} to {getattr(new, field)!r}"
        for section in ("model", "stream", "train", "control", "strategy", "budget", "eval")
        if (old := getattr(config, section)) is not None and (new := getattr(changed, section)) is not None
        for field in type(old).model_fields
        if f"{section}.{field}" not in EXECUTION and getattr(old, field) != getattr(new, field)
    ]
    if differences:
        raise UserError(
            f"Resuming {folder} would change {'; '.join(differences)}, which changes what is learnt: only output.…, "
            "stream.cache and stream.data_root may change; start a new run instead."
        )
    return changed


def check_data(folder: Path, prepared: PreparedStream) -> None:
    """Refuse data whose tokens are not those the run began with."""
    known = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    if known["fingerprint"] == prepared.fingerprint():
        return
    now = prepared.describe()["tasks"]
    changed = [
        f"{task}/{split}"
        for task, content in known["tasks"].items()
        for split, info in content["splits"].items()
        if now.get(task, {}).get("splits", {}).get(split, {}).get("sha256") != info["sha256"]
    ]
    what = ", ".join(changed) or "the tokenizer"
    raise UserError(f"The data of {folder} has changed since the run began ({what}): restore it, or start a new run.")


def _end_torn_line(path: Path) -> None:
    """A record cut off by a kill must not swallow the next one."""
    if path.exists():
        content = path.read_bytes()
        if content and not content.endswith(b"\n"):
            keep = content.rfind(b"\n") + 1
            with path.open("r+b") as file:
                file.truncate(keep)


def _total(config: RunConfig) -> int:
    return Plan.of_run(config).total_steps


# -------------------------------------------------------------------------------------------------------- a new task


def continue_run(parent: Path, folder: Path, task: TaskConfig, console: Console) -> Path:
    """Append a task to a finished run, in a new folder; scores and references of all earlier tasks carry over."""
    config = read_run_config(parent)
    assert config.stream is not None
    records = read_records(parent / "metrics.jsonl")
    if not any(record.kind == "end" for record in records):
        raise UserError(f"{parent} is not finished: `trc2 resume {parent}` first.")
    if task.name in [known.name for known in config.stream.tasks]:
        raise UserError(f"{parent} has learnt a task '{task.name}' already: give the new one another name.")
    if (folder / "metrics.jsonl").exists():
        raise UserError(f"{folder} already holds a run: choose another --out.")
    checkpoint = newest_checkpoint(parent, console)
    if checkpoint is None or checkpoint.step != _total(config):
        raise UserError(f"{parent} has no checkpoint of its end: resume it, or run it again.")
    with lock_folder(folder):
        longer = _longer_config(config, task, folder)
        set_up_process(longer)
        prepared = prepare_with_progress(longer, console, read_tokenizer(parent))
        write_description(folder, longer, prepared)
        origin = {"schema": 1, "parent": str(parent), "step": checkpoint.step, "task": task.name}
        (folder / "parent.json").write_text(json.dumps(origin, indent=2))
        trainer = Trainer(longer, prepared, folder, build_observers_for(longer, folder, console, checkpoint.step))
        trainer.restore(checkpoint, [])
        for record in records:
            if record.kind not in ("test", "end", "resume"):
                trainer.tell(record)
        _score_newcomer(trainer, task.name)
        trainer.save()
        run(trainer)
    return folder


def _longer_config(config: RunConfig, task: TaskConfig, folder: Path) -> RunConfig:
    """The parent's settings with one more task; the schedule starts anew per task."""
    assert config.stream is not None
    stream = config.stream.model_dump(mode="json")
    stream["tasks"] = [*stream["tasks"], task.model_dump(mode="json")]
    values: dict[str, Any] = config.model_dump(mode="json")
    values["stream"] = stream
    values["train"]["schedule"] = "per_task"
    values["output"]["folder"] = str(folder)
    return RunConfig(**values)


def _score_newcomer(trainer: Trainer, name: str) -> None:
    """The new task's scores before any training, on untrained weights, and just before its own training."""
    config = trainer.config
    untrained = build_model(config.model, keyed_generator("weights", config.train.seed)).to(trainer.device)
    scores = score_task(
        untrained, trainer.tasks[name], "validation", config.eval, trainer.prepared.tokenizer, trainer.device
    )
    trainer.tell(Record("eval", 0, name, {f"eval/{name}/{key}": value for key, value in scores.items()}))
    trainer.evaluate([name])


def relative_forgetting(folder: Path) -> float:
    """Mean over past tasks of how much their perplexity rose since their own training, as a fraction, at the end."""
    config = read_run_config(folder)
    assert config.stream is not None
    stretches = Plan.of_run(config).stretches
    table = score_table(read_records(folder / "metrics.jsonl"), PERPLEXITY, stretches)
    last = table.steps[-1]
    past = table.past(last)
    rises = [math.exp(max(0.0, table.value(last, s.task) - table.post(s))) - 1.0 for s in past]
    return sum(rises) / max(1, len(rises))
