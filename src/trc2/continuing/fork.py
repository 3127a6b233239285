"""A child: a run that continues another run, or a saved model. Its folder is written at once, ready to be resumed.

The folder gets its name when it is whole. A kill before that leaves only a hidden folder, which the same command
replaces. After that the child is a run like any other.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trc2.backbones.registry import build_model
from trc2.backbones.saved import is_plain, load_model
from trc2.config import RunConfig
from trc2.continuing.drift import check_drift_texts
from trc2.continuing.earlier import held_out_documents, write_held_out
from trc2.continuing.heldout import check_held_out, known_before
from trc2.continuing.interpolation import alpha_of
from trc2.continuing.request import ContinuationRequest, starts_over
from trc2.distributed.group import Ranks
from trc2.errors import UserError
from trc2.evaluation.tasks import score_task
from trc2.runs.checkpoint import Checkpoint, load_state, name_of, weights_of
from trc2.runs.environment import weight_checksums
from trc2.runs.folder import RunFolder
from trc2.runs.lineage import Lineage, generated_text, relative_to
from trc2.runs.lock import LOCK, OWNER, lock_folder
from trc2.runs.records import Record
from trc2.strategies import build_strategy
from trc2.stream.cache import digest
from trc2.system.failpoints import failpoint
from trc2.system.files import sync_folder, write_atomically
from trc2.system.rng import keyed_generator, rng_unchanged
from trc2.training.loop import Trainer
from trc2.training.setup import describe_run, keep_metrics_log, prepare_with_progress, set_up_process, warn_on
from trc2.training.state import Progress

STRENGTHS = ("coefficient", "batch_size", "long_fraction", "share")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run that a child can continue."""

    folder: RunFolder
    config: RunConfig
    records: list[Record]
    checkpoint: Checkpoint


def make_child(
    parent: Path, path: Path, request: ContinuationRequest, config: RunConfig, console: Console, ranks: Ranks
) -> None:
    """Make the folder of a child, up to the point from which it is resumed."""
    folder = RunFolder(parent)
    run = _finished_run(folder, console) if folder.is_run else None
    lineage = _lineage(parent, run, path, request, config)
    path = path.absolute()
    partial = path.with_name(f".{path.name}.partial")
    with ExitStack() as held:
        ranks.on_first(lambda: held.enter_context(lock_folder(partial)))
        ranks.on_first(lambda: _remove_files(partial))
        try:
            _write_child(RunFolder(partial), parent, run, lineage, config, console, ranks)
        except UserError:
            if ranks.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        failpoint("inherited")
        ranks.on_first(lambda: os.replace(partial, path))
        ranks.on_first(lambda: sync_folder(path.parent))


def _finished_run(folder: RunFolder, console: Console) -> FinishedRun:
    config = folder.config()
    assert config.stream is not None
    if config.stream.mode == "joint":
        raise UserError(
            f"{folder} learned all its tasks at once (stream.mode=joint), so they have no end from which "
            "forgetting could be measured: continue a sequential run, or the export of this one."
        )
    records = folder.records()
    if not any(record.kind == "end" for record in records):
        raise UserError(f"{folder} is not finished: `trc2 resume {folder}` first.")
    checkpoint = folder.newest_checkpoint(warn_on(console))
    if checkpoint is None or checkpoint.step != folder.schedule(config).total_steps:
        raise UserError(f"{folder} has no checkpoint of its end: resume it, or run it again.")
    return FinishedRun(folder, config, records, checkpoint)


def _lineage(
    parent: Path, run: FinishedRun | None, path: Path, request: ContinuationRequest, config: RunConfig
) -> Lineage:
    assert config.stream is not None
    step = 0 if run is None else run.checkpoint.step
    earlier = None if run is None else run.folder.lineage()
    kept = (*(() if earlier is None else earlier.kept), *(task.name for task in request.keep))
    taught = tuple(task.name for task in request.tasks)
    is_restarted = run is not None and starts_over(run.folder, request)
    if is_restarted:
        kept = tuple(task.name for task in config.stream.tasks if task.name not in taught)
    lineage = Lineage(
        str(parent), step, taught, is_run=run is not None,
        weights=parent_weights(parent, None if run is None else step, config.stream.cache), limit=request.limit,
        prediction=request.prediction, kept=kept, relative=relative_to(path, parent), starts_over=is_restarted,
        stop_at=request.stop_at, max_drift=request.max_drift, generated=request.generated,
        interpolate=request.interpolate,
    )  # fmt: skip
    return replace(lineage, watched=tuple(known_before(config, lineage)))


def parent_weights(parent: Path, step: int | None, cache: Path) -> str:
    """The checksum of the weights a child begins with: of a run's checkpoint of a step, or of a saved model."""
    if step is None:
        return digest(weight_checksums(str(parent), cache))
    return weights_of(RunFolder(parent).checkpoints / name_of(step))


