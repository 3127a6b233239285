"""A run that goes on from another run, or from a saved model: all that resuming it takes, written at once.

The new folder gets its name when it is whole. Before that a kill leaves nothing but a hidden folder, and the same
command begins anew; after it the child is a run like any other.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from trc2.backbones.registry import build_model
from trc2.backbones.saved import is_plain, load_model
from trc2.config import RunConfig
from trc2.continuing.heldout import check_held_out
from trc2.continuing.request import ContinuationRequest
from trc2.distributed.group import Ranks
from trc2.errors import UserError
from trc2.evaluation.tasks import score_task
from trc2.nn.keyed import keyed_generator
from trc2.runs.checkpoint import Checkpoint, load_state, name_of, weights_of
from trc2.runs.environment import weight_checksums
from trc2.runs.folder import RunFolder
from trc2.runs.lineage import Lineage, relative_to
from trc2.runs.lock import LOCK, OWNER, lock_folder
from trc2.runs.records import Record
from trc2.runs.schedule import TaskSchedule
from trc2.strategies import build_strategy
from trc2.stream.cache import digest
from trc2.system.failpoints import failpoint
from trc2.system.files import sync_folder
from trc2.system.rng import rng_unchanged
from trc2.training.loop import Trainer
from trc2.training.setup import describe_run, keep_metrics_log, prepare_with_progress, set_up_process, warn_on

STRENGTHS = ("coefficient", "batch_size", "long_fraction", "share")

# ------------------------------------------------------------------------------------------------------ from a run


@dataclass(frozen=True)
class FinishedParent:
    """A finished run that can be gone on from."""

    folder: RunFolder
    config: RunConfig
    records: list[Record]
    checkpoint: Checkpoint


def _finished(folder: RunFolder, console: Console) -> FinishedParent:
    config = folder.config()
    assert config.stream is not None
    if config.stream.mode == "joint":
        raise UserError(
            f"{folder} learnt all its tasks at once (stream.mode=joint), so none of them has an end from which "
            "forgetting could be measured: continue a sequential run, or the export of this one."
        )
    records = folder.records()
    if not any(record.kind == "end" for record in records):
        raise UserError(f"{folder} is not finished: `trc2 resume {folder}` first.")
    checkpoint = folder.newest_checkpoint(warn_on(console))
    if checkpoint is None or checkpoint.step != TaskSchedule.of_run(config).total_steps:
        raise UserError(f"{folder} has no checkpoint of its end: resume it, or run it again.")
    return FinishedParent(folder, config, records, checkpoint)


def _inherit(
    ended: FinishedParent, config: RunConfig, lineage: Lineage, folder: RunFolder, console: Console, ranks: Ranks
) -> None:
    """Write all that resuming takes: description, the parent's records and state, the newcomers' first scores."""
    set_up_process(config)
    prepared = prepare_with_progress(config, console, ended.folder.tokenizer(), ended.folder.data()["tasks"])
    check_held_out(config, lineage, prepared, warn_on(console))
    trainer = Trainer(config, prepared, folder, [], ranks, will_restore=True)
    ranks.on_first(lambda: lineage.write(folder.parent_file))
    ranks.on_first(lambda: describe_run(folder, config, prepared, console, ended.folder))
    checkpoint, is_new = _with_strategy(ended, config, _with_replay(ended, trainer))
    trainer.state.restore(checkpoint)
    trainer.state.apply(trainer.state.asked)  # by the child's own control
    if is_new:  # it was not there when the last task ended
        task = trainer.schedule.at(ended.checkpoint.step - 1).task
        trainer.state.strategy.end_task(
            trainer.stream_data.sequences(task, trainer.stream_data.steps_of(task), trainer.state.device)
        )
    ranks.on_first(lambda: _keep_branch_point(ended, trainer))
    trainer.recorder.resume_from([], trainer.state.progress.total_seconds)
    if ranks.is_first:
        trainer.recorder.observers.append(keep_metrics_log(trainer))
    for record in ended.records:
        if record.kind not in ("test", "end", "resume"):
            trainer.recorder.emit(record)
    failpoint("inherit")
    _score_newcomers(trainer, list(lineage.tasks))
    trainer.writer.save(trainer.state, trainer.recorder)
    trainer.writer.wait()
    trainer.recorder.close()


def _with_replay(ended: FinishedParent, trainer: Trainer) -> Checkpoint:
    """The parent's state as the child's settings have it: replay may be new, gone, or of another strength."""
    before, now = ended.config, trainer.config
    strengths = [f"replay_{name}" for name in STRENGTHS]
    if before.control.mode == now.control.mode and all(
        getattr(before.model, name) == getattr(now.model, name) for name in ("replay", *strengths)
    ):
        return ended.checkpoint
    fresh = {f"model.{name}": t for name, t in trainer.state.model.state_dict().items() if name.startswith("replay.")}
    changed = {f"model.replay.{name}" for name in STRENGTHS}
    tensors = {n: t for n, t in ended.checkpoint.tensors.items() if not n.startswith("model.replay.") or n in fresh}
    tensors |= {n: t.clone() for n, t in fresh.items() if n in changed or n not in tensors}
    state = {**ended.checkpoint.state, "asked": asdict(trainer.state.asked)}
    return replace(ended.checkpoint, tensors=tensors, state=state)


def _with_strategy(ended: FinishedParent, config: RunConfig, checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
    """The same, with a strategy that is not the parent's; whether its state is new.

    One of the same name goes on with what it knows, unless its settings give that another shape.
    """
    before, now = ended.config.strategy, config.strategy
    if before == now:
        return checkpoint, False
    fresh, known = strategy_tensors(config, checkpoint), checkpoint.part("strategy")
    if before.name == now.name and all(name in known and known[name].shape == fresh[name].shape for name in fresh):
        return checkpoint, False
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("strategy.")}
    return replace(checkpoint, tensors=tensors | {f"strategy.{name}": tensor for name, tensor in fresh.items()}), True


def strategy_tensors(config: RunConfig, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """What a strategy begins with on the weights of a checkpoint: some copy them."""
    with rng_unchanged():
        net = build_model(config.model)
        load_state(net, checkpoint)
        return build_strategy(config.strategy, net).tensors


def _keep_branch_point(ended: FinishedParent, trainer: Trainer) -> None:
    """What the new task goes on from, if the parent's end was annealed on a branch."""
    before = trainer.schedule.step_before_anneal(ended.checkpoint.step)
    if before is None:
        return
    name = name_of(before)
    if not (ended.folder.checkpoints / name).is_dir():
        raise UserError(f"{ended.folder} has no checkpoint from before its anneal, {name}: run it again.")
    shutil.copytree(ended.folder.checkpoints / name, trainer.folder.checkpoints / name)


