"""A run that goes on from another run, or from a saved model: all that resuming it takes, written at once.

The new folder gets its name when it is whole. Before that a kill leaves nothing but a hidden folder, and the same
command begins anew; after it the child is a run like any other.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trc2.artifact import CONFIG_FILE, is_plain, load_config, load_model, trained_length
from trc2.backbones.registry import build_model
from trc2.config import MODELS, RunConfig, TaskConfig
from trc2.config.run import apply_overrides
from trc2.errors import UserError, brief
from trc2.failpoint import failpoint
from trc2.files import sync_folder
from trc2.nn.keyed import keyed_generator
from trc2.ranks import Ranks
from trc2.runs.ancestry import Ancestry
from trc2.runs.checkpoint import Checkpoint, load_state, name_of
from trc2.runs.folder import RunFolder
from trc2.runs.lock import LOCK, OWNER, lock_folder
from trc2.runs.plan import Plan
from trc2.runs.records import Record
from trc2.strategies import build_strategy
from trc2.train.chance import chance_unmoved
from trc2.train.evaluate import score_task
from trc2.train.loop import Trainer
from trc2.train.start import describe_run, keep_diary, prepare_with_progress, set_up_process, warn_on

LEARNING_RATE = 1e-4  # for a saved model, which does not say how it was trained; the default would shake it
# By what earlier scores were measured, or steps were counted: a child whose steps follow its parent's keeps it.
KEPT = frozenset({
    "budget.match", "budget.reference", "train.sequence_length", "train.batch_size", "train.micro_batches",
    "train.schedule", "train.anneal_share", "eval.batch_size", "eval.max_batches", "eval.text_sequences", "stream.mode",
    "stream.order", "stream.only", "stream.tokenizer", "stream.control_batches", "stream.replay_seed_files",
})  # fmt: skip
# Of the model only what is no part of its function may change.
CHANGEABLE = frozenset({
    "model.replay", "model.replay_coefficient", "model.replay_batch_size", "model.replay_share",
    "model.replay_long_fraction", "model.replay_seed", "model.dropout",
})  # fmt: skip
STRENGTHS = ("coefficient", "batch_size", "long_fraction", "share")


@dataclass(frozen=True)
class Wish:
    """What a child is to learn, and how it is to differ from its parent.

    `keep` is text a saved model knew: measured, not trained. `share` is replayed from now on, whatever the parent
    replayed and whatever its controller would say.
    """

    tasks: tuple[TaskConfig, ...]
    share: float | None = None
    overrides: tuple[str, ...] = ()
    keep: tuple[TaskConfig, ...] = ()


def default_folder(parent: Path, tasks: Sequence[TaskConfig]) -> Path:
    """PARENT+TASK, beside the parent."""
    home = parent.resolve()
    if not home.name:
        raise UserError(f"{parent} is not a run folder: name one.")
    return (parent if parent.name else home).with_name("+".join([home.name, *(task.name for task in tasks)]))


def child_config(parent: Path, wish: Wish, folder: Path) -> RunConfig:
    """What the child will be, before anything of it is made."""
    if not wish.tasks:
        raise UserError("There is no task to go on with: name at least one.")
    run = RunFolder(parent)
    if run.is_run or not (parent / CONFIG_FILE).is_file():
        return _longer_config(run, run.config(), wish, folder)
    return _config_of_model(parent, wish, folder)


# ------------------------------------------------------------------------------------------------------ from a run


def _longer_config(parent: RunFolder, config: RunConfig, wish: Wish, folder: Path) -> RunConfig:
    """The parent's settings with more tasks; a schedule with a horizon starts anew per task."""
    if config.stream is None:
        raise UserError(f"{parent} has no stream of tasks: there is nothing to go on with.")
    if wish.keep:
        raise UserError(f"{parent} is a run, which knows its own tasks: leave {wish.keep[0].name} out of what is kept.")
    stream = config.stream.model_dump(mode="json")
    known, new = [task["name"] for task in stream["tasks"]], [task.name for task in wish.tasks]
    for name in new:
        if name in known:
            raise UserError(f"{parent} has learnt a task '{name}' already: give the new one another name.")
    stream["tasks"] = [*stream["tasks"], *(task.model_dump(mode="json") for task in wish.tasks)]
    if stream["order"] is not None:  # new tasks come last
        stream["order"] = [*stream["order"], *new]
    if stream["only"] is not None:  # the tasks that are trained: the new ones are
        stream["only"] = [*stream["only"], *new]
    values: dict[str, Any] = config.model_dump(mode="json")
    values["stream"] = stream
    if not config.train.branches:
        values["train"]["schedule"] = "per_task"
    values["output"]["folder"] = str(folder)
    longer = RunConfig(**_with_share(parent, config, values, wish.share))
    changed = RunConfig(**apply_overrides(longer.model_dump(mode="json"), wish.overrides))
    _check_changes(parent, longer, changed, len(known))
    _check_steps(parent, config, changed)
    return changed.replace(output={**changed.output.model_dump(), "folder": folder})


