"""Going on with a run: exactly where it stopped, or with a task nobody knew of before."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trc2.backbones.registry import build_model
from trc2.config import RunConfig, TaskConfig
from trc2.config.run import apply_overrides
from trc2.errors import UserError, brief
from trc2.failpoint import failpoint
from trc2.files import sync_folder
from trc2.metrics.forgetting import PERPLEXITY, forgetting
from trc2.nn.keyed import keyed_generator
from trc2.ranks import Ranks
from trc2.ranks.torchrun import num_restarts
from trc2.runs.binding import EXECUTION
from trc2.runs.checkpoint import Checkpoint, name_of
from trc2.runs.folder import RunFolder
from trc2.runs.lock import LOCK, OWNER, lock_folder
from trc2.runs.plan import Plan
from trc2.runs.records import Record, score_table
from trc2.stream.prepare import PreparedStream
from trc2.train.chance import chance_unmoved
from trc2.train.evaluate import score_task
from trc2.train.loop import Trainer
from trc2.train.start import (
    keep_diary,
    prepare_with_progress,
    run,
    set_up_process,
    start_run,
    taking_part,
    warn_if_crowded,
    warn_on,
    watch,
)


def start_or_go_on(config: RunConfig, console: Console) -> Path:
    """What `trc2 train` does: a new run; or, where torchrun has started the group again, the one that had begun."""
    with taking_part(config, console) as (ranks, quiet):
        folder = RunFolder(config.output.folder)
        if not ranks.first_says(num_restarts() > 0 and folder.is_run):
            return start_run(config, console)
        _check_learning(folder, folder.config(), config)
        _go_on(folder, config, quiet, ranks)
    return folder.path


def resume_run(path: Path, overrides: Iterable[str], console: Console) -> Path:
    """Continue an interrupted run bit-exactly from its newest whole checkpoint."""
    folder = RunFolder(path)
    config = _resumed_config(folder, overrides)
    with taking_part(config, console) as (ranks, console):
        _go_on(folder, config, console, ranks)
    return path


def _go_on(folder: RunFolder, config: RunConfig, console: Console, ranks: Ranks) -> None:
    with ExitStack() as held:
        ranks.on_first(lambda: held.enter_context(lock_folder(folder.path)))
        set_up_process(config)
        warn_if_crowded(console)
        prepared = prepare_with_progress(config, console, folder.tokenizer(), folder.data()["tasks"])
        check_data(folder, prepared)
        history = folder.records() if folder.has_diary else []
        checkpoint = _newest_checkpoint(folder, console, ranks)
        if checkpoint is None and folder.parent_file.exists():
            raise UserError(
                f"{folder} goes on from another run, but has no checkpoint to go on from: remove it and run "
                "`trc2 continue` again."
            )
        trainer = Trainer(config, prepared, folder, [], ranks, will_restore=checkpoint is not None)
        start = -1 if checkpoint is None else checkpoint.step
        if any(record.kind == "end" for record in history) and start >= trainer.plan.total_steps:
            console.print(f"{folder} is finished; add a task with `trc2 continue`.", highlight=False, markup=False)
            return
        if checkpoint is not None:
            trainer.state.restore(checkpoint)
            kept = [record for record in history if record.step <= checkpoint.step]
            trainer.story.go_on(kept, trainer.state.progress.total_seconds)
        watch(trainer, console)
        trainer.story.tell(Record("resume", start, "", {}, 0.0))
        run(trainer)


def _newest_checkpoint(folder: RunFolder, console: Console, ranks: Ranks) -> Checkpoint | None:
    """The first rank looks for the newest whole one; all others take the same."""
    found = ranks.on_first(lambda: folder.newest_checkpoint(warn_on(console)))
    step = ranks.first_says(-1 if found is None else found.step)
    return found if ranks.is_first or step < 0 else folder.checkpoint_of(step)


def _resumed_config(folder: RunFolder, overrides: Iterable[str]) -> RunConfig:
    """The run's own config; overrides may change *execution* (output.…), never *learning*."""
    config = folder.config()
    changed = RunConfig(**apply_overrides(config.model_dump(mode="json"), overrides))
    changed = changed.replace(output={**changed.output.model_dump(), "folder": folder.path})
    _check_learning(folder, config, changed)
    if config.stream is None:
        raise UserError(f"{folder.config_file} has no stream of tasks: it is not the config of a run.")
    return changed