def _score_newcomers(trainer: Trainer, names: list[str]) -> None:
    """The new tasks' scores before any training, on untrained weights, and just before their own training."""
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


def _adopt(
    parent: Path, config: RunConfig, lineage: Lineage, folder: RunFolder, console: Console, ranks: Ranks
) -> None:
    """Write a run that stands before its first step, with the weights of a saved model."""
    set_up_process(config)
    prepared = prepare_with_progress(config, console)
    check_held_out(config, lineage, prepared, warn_on(console))
    trainer = Trainer(config, prepared, folder, [], ranks, will_restore=not is_plain(parent))
    ranks.on_first(lambda: lineage.write(folder.parent_file))
    ranks.on_first(lambda: describe_run(folder, config, prepared, console))
    if not is_plain(parent):
        trainer.state.restore(_with_weights(trainer, load_model(parent).state_dict(), parent))
    trainer.state.strategy.start_from_saved_model()
    if ranks.is_first:
        trainer.recorder.observers.append(keep_metrics_log(trainer))
    failpoint("inherit")
    trainer.writer.save(trainer.state, trainer.recorder)
    trainer.writer.wait()
    trainer.recorder.close()


def _with_weights(trainer: Trainer, weights: dict[str, torch.Tensor], parent: Path) -> Checkpoint:
    """The beginning of a run, but for its weights; replay stores that did not come along begin empty."""
    beginning = trainer.state.to_checkpoint({})
    own = {f"model.{name}": tensor for name, tensor in weights.items()}
    expected = {f"model.{name}": tensor.shape for name, tensor in trainer.state.model.state_dict().items()}
    stores = {name for name in (*own, *expected) if name.startswith("model.replay.")}
    wrong = [n for n in expected.keys() | own.keys() if n not in stores and expected.get(n) != _shape(own.get(n))]
    if wrong:
        raise UserError(
            f"{min(wrong).removeprefix('model.')} of {parent} does not fit the settings: leave model.… as it was saved."
        )
    kept = {name: tensor for name, tensor in own.items() if expected.get(name) == tensor.shape}
    others = {name: tensor for name, tensor in beginning.tensors.items() if name not in kept}
    checkpoint = replace(beginning, tensors={**others, **kept}, rows={})
    if not trainer.state.strategy.tensors:
        return checkpoint
    strategy = strategy_tensors(trainer.config, checkpoint)
    return replace(checkpoint, tensors=checkpoint.tensors | {f"strategy.{name}": t for name, t in strategy.items()})