def _with_share(parent: RunFolder | Path, config: RunConfig, values: dict[str, Any], share: float | None) -> Any:
    """The same settings, by which a fixed share is replayed."""
    if share is None:
        return values
    if not config.model.replay or config.model.replay_share is None:
        raise UserError(
            f"{parent} does not replay by a share of the tokens, so none can be set: train with "
            "model.replay_share, which model=hf has by itself."
        )
    values["model"]["replay_share"] = share
    values["control"]["mode"] = "fixed"
    return values


def _check_changes(parent: RunFolder, longer: RunConfig, changed: RunConfig, known: int) -> None:
    """Refuse what earlier scores rest on."""
    assert longer.stream is not None
    assert changed.stream is not None
    old, new = _flat(longer), _flat(changed)
    differing = [path for path in dict.fromkeys([*old, *new]) if old.get(path) != new.get(path)]
    wrong = [path for path in differing if path in KEPT or _is_function(path)]
    if not wrong and changed.stream.tasks[:known] != longer.stream.tasks[:known]:
        raise UserError(
            f"The earlier tasks of {parent} are over and cannot be changed: change only those that are new."
        )
    if wrong:
        raise UserError(
            f"{wrong[0]}={brief(new.get(wrong[0]), 80)} cannot be set in a run that goes on from {parent}, whose steps "
            f"and scores rest on {brief(old.get(wrong[0]), 80)}: leave it out, or go on from its export."
        )
    if [task.name for task in changed.stream.tasks] != [task.name for task in longer.stream.tasks]:
        raise UserError(f"The overrides would change which tasks {parent} is to learn: name them by --task.")
    if longer.strategy.serves_other_weights and changed.strategy != longer.strategy:
        raise UserError(
            f"{parent} is used with the weights of its strategy {longer.strategy.name}, which cannot be changed on the "
            "way: leave strategy out, or go on from its export."
        )


def _check_steps(parent: RunFolder, config: RunConfig, changed: RunConfig) -> None:
    """Refuse what would give tasks that are over another number of steps: a budget counts what a step costs."""
    past, plan = Plan.of_run(config).stretches, Plan.of_run(changed).stretches
    if config.stream is not None and config.stream.mode == "sequential" and plan[: len(past)] != past:
        raise UserError(
            f"budget.match={config.budget.match} would give the earlier tasks of {parent} other steps than they had, "
            "because a step would cost more or less: leave replay and strategy as they are, or go on from its export."
        )


def _is_function(path: str) -> bool:
    """Whether a setting says what the network computes."""
    return path.startswith("model.") and path not in CHANGEABLE and not path.startswith("model.lambda_")


def _flat(config: RunConfig) -> dict[str, Any]:
    """Every setting by section and name; the tasks are looked at on their own."""
    values = config.model_dump(mode="json")
    flat = {f"{section}.{name}": value for section, fields in values.items() for name, value in fields.items()}
    flat.pop("stream.tasks", None)
    return flat


@dataclass(frozen=True)
class Ended:
    """A finished run that can be gone on from."""

    folder: RunFolder
    config: RunConfig
    records: list[Record]
    checkpoint: Checkpoint


def _finished(folder: RunFolder, console: Console) -> Ended:
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
    if checkpoint is None or checkpoint.step != Plan.of_run(config).total_steps:
        raise UserError(f"{folder} has no checkpoint of its end: resume it, or run it again.")
    return Ended(folder, config, records, checkpoint)


def _inherit(
    ended: Ended, config: RunConfig, new: list[str], folder: RunFolder, console: Console, ranks: Ranks
) -> None:
    """Write all that resuming takes: description, the parent's records and state, the newcomers' first scores."""
    set_up_process(config)
    prepared = prepare_with_progress(config, console, ended.folder.tokenizer(), ended.folder.data()["tasks"])
    trainer = Trainer(config, prepared, folder, [], ranks, will_restore=True)
    ancestry = Ancestry(str(ended.folder), ended.checkpoint.step, tuple(new), is_run=True)
    ranks.on_first(lambda: ancestry.write(folder.parent_file))
    ranks.on_first(lambda: describe_run(folder, config, prepared, console, ended.folder))
    checkpoint, is_new = _with_strategy(ended, config, _with_replay(ended, trainer))
    trainer.state.restore(checkpoint)
    trainer.state.apply(trainer.state.asked)  # by the child's own control
    if is_new:  # it was not there when the last task ended
        task = trainer.plan.at(ended.checkpoint.step - 1).task
        trainer.state.strategy.end_task(trainer.feed.sequences(task, trainer.feed.steps_of(task), trainer.state.device))
    ranks.on_first(lambda: _keep_branch_point(ended, trainer))
    trainer.story.go_on([], trainer.state.progress.total_seconds)
    if ranks.is_first:
        trainer.story.observers.append(keep_diary(trainer))
    for record in ended.records:
        if record.kind not in ("test", "end", "resume"):
            trainer.story.tell(record)
    failpoint("inherit")
    _score_newcomers(trainer, new)
    trainer.saver.save(trainer.state, trainer.story)
    trainer.saver.writer.wait()
    trainer.story.close()


def _with_replay(ended: Ended, trainer: Trainer) -> Checkpoint:
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