def _check_learning(folder: RunFolder, config: RunConfig, changed: RunConfig) -> None:
    """Refuse settings that would change what a run learns."""
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


def _learning(values: dict[str, Any]) -> dict[str, Any]:
    """Every learning setting by its path, e.g. train.seed."""
    flat = {
        f"{section}.{name}": value
        for section, fields in values.items()
        for name, value in (fields.items() if isinstance(fields, dict) else [("", fields)])
    }
    return {path: value for path, value in flat.items() if not path.startswith(EXECUTION)}


def check_data(folder: RunFolder, prepared: PreparedStream) -> None:
    """Refuse data whose tokens are not those the run began with."""
    known = folder.data()
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


def continue_run(parent: Path, path: Path, task: TaskConfig, console: Console, share: float | None = None) -> Path:
    """Append a task to a finished run, in a new folder; scores and references of all earlier tasks carry over.

    The new folder gets its name when it holds everything that resuming it takes. Before that a kill leaves nothing but
    a hidden folder, and the same command begins anew; after it this is a run like any other, resumed here.

    `share` is replayed from now on, whatever the parent replayed and whatever its controller would say.
    """
    with taking_part(RunFolder(parent).config(), console) as (ranks, quiet):
        if not ranks.first_says(num_restarts() > 0 and RunFolder(path).is_run):
            ranks.on_first(lambda: _check_is_free(path))
            _make_child(parent, path, task, quiet, ranks, share)
        return resume_run(path, [], console)


def _check_is_free(path: Path) -> None:
    RunFolder(path).check_is_free("choose another --out")
    if path.exists() and any(path.iterdir()):
        raise UserError(f"{path} is not empty: choose another --out.")


def _make_child(
    parent: Path, path: Path, task: TaskConfig, console: Console, ranks: Ranks, share: float | None
) -> None:
    ended = _finished(RunFolder(parent), console)
    if share is not None:
        ended = _replaying(ended, share)
    assert ended.config.stream is not None
    if task.name in [known.name for known in ended.config.stream.tasks]:
        raise UserError(f"{parent} has learnt a task '{task.name}' already: give the new one another name.")
    partial = path.with_name(f".{path.name}.partial")
    with ExitStack() as held:
        ranks.on_first(lambda: held.enter_context(lock_folder(partial)))
        ranks.on_first(lambda: _empty(partial))
        try:
            _inherit(ended, task, RunFolder(partial), path, console, ranks)
        except UserError:
            if ranks.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        failpoint("inherited")
        ranks.on_first(lambda: os.replace(partial, path))
        ranks.on_first(lambda: sync_folder(path.parent))


def _replaying(ended: Ended, share: float) -> Ended:
    """The same end, from which a fixed share is replayed."""
    model = ended.config.model
    if not model.replay or model.replay_share is None:
        raise UserError(
            f"{ended.folder} does not replay by a share of the tokens, so none can be set: train with "
            "model.replay_share, which model=hf has by itself."
        )
    control = {**ended.config.control.model_dump(), "mode": "fixed"}
    changed = ended.config.replace(model=model.replace(replay_share=share), control=control)
    tensors = {**ended.checkpoint.tensors, "model.replay.share": torch.tensor(share, dtype=torch.float64)}
    return replace(ended, config=changed, checkpoint=replace(ended.checkpoint, tensors=tensors))


@dataclass(frozen=True)
class Ended:
    """A finished run that can be gone on from."""

    folder: RunFolder
    config: RunConfig
    records: list[Record]
    checkpoint: Checkpoint


def _finished(folder: RunFolder, console: Console) -> Ended:
    config = folder.config()
    if config.stream is None:
        raise UserError(f"{folder} has no stream of tasks: there is nothing to go on with.")
    if config.stream.mode == "joint":
        raise UserError(
            f"{folder} learnt all its tasks at once (stream.mode=joint), so none of them has an end from which "
            "forgetting could be measured: continue a sequential run."
        )
    records = folder.records()
    if not any(record.kind == "end" for record in records):
        raise UserError(f"{folder} is not finished: `trc2 resume {folder}` first.")
    checkpoint = folder.newest_checkpoint(warn_on(console))
    if checkpoint is None or checkpoint.step != Plan.of_run(config).total_steps:
        raise UserError(f"{folder} has no checkpoint of its end: resume it, or run it again.")
    return Ended(folder, config, records, checkpoint)


