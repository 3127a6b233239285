"""Going on with a run: exactly where it stopped, or with a task nobody knew of before."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from trc2.backbones.registry import build_model
from trc2.config import RunConfig, TaskConfig
from trc2.config.run import apply_overrides
from trc2.errors import UserError, brief, plain
from trc2.failpoint import failpoint
from trc2.files import sync_folder, write_atomically
from trc2.metrics.forgetting import PERPLEXITY, forgetting
from trc2.nn.keyed import keyed_generator
from trc2.stream.prepare import PreparedStream
from trc2.train.binding import EXECUTION, check_binding, read_data_description
from trc2.train.chance import chance_unmoved
from trc2.train.checkpoint import Checkpoint, DamagedCheckpoint, list_checkpoints, load_checkpoint
from trc2.train.diary import Diary
from trc2.train.evaluate import score_task
from trc2.train.lock import lock_folder
from trc2.train.loop import Trainer
from trc2.train.plan import Plan
from trc2.train.records import Record, read_records, score_table
from trc2.train.start import (
    check_is_no_run,
    prepare_with_progress,
    read_run_config,
    read_tokenizer,
    run,
    set_up_process,
    watch,
    write_description,
)


def resume_run(folder: Path, overrides: Iterable[str], console: Console) -> Path:
    """Continue an interrupted run bit-exactly from its newest whole checkpoint."""
    config = _resumed_config(folder, overrides)
    with lock_folder(folder):
        set_up_process(config)
        prepared = prepare_with_progress(config, console, read_tokenizer(folder))
        check_data(folder, prepared)
        checkpoint = newest_checkpoint(folder, console)
        if checkpoint is None and (folder / "parent.json").exists():
            raise UserError(
                f"{folder} goes on from another run, but has no checkpoint to go on from: remove it and run "
                "`trc2 continue` again."
            )
        history = read_records(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
        trainer = Trainer(config, prepared, folder, [])
        start = -1 if checkpoint is None else checkpoint.step
        if any(r.kind == "end" for r in history) and start >= trainer.plan.total_steps:
            console.print(f"{folder} is finished; add a task with `trc2 continue`.", highlight=False, markup=False)
            return folder
        if checkpoint is not None:
            trainer.restore(checkpoint, history)
        watch(trainer, console)
        for observer in trainer.observers:
            observer.see(Record("resume", start, "", {}, 0.0))
        run(trainer)
    return folder


def newest_checkpoint(folder: Path, console: Console) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over. None before the first one.

    One that is whole but belongs to another run, or whose settings, data or diary have changed, is refused.
    """
    paths = list_checkpoints(folder / "checkpoints")
    for path in reversed(paths):
        try:
            found = load_checkpoint(path)
        except DamagedCheckpoint as error:
            console.print(plain(f"{error} Trying the one before."), style="yellow", markup=False, highlight=False)
        else:
            check_binding(folder, found)
            return found
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
    old, new = (_learning(values.model_dump(mode="json")) for values in (config, changed))
    differences = [
        f"{path} from {old.get(path)!r} to {new.get(path)!r}"
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    ]
    if differences:
        raise UserError(
            f"Resuming {folder} would change {brief('; '.join(differences), 400)}, which changes what is learnt: only "
            "output.…, stream.cache and stream.data_root may change; start a new run instead."
        )
    if config.stream is None:
        raise UserError(f"{folder / 'config.yaml'} has no stream of tasks: it is not the config of a run.")
    return changed


def _learning(values: dict[str, Any]) -> dict[str, Any]:
    """Every learning setting by its path, e.g. train.seed."""
    flat = {
        f"{section}.{name}": value
        for section, fields in values.items()
        for name, value in (fields.items() if isinstance(fields, dict) else [("", fields)])
    }
    return {path: value for path, value in flat.items() if not path.startswith(EXECUTION)}


def check_data(folder: Path, prepared: PreparedStream) -> None:
    """Refuse data whose tokens are not those the run began with."""
    known = read_data_description(folder)
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


# -------------------------------------------------------------------------------------------------------- a new task


def continue_run(parent: Path, folder: Path, task: TaskConfig, console: Console) -> Path:
    """Append a task to a finished run, in a new folder; scores and references of all earlier tasks carry over.

    The new folder gets its name when it holds everything that resuming it takes. Before that a kill leaves nothing but
    a hidden folder, and the same command begins anew; after it this is a run like any other, resumed here.
    """
    check_is_no_run(folder, "choose another --out")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another --out.")
    config, records, checkpoint = _finished(parent, console)
    assert config.stream is not None
    if task.name in [known.name for known in config.stream.tasks]:
        raise UserError(f"{parent} has learnt a task '{task.name}' already: give the new one another name.")
    partial = folder.with_name(f".{folder.name}.partial")
    with lock_folder(partial):
        _empty(partial)
        try:
            _inherit(parent, config, records, checkpoint, task, partial, folder, console)
        except UserError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        failpoint("inherited")
        os.replace(partial, folder)
        sync_folder(folder.parent)
    return resume_run(folder, [], console)