def _remove_files(partial: Path) -> None:
    """Remove the files of an earlier attempt, but not the lock, which this process holds."""
    for path in partial.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LOCK, OWNER):
            path.unlink()


def _write_child(
    folder: RunFolder, parent: Path, run: FinishedRun | None, lineage: Lineage, config: RunConfig, console: Console,
    ranks: Ranks,
) -> None:  # fmt: skip
    """Write everything that resuming needs: the description, the parent's records, and a checkpoint."""
    set_up_process(config)
    known = {} if run is None else _known_tasks(run, lineage)
    prepared = prepare_with_progress(config, console, None if run is None else run.folder.tokenizer(), known)
    if run is not None:  # scores on other text could not be compared with the parent's
        run.folder.check_tasks(prepared, known.keys() & prepared.tasks.keys(), "go on from its export")
    check_held_out(config, lineage, prepared, warn_on(console))
    check_drift_texts(lineage, prepared)
    will_restore = run is not None or not is_plain(parent)
    trainer = Trainer(config, prepared, folder, [], ranks, will_restore=will_restore)
    ranks.on_first(lambda: lineage.write(folder.parent_file))
    if lineage.generated is not None:
        text = generated_text(config, lineage)
        ranks.on_first(lambda: write_atomically(folder.dream_file, text.read_bytes()))
    ranks.on_first(lambda: describe_run(folder, config, prepared, console, None if run is None else run.folder))
    ranks.on_first(lambda: write_held_out(folder.held_out, held_out_documents(folder, config, prepared)))
    if run is not None and lineage.starts_over:
        _restore_run(trainer, replace(run, checkpoint=_at_step_zero(run.checkpoint)), is_restarted=True)
    elif run is not None:
        _restore_run(trainer, run)
    elif will_restore:
        trainer.state.restore(_checkpoint_of_model(trainer, load_model(parent).state_dict(), parent))
    if run is None:
        trainer.state.strategy.start_from_saved_model()
    if ranks.is_first:
        trainer.recorder.observers.append(keep_metrics_log(trainer))
    for record in () if run is None or lineage.starts_over else run.records:
        if record.kind not in ("test", "end", "resume", "stop"):
            trainer.recorder.emit(record)
    failpoint("inherit")
    if run is not None and not lineage.starts_over:
        _score_new_tasks(trainer, list(lineage.tasks))
    trainer.writer.save(trainer.state, trainer.recorder)
    trainer.writer.wait()
    trainer.recorder.close()


# ------------------------------------------------------------------------------------------------------ from a run


def _known_tasks(run: FinishedRun, lineage: Lineage) -> dict[str, Any]:
    """The parent's tasks, which have to be the same text in the child, as its data.json describes them.

    A task that is taught again has other text. In a log of its own, a child has a choice of the documents instead.
    """
    if lineage.starts_over:
        return {}
    return {name: task for name, task in run.folder.data()["tasks"].items() if name not in lineage.tasks}


def _at_step_zero(checkpoint: Checkpoint) -> Checkpoint:
    """The same weights, stores and optimizer for a log that begins again. The references of the old log go with it."""
    progress = Progress(loss_mean=float(checkpoint.state["progress"]["loss_mean"]))
    state = {**checkpoint.state, "progress": asdict(progress), "control_post": {}}
    return replace(checkpoint, step=0, state=state)


def _restore_run(trainer: Trainer, run: FinishedRun, *, is_restarted: bool = False) -> None:
    """Put the parent's last checkpoint into the child's trainer, as far as the child has the same settings."""
    checkpoint, is_new = _with_strategy(run, trainer.config, _with_replay(run, trainer))
    trainer.state.restore(checkpoint)
    trainer.state.progress.interpolation = 0.0  # what was restored is that of the parent's own end
    trainer.state.apply(trainer.state.asked)  # by the child's own control
    if is_restarted:
        if is_new:
            trainer.state.strategy.start_from_saved_model()
        return
    if is_new:  # the strategy did not see the last task end
        data, task = trainer.stream_data, trainer.schedule.at(run.checkpoint.step - 1).task
        trainer.state.strategy.end_task(data.sequences(task, data.steps_of(task), trainer.state.device))
    trainer.ranks.on_first(lambda: _copy_pre_anneal_checkpoint(run, trainer))
    trainer.recorder.resume_from([], trainer.state.progress.total_seconds)