def _shape(tensor: torch.Tensor | None) -> torch.Size | None:
    return None if tensor is None else tensor.shape


# ------------------------------------------------------------------------------------------------------ whole or not


def make_child(
    parent: Path, path: Path, request: ContinuationRequest, config: RunConfig, console: Console, ranks: Ranks
) -> None:
    """Make the folder of a child, up to the point from which it is resumed."""
    run = RunFolder(parent)
    ended = _finished(run, console) if run.is_run else None
    lineage = _lineage(parent, ended, path, request, config)
    path = path.absolute()
    partial = path.with_name(f".{path.name}.partial")
    with ExitStack() as held:
        ranks.on_first(lambda: held.enter_context(lock_folder(partial)))
        ranks.on_first(lambda: _empty(partial))
        try:
            if ended is None:
                _adopt(parent, config, lineage, RunFolder(partial), console, ranks)
            else:
                _inherit(ended, config, lineage, RunFolder(partial), console, ranks)
        except UserError:
            if ranks.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        failpoint("inherited")
        ranks.on_first(lambda: os.replace(partial, path))
        ranks.on_first(lambda: sync_folder(path.parent))


def _lineage(
    parent: Path, ended: FinishedParent | None, path: Path, request: ContinuationRequest, config: RunConfig
) -> Lineage:
    assert config.stream is not None
    step = 0 if ended is None else ended.checkpoint.step
    before = None if ended is None else ended.folder.lineage()
    kept = (*(() if before is None else before.kept), *(task.name for task in request.keep))
    return Lineage(
        str(parent), step, tuple(task.name for task in request.tasks), is_run=ended is not None,
        weights=parent_weights(parent, None if ended is None else step, config.stream.cache), limit=request.limit,
        prediction=request.prediction, kept=kept, relative=relative_to(path, parent),
    )  # fmt: skip


def parent_weights(parent: Path, step: int | None, cache: Path) -> str:
    """The checksum of the weights a child begins with: of a run's checkpoint of a step, or of a saved model."""
    if step is None:
        return digest(weight_checksums(str(parent), cache))
    return weights_of(RunFolder(parent).checkpoints / name_of(step))


def _empty(partial: Path) -> None:
    """Remove what an earlier attempt left in a folder; its lock stays, we hold it."""
    for path in partial.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LOCK, OWNER):
            path.unlink()