def _with_strategy(ended: Ended, config: RunConfig, checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
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
    with chance_unmoved():
        net = build_model(config.model)
        load_state(net, checkpoint)
        return build_strategy(config.strategy, net).tensors


def _keep_branch_point(ended: Ended, trainer: Trainer) -> None:
    """What the new task goes on from, if the parent's end was annealed on a branch."""
    before = trainer.plan.goes_back_to(ended.checkpoint.step)
    if before is None:
        return
    name = name_of(before)
    if not (ended.folder.checkpoints / name).is_dir():
        raise UserError(f"{ended.folder} has no checkpoint from before its anneal, {name}: run it again.")
    shutil.copytree(ended.folder.checkpoints / name, trainer.folder.checkpoints / name)


def _score_newcomers(trainer: Trainer, names: list[str]) -> None:
    """The new tasks' scores before any training, on untrained weights, and just before their own training."""
    config, feed, device = trainer.config, trainer.feed, trainer.state.device
    with chance_unmoved():  # modules draw weights of their own before ours replace them
        untrained = build_model(config.model, keyed_generator("weights", config.train.seed)).to(device)
    untrained.ranks = trainer.ranks
    for name in names:
        scores = score_task(untrained, feed.tasks[name], "validation", config.eval, feed.tokenizer, device)
        trainer.story.tell(Record("eval", 0, name, {f"eval/{name}/{key}": value for key, value in scores.items()}))
    trainer.measure.evaluate(names)


# ------------------------------------------------------------------------------------------------ from a saved model


def _config_of_model(parent: Path, wish: Wish, folder: Path) -> RunConfig:
    """Settings for a model that says what it is, but not how it was trained or on what.

    Replay is on where its backbone has it by default: an export leaves the stores behind, and says so by replay=false.
    """
    home = str(parent.resolve())
    if is_plain(parent):
        model: dict[str, Any] = {"name": "hf", "pretrained": home}
    else:
        known = load_config(parent)
        replay = known.replay or bool(type(known).model_fields["replay"].default)
        model = {**known.model_dump(mode="json"), "replay": replay, "replay_seed": None}
    length = trained_length(parent)
    usual = MODELS[model["name"]].model_fields["replay_chunk_length"].default
    model["replay_chunk_length"] = min(model.get("replay_chunk_length", usual), length)
    trained = [task.name for task in wish.tasks]
    values: dict[str, Any] = {
        "model": model,
        "stream": {
            "tasks": [task.model_dump(mode="json") for task in (*wish.keep, *wish.tasks)],
            "only": trained if wish.keep else None,
            "tokenizer": {} if is_plain(parent) else {"path": home},
        },
        "train": {"sequence_length": length, "learning_rate": LEARNING_RATE},
        "output": {"folder": str(folder)},
    }
    if wish.share is not None:
        values = _with_share(parent, RunConfig(**values), {"control": {}, **values}, wish.share)
    changed = RunConfig(**apply_overrides(values, wish.overrides))
    return changed.replace(output={**changed.output.model_dump(), "folder": folder})


def _adopt(parent: Path, config: RunConfig, new: list[str], folder: RunFolder, console: Console, ranks: Ranks) -> None:
    """Write a run that stands before its first step, with the weights of a saved model."""
    set_up_process(config)
    prepared = prepare_with_progress(config, console)
    trainer = Trainer(config, prepared, folder, [], ranks, will_restore=not is_plain(parent))
    ranks.on_first(lambda: Ancestry(str(parent), 0, tuple(new), is_run=False).write(folder.parent_file))
    ranks.on_first(lambda: describe_run(folder, config, prepared, console))
    if not is_plain(parent):
        trainer.state.restore(_with_weights(trainer, load_model(parent).state_dict(), parent))
    if ranks.is_first:
        trainer.story.observers.append(keep_diary(trainer))
    failpoint("inherit")
    trainer.saver.save(trainer.state, trainer.story)
    trainer.saver.writer.wait()
    trainer.story.close()


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


def make_child(parent: Path, path: Path, wish: Wish, config: RunConfig, console: Console, ranks: Ranks) -> None:
    """Make the folder of a child, up to the point from which it is resumed."""
    run, new = RunFolder(parent), [task.name for task in wish.tasks]
    ended = _finished(run, console) if run.is_run else None
    partial = path.with_name(f".{path.name}.partial")
    with ExitStack() as held:
        ranks.on_first(lambda: held.enter_context(lock_folder(partial)))
        ranks.on_first(lambda: _empty(partial))
        try:
            if ended is None:
                _adopt(parent, config, new, RunFolder(partial), console, ranks)
            else:
                _inherit(ended, config, new, RunFolder(partial), console, ranks)
        except UserError:
            if ranks.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        failpoint("inherited")
        ranks.on_first(lambda: os.replace(partial, path))
        ranks.on_first(lambda: sync_folder(path.parent))


def _empty(partial: Path) -> None:
    """Remove what an earlier attempt left in a folder; its lock stays, we hold it."""
    for path in partial.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LOCK, OWNER):
            path.unlink()