def _with_replay(run: FinishedRun, trainer: Trainer) -> Checkpoint:
    """The parent's checkpoint with the child's replay settings: replay may be new, gone, or of another strength."""
    before, now = run.config, trainer.config
    names = ("replay", *(f"replay_{name}" for name in STRENGTHS))
    is_same = all(getattr(before.model, name) == getattr(now.model, name) for name in names)
    if is_same and before.control.mode == now.control.mode:
        return run.checkpoint
    fresh = {f"model.{name}": t for name, t in trainer.state.model.state_dict().items() if name.startswith("replay.")}
    changed = {f"model.replay.{name}" for name in STRENGTHS}
    tensors = {n: t for n, t in run.checkpoint.tensors.items() if not n.startswith("model.replay.") or n in fresh}
    tensors |= {n: t.clone() for n, t in fresh.items() if n in changed or n not in tensors}
    state = {**run.checkpoint.state, "asked": asdict(trainer.state.asked)}
    return replace(run.checkpoint, tensors=tensors, state=state)


def _with_strategy(run: FinishedRun, config: RunConfig, checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
    """The checkpoint with the child's strategy, and whether the state of that strategy is new.

    A strategy of the same name keeps its state, unless the new settings change the shapes of its tensors.
    """
    before, now = run.config.strategy, config.strategy
    if before == now:
        return checkpoint, False
    fresh, old = strategy_tensors(config, checkpoint), checkpoint.part("strategy")
    if before.name == now.name and all(name in old and old[name].shape == fresh[name].shape for name in fresh):
        return checkpoint, False
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("strategy.")}
    return replace(checkpoint, tensors=tensors | {f"strategy.{name}": tensor for name, tensor in fresh.items()}), True


def strategy_tensors(config: RunConfig, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The state with which a strategy begins on the weights of a checkpoint: some strategies copy them."""
    with rng_unchanged():
        net = build_model(config.model)
        load_state(net, checkpoint)
        return build_strategy(config.strategy, net).tensors


def _copy_pre_anneal_checkpoint(run: FinishedRun, trainer: Trainer) -> None:
    """Copy the checkpoint from which the new task starts, if the parent's end was annealed."""
    before = trainer.schedule.step_before_anneal(run.checkpoint.step)
    if before is None:
        return
    name = name_of(before)
    is_interpolated = alpha_of(run.checkpoint) is not None
    source = (run.folder.interpolated if is_interpolated else run.folder.checkpoints) / name
    if not source.is_dir():
        raise UserError(
            f"{run.folder} has no checkpoint from before its anneal, {source.parent.name}/{name}: run it again, or go "
            "on from its export."
        )
    shutil.copytree(source, trainer.folder.checkpoints / name)


def _score_new_tasks(trainer: Trainer, names: list[str]) -> None:
    """Record two scores of the new tasks: of untrained weights, and of the parent's weights."""
    config, stream_data, device = trainer.config, trainer.stream_data, trainer.state.device
    with rng_unchanged():  # modules draw weights of their own before ours replace them
        untrained = build_model(config.model, keyed_generator("weights", config.train.seed)).to(device)
    untrained.ranks = trainer.ranks
    for name in names:
        scores = score_task(
            untrained, stream_data.tasks[name], "validation", config.eval, stream_data.tokenizer, device
        )
        trainer.recorder.emit(Record("eval", 0, name, {f"eval/{name}/{key}": value for key, value in scores.items()}))
    trainer.evaluator.evaluate(names)


# ------------------------------------------------------------------------------------------------ from a saved model


def _checkpoint_of_model(trainer: Trainer, weights: dict[str, torch.Tensor], parent: Path) -> Checkpoint:
    """A checkpoint of step 0 with the weights of a saved model. Replay stores that it lacks begin empty."""
    beginning = trainer.state.to_checkpoint({})
    saved = {f"model.{name}": tensor for name, tensor in weights.items()}
    shapes = {name: tensor.shape for name, tensor in saved.items()}
    expected = {f"model.{name}": tensor.shape for name, tensor in trainer.state.model.state_dict().items()}
    wrong = [name for name in expected.keys() | saved.keys() if expected.get(name) != shapes.get(name)]
    wrong = [name for name in wrong if not name.startswith("model.replay.")]
    if wrong:
        raise UserError(
            f"{min(wrong).removeprefix('model.')} of {parent} does not fit the settings: leave model.… as it was saved."
        )
    kept = {name: tensor for name, tensor in saved.items() if expected.get(name) == tensor.shape}
    others = {name: tensor for name, tensor in beginning.tensors.items() if name not in kept}
    checkpoint = replace(beginning, tensors={**others, **kept}, rows={})
    if not trainer.state.strategy.tensors:
        return checkpoint
    strategy = strategy_tensors(trainer.config, checkpoint)
    return replace(checkpoint, tensors=checkpoint.tensors | {f"strategy.{name}": t for name, t in strategy.items()})