def _inherit(
    parent: Path, config: RunConfig, records: list[Record], checkpoint: Checkpoint, task: TaskConfig, partial: Path,
    folder: Path, console: Console,
) -> None:  # fmt: skip
    """Write all that resuming takes: description, the parent's records and state, the newcomer's first scores."""
    longer = _longer_config(config, task, folder)
    set_up_process(longer)
    prepared = prepare_with_progress(longer, console, read_tokenizer(parent))
    trainer = Trainer(longer, prepared, partial, [])
    origin = {"schema": 1, "parent": str(parent), "step": checkpoint.step, "task": task.name}
    write_atomically(partial / "parent.json", json.dumps(origin, indent=2).encode())
    write_description(partial, longer, prepared)
    trainer.restore(checkpoint, [])
    diary = Diary(partial / "metrics.jsonl")
    trainer.bind(diary)
    for record in records:
        if record.kind not in ("test", "end", "resume"):
            trainer.tell(record)
    failpoint("inherit")
    _score_newcomer(trainer, task.name)
    trainer.save()
    trainer.writer.wait()
    diary.close()


def _finished(parent: Path, console: Console) -> tuple[RunConfig, list[Record], Checkpoint]:
    """Config, records and last state of a run that can be gone on from."""
    config = read_run_config(parent)
    if config.stream is None:
        raise UserError(f"{parent} has no stream of tasks: there is nothing to go on with.")
    if config.stream.mode == "joint":
        raise UserError(
            f"{parent} learnt all its tasks at once (stream.mode=joint), so none of them has an end from which "
            "forgetting could be measured: continue a sequential run."
        )
    records = read_records(parent / "metrics.jsonl")
    if not any(record.kind == "end" for record in records):
        raise UserError(f"{parent} is not finished: `trc2 resume {parent}` first.")
    checkpoint = newest_checkpoint(parent, console)
    if checkpoint is None or checkpoint.step != Plan.of_run(config).total_steps:
        raise UserError(f"{parent} has no checkpoint of its end: resume it, or run it again.")
    return config, records, checkpoint


def _empty(partial: Path) -> None:
    """Remove what an earlier attempt left in a folder; its lock stays, we hold it."""
    for path in partial.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


def _longer_config(config: RunConfig, task: TaskConfig, folder: Path) -> RunConfig:
    """The parent's settings with one more task; the schedule starts anew per task."""
    assert config.stream is not None
    stream = config.stream.model_dump(mode="json")
    stream["tasks"] = [*stream["tasks"], task.model_dump(mode="json")]
    if stream["only"] is not None:  # the tasks that are trained: the new one is
        stream["only"] = [*stream["only"], task.name]
    values: dict[str, Any] = config.model_dump(mode="json")
    values["stream"] = stream
    values["train"]["schedule"] = "per_task"
    values["output"]["folder"] = str(folder)
    return RunConfig(**values)


def _score_newcomer(trainer: Trainer, name: str) -> None:
    """The new task's scores before any training, on untrained weights, and just before its own training."""
    config = trainer.config
    with chance_unmoved():  # modules draw weights of their own before ours replace them
        untrained = build_model(config.model, keyed_generator("weights", config.train.seed)).to(trainer.device)
    scores = score_task(
        untrained, trainer.tasks[name], "validation", config.eval, trainer.prepared.tokenizer, trainer.device
    )
    trainer.tell(Record("eval", 0, name, {f"eval/{name}/{key}": value for key, value in scores.items()}))
    trainer.evaluate([name])


def relative_forgetting(folder: Path) -> float:
    """Mean over past tasks of how much their perplexity rose since their own training, as a fraction, at the end.

    NaN where a perplexity is: a gate must ask whether this is small, not whether it is large.
    """
    config = read_run_config(folder)
    stretches = Plan.of_run(config).stretches
    table = score_table(read_records(folder / "metrics.jsonl"), PERPLEXITY, stretches)
    last = table.steps[-1] if table.steps else 0
    past = table.past(last)
    if not past or not all(table.has(step, s.task) for s in past for step in (s.end, last)):
        raise UserError(f"{folder} has no scores of past tasks at its end: there is nothing to compare.")
    rises = [math.expm1(forgetting(table, s, last)) for s in past]
    return sum(rises) / len(rises)
