"""Resuming a run exactly where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from trc2.config import RunConfig
from trc2.config.run import apply_overrides
from trc2.distributed.group import Ranks
from trc2.errors import UserError, brief
from trc2.runs.checkpoint import Checkpoint, drop_checkpoints_after, put_back_replaced
from trc2.runs.folder import RunFolder
from trc2.runs.identity import differences
from trc2.runs.lineage import generated_text
from trc2.runs.lock import lock_folder
from trc2.runs.records import Record
from trc2.stream.packed import PreparedStream
from trc2.stream.texts import keep_texts
from trc2.system.failpoints import failpoint
from trc2.system.files import reading
from trc2.system.torchrun import num_restarts
from trc2.training.loop import Trainer
from trc2.training.setup import (
    add_observers,
    begin_run,
    join_ranks,
    prepare_with_progress,
    run_trainer,
    set_up_process,
    warn_if_crowded,
    warn_on,
)


def train_or_resume(config: RunConfig, console: Console) -> Path:
    """`trc2 train`: begin a new run, or resume it if torchrun restarted the processes."""
    folder = RunFolder(config.output.folder)
    with join_ranks(config, console) as (ranks, console):
        if ranks.first_says(num_restarts() > 0 and folder.is_run):
            _check_learning(folder, folder.config(), config)
            _resume(folder, config, console, ranks)
        else:
            begin_run(config, console, ranks)
    return folder.path


def resume_run(path: Path, overrides: Iterable[str], console: Console, *, with_notes: bool = True) -> Path:
    """Continue an interrupted run bit-exactly from its newest whole checkpoint."""
    folder = RunFolder(path)
    config = _resumed_config(folder, overrides)
    with join_ranks(config, console) as (ranks, console):
        _resume(folder, config, console, ranks, with_notes=with_notes)
    return path


def _resume(folder: RunFolder, config: RunConfig, console: Console, ranks: Ranks, *, with_notes: bool = True) -> None:
    with ExitStack() as held:
        ranks.on_first(lambda: held.enter_context(lock_folder(folder.path)))
        ranks.on_first(folder.refuse_links)
        ranks.on_first(lambda: _put_back_generated(folder, config))
        set_up_process(config)
        warn_if_crowded(console)
        prepared = prepare_with_progress(
            config, console, folder.tokenizer(), folder.data()["tasks"], with_notes=with_notes
        )
        folder.check_data(prepared)
        while _run_on(folder, config, prepared, console, ranks):
            failpoint("stopped")


def _put_back_generated(folder: RunFolder, config: RunConfig) -> None:
    """Write the text that the parent generated into the cache again, if the cache was emptied."""
    lineage = folder.lineage()
    if lineage is None or lineage.generated is None or generated_text(config, lineage).is_file():
        return
    assert config.stream is not None
    with reading(folder.dream_file):  # as bytes: a line of text would end at U+2028, too
        rows = [json.loads(line) for line in folder.dream_file.read_bytes().splitlines()]
    keep_texts(lineage.generated, rows, config.stream.cache)


def _run_on(folder: RunFolder, config: RunConfig, prepared: PreparedStream, console: Console, ranks: Ranks) -> bool:
    """Go on from the newest checkpoint. True if the run stopped early and must be resumed to end at an earlier step."""
    stop = folder.stop()
    ranks.on_first(lambda: put_back_replaced(folder.checkpoints))
    if stop is not None:
        ranks.on_first(lambda: drop_checkpoints_after(folder.checkpoints, stop.step))
    history = folder.records() if folder.has_metrics else []
    checkpoint = _newest_checkpoint(folder, console, ranks)
    if checkpoint is None and folder.parent_file.exists():
        raise UserError(
            f"{folder} goes on from another run, but has no checkpoint to go on from: remove it and run "
            "`trc2 continue` again."
        )
    if stop is not None and (checkpoint is None or checkpoint.step != stop.step):
        raise UserError(
            f"{folder} ends at step {stop.step}, see {folder.stop_file.name}, but has no checkpoint of it: remove the "
            "folder and run `trc2 continue` again."
        )
    if checkpoint is None or config.model.is_quantized:  # the weights of the folder are read again
        ranks.on_first(folder.check_first_weights)
    trainer = Trainer(config, prepared, folder, [], ranks, will_restore=checkpoint is not None)
    start = -1 if checkpoint is None else checkpoint.step
    if any(record.kind == "end" for record in history) and start >= trainer.schedule.total_steps:
        console.print(f"{folder} is finished: add a task with `trc2 continue`.", highlight=False, markup=False)
        return False
    kept = [record for record in history if record.step <= start and start > 0]
    if checkpoint is not None:
        trainer.state.restore(checkpoint)
        trainer.recorder.resume_from(kept, trainer.state.progress.total_seconds)
    changed = ranks.on_first(lambda: _note_environment(folder, start, console)) or {}
    add_observers(trainer, console)
    trainer.recorder.emit(Record("resume", start, "", {f"changed/{name}": 1.0 for name in changed}, 0.0))
    is_noted = any(record.kind == "stop" for record in kept)
    if stop is not None and not (is_noted and trainer.state.progress.boundary_step == stop.step):
        trainer.recorder.emit(stop.record(trainer.evaluator.current_task))
    run_trainer(trainer)
    return trainer.early_stop.has_stopped


def _note_environment(folder: RunFolder, step: int, console: Console) -> dict[str, str]:
    """Warn about and record changed versions of libraries. A lost or damaged file is only a warning."""
    try:
        changed = folder.note_environment(step)
    except UserError as problem:
        warn_on(console)(f"Which versions the run began with is not known: {problem}")
        return {}
    if changed:
        versions = ", ".join(f"{name} {change}" for name, change in changed.items())
        warn_on(console)(f"The run goes on with other versions than before, so its numbers may differ: {versions}.")
    return changed


def _newest_checkpoint(folder: RunFolder, console: Console, ranks: Ranks) -> Checkpoint | None:
    """The first rank finds the newest whole checkpoint. The others load the same one."""
    newest = ranks.on_first(lambda: folder.newest_checkpoint(warn_on(console)))
    step = ranks.first_says(-1 if newest is None else newest.step)
    return newest if ranks.is_first or step < 0 else folder.checkpoint_of(step)


def _resumed_config(folder: RunFolder, overrides: Iterable[str]) -> RunConfig:
    """The run's own config. Overrides may change *execution* (output.…), never *learning*."""
    config = folder.config()
    changed = RunConfig(**apply_overrides(config.model_dump(mode="json"), overrides))
    changed = changed.replace(output={**changed.output.model_dump(), "folder": folder.path})
    _check_learning(folder, config, changed)
    if config.stream is None:
        raise UserError(f"{folder.config_file} has no stream of tasks: it is not the config of a run.")
    return changed


def _check_learning(folder: RunFolder, config: RunConfig, changed: RunConfig) -> None:
    """Refuse settings that would change what a run learns."""
    changes = [f"{path} from {old!r} to {new!r}" for path, (old, new) in differences(config, changed).items()]
    if changes:
        raise UserError(
            f"Resuming {folder} would change {brief('; '.join(changes), 400)}, which changes what is learned: only "
            "output.…, stream.cache and stream.data_root may change; start a new run instead."
        )