def _inherit(ended: Ended, task: TaskConfig, folder: RunFolder, final: Path, console: Console, ranks: Ranks) -> None:
    """Write all that resuming takes: description, the parent's records and state, the newcomer's first scores."""
    config = _longer_config(ended.config, task, final)
    set_up_process(config)
    prepared = prepare_with_progress(config, console, ended.folder.tokenizer(), ended.folder.data()["tasks"])
    trainer = Trainer(config, prepared, folder, [], ranks, will_restore=True)
    ranks.on_first(lambda: folder.name_parent(ended.folder, ended.checkpoint.step, task.name))
    ranks.on_first(lambda: folder.describe(config, prepared))
    trainer.state.restore(ended.checkpoint)
    ranks.on_first(lambda: _keep_branch_point(ended, trainer))
    trainer.story.go_on([], trainer.state.progress.total_seconds)
    if ranks.is_first:
        trainer.story.observers.append(keep_diary(trainer))
    for record in ended.records:
        if record.kind not in ("test", "end", "resume"):
            trainer.story.tell(record)
    failpoint("inherit")
    _score_newcomer(trainer, task.name)
    trainer.saver.save(trainer.state, trainer.story)
    trainer.saver.writer.wait()
    trainer.story.close()


def _keep_branch_point(ended: Ended, trainer: Trainer) -> None:
    """What the new task goes on from, if the parent's end was annealed on a branch."""
    before = trainer.plan.goes_back_to(ended.checkpoint.step)
    if before is None:
        return
    name = name_of(before)
    if not (ended.folder.checkpoints / name).is_dir():
        raise UserError(f"{ended.folder} has no checkpoint from before its anneal, {name}: run it again.")
    shutil.copytree(ended.folder.checkpoints / name, trainer.folder.checkpoints / name)


def _empty(partial: Path) -> None:
    """Remove what an earlier attempt left in a folder; its lock stays, we hold it."""
    for path in partial.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LOCK, OWNER):
            path.unlink()


def _longer_config(config: RunConfig, task: TaskConfig, folder: Path) -> RunConfig:
    """The parent's settings with one more task; a schedule with a horizon starts anew per task."""
    assert config.stream is not None
    stream = config.stream.model_dump(mode="json")
    stream["tasks"] = [*stream["tasks"], task.model_dump(mode="json")]
    if stream["order"] is not None:  # the new task comes last
        stream["order"] = [*stream["order"], task.name]
    if stream["only"] is not None:  # the tasks that are trained: the new one is
        stream["only"] = [*stream["only"], task.name]
    values: dict[str, Any] = config.model_dump(mode="json")
    values["stream"] = stream
    if not config.train.branches:
        values["train"]["schedule"] = "per_task"
    values["output"]["folder"] = str(folder)
    return RunConfig(**values)


def _score_newcomer(trainer: Trainer, name: str) -> None:
    """The new task's scores before any training, on untrained weights, and just before its own training."""
    config, feed, device = trainer.config, trainer.feed, trainer.state.device
    with chance_unmoved():  # modules draw weights of their own before ours replace them
        untrained = build_model(config.model, keyed_generator("weights", config.train.seed)).to(device)
    untrained.ranks = trainer.ranks
    scores = score_task(untrained, feed.tasks[name], "validation", config.eval, feed.tokenizer, device)
    trainer.story.tell(Record("eval", 0, name, {f"eval/{name}/{key}": value for key, value in scores.items()}))
    trainer.measure.evaluate([name])


def relative_forgetting(path: Path) -> float:
    """Mean over past tasks of how much their perplexity rose since their own training, as a fraction, at the end.

    NaN if a perplexity is. Compare with `<=` a limit, which NaN fails, not with `>`, which it passes.
    """
    folder = RunFolder(path)
    table = score_table(folder.records(), PERPLEXITY, Plan.of_run(folder.config()).stretches)
    last = table.steps[-1] if table.steps else 0
    past = table.past(last)
    if not past or not all(table.has(step, s.task) for s in past for step in (s.end, last)):
        raise UserError(f"{folder} has no scores of past tasks at its end: there is nothing to compare.")
    rises = [math.expm1(forgetting(table, s, last)) for s in past]
    return sum(rises) / len(rises)
