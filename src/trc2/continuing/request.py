"""The settings of a run that continues another run or a saved model, and the changes that are not allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from trc2.backbones.saved import CONFIG_FILE, is_plain, is_saved_model, load_config, trained_length
from trc2.config import MODELS, ReplayControlConfig, RunConfig, TaskConfig
from trc2.config.run import apply_overrides
from trc2.config.section import is_within
from trc2.continuing.earlier import SUFFIX, base_name, earlier_tasks
from trc2.errors import UserError, brief
from trc2.recall.store import store_path
from trc2.runs.folder import RunFolder
from trc2.runs.identity import differences
from trc2.runs.lineage import Prediction
from trc2.runs.schedule import TaskSchedule
from trc2.stream.sources import has_documents

JUDGED_SHARE = 0.5  # of the documents of --keep that are replayed too
MAX_EVALUATIONS = 4  # within a task of many steps
STOP_EVALUATIONS = 10  # within a task, if the run may stop early
MIN_DIVIDED = 20  # documents. A text of fewer is judged whole and not replayed
LEARNING_RATE = 1e-4  # for a saved model. The default is for new weights
# Earlier scores and steps depend on these settings, so a child that follows a run keeps them.
KEPT = frozenset({
    "budget.match", "budget.reference", "train.sequence_length", "train.batch_size", "train.micro_batches",
    "train.optimizer", "train.schedule", "train.anneal_share", "eval.batch_size", "eval.max_batches",
    "eval.text_sequences", "stream.mode", "stream.order", "stream.only", "stream.tokenizer", "stream.control_batches",
    "stream.replay_prefill_files", "stream.replay_prefill_tasks",
})  # fmt: skip
# A child with a metrics log of its own keeps fewer.
KEPT_IN_NEW_LOG = frozenset({"stream.tokenizer", "stream.only", "stream.order", "train.optimizer"})
# The settings of the model that may change: they do not change the function it computes.
CHANGEABLE = frozenset({
    "model.replay", "model.replay_coefficient", "model.replay_batch_size", "model.replay_share",
    "model.replay_long_fraction", "model.replay_seed", "model.dropout",
})  # fmt: skip


@dataclass(frozen=True)
class ContinuationRequest:
    """The tasks that a child learns, and how it differs from its parent.

    `keep` is text that a saved model knows: it is measured, not trained. `share` replaces the replay settings and the
    controller of the parent. `limit` is how much the perplexity of a past task may rise. `prediction` is the result of
    trial runs. `stop_at` is the rise at which the training stops. `max_drift` is how far the predictions may move.
    `generated` is the name of the text in `keep` that the parent generated itself. `interpolate` is α or auto.
    """

    tasks: tuple[TaskConfig, ...]
    share: float | None = None
    overrides: tuple[str, ...] = ()
    keep: tuple[TaskConfig, ...] = ()
    limit: float | None = None
    prediction: Prediction | None = None
    stop_at: float | None = None
    max_drift: float | None = None
    generated: str | None = None
    interpolate: float | str | None = None


def starts_over(run: RunFolder, request: ContinuationRequest) -> bool:
    """Whether a child begins a log of its own, with a bounded past. See `trc2.continuing.earlier`.

    It does if the run is that of a version, or if the child is taught a task that the run knows already.
    """
    config = run.config()
    names = set() if config.stream is None else {base_name(task.name) for task in config.stream.tasks}
    return run.is_of_version or not names.isdisjoint(task.name for task in request.tasks)


def child_config(parent: Path, request: ContinuationRequest, folder: Path) -> RunConfig:
    """The settings of the child."""
    if not request.tasks:
        raise UserError("There is no task to go on with: name at least one.")
    config = _config_for(parent, request, folder)
    if request.stop_at is not None and config.train.branches:
        raise UserError(
            f"train.schedule={config.train.schedule} lowers the learning rate only before the end of a task, so "
            f"--stop-at {request.stop_at:g} would end it too early: leave it out, or go on from the export of {parent}."
        )
    return config


def _config_for(parent: Path, request: ContinuationRequest, folder: Path) -> RunConfig:
    run = RunFolder(parent)
    if run.is_run:
        make = _restarted_config if starts_over(run, request) else _longer_config
        return make(run, _as_ended(run), request, folder)
    if not parent.is_dir():
        home = parent.resolve().parent
        others = [path.name for path in home.iterdir() if path.is_dir()] if home.is_dir() else []
        near = get_close_matches(parent.name, others, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "name a run folder, or a folder with a saved model."
        raise UserError(f"There is no folder {parent}: {hint}")
    if not is_saved_model(parent):
        raise UserError(
            f"{parent} holds neither a run ({run.config_file.name}) nor a saved model ({CONFIG_FILE}): name either."
        )
    return _config_of_model(parent, request, folder)


# ------------------------------------------------------------------------------------------------------ from a run


def _as_ended(parent: RunFolder) -> RunConfig:
    """The parent's settings with the steps that it took: fewer than planned if it stopped early."""
    config, stop = parent.config(), parent.stop()
    if stop is None or config.stream is None:
        return config
    spans = parent.schedule(config).spans
    steps = {span.task: span.end - span.start for span in spans}
    stream = config.stream.model_dump(mode="json")
    dropped = {task.name for task in config.stream.trained} - steps.keys()
    stream["tasks"] = [
        {**task, "steps": steps.get(task["name"], task["steps"])}
        for task in stream["tasks"]
        if task["name"] not in dropped
    ]
    for setting in ("order", "only"):
        if stream[setting] is not None:
            stream[setting] = [name for name in stream[setting] if name not in dropped]
    ended = RunConfig(**{**config.model_dump(mode="json"), "stream": stream})
    if TaskSchedule.of_run(ended).spans != spans:
        raise UserError(
            f"{parent} stopped at step {stop.step}, which budget.match={config.budget.match} cannot express: go on "
            "from its export."
        )
    return ended


def _longer_config(parent: RunFolder, config: RunConfig, request: ContinuationRequest, folder: Path) -> RunConfig:
    """The parent's settings with more tasks. A schedule with a horizon starts again with each task."""
    if config.stream is None:
        raise UserError(f"{parent} has no stream of tasks: there is nothing to go on with.")
    if request.keep:
        raise UserError(
            f"{parent} is a run, which knows its own tasks: leave {request.keep[0].name} out of what is kept."
        )
    stream = config.stream.model_dump(mode="json")
    old, new = [task["name"] for task in stream["tasks"]], [task.name for task in request.tasks]
    stream["tasks"] = [*stream["tasks"], *(task.model_dump(mode="json") for task in request.tasks)]
    for setting in ("order", "only"):  # new tasks come last, and are trained
        if stream[setting] is not None:
            stream[setting] = [*stream[setting], *new]
    values: dict[str, Any] = config.model_dump(mode="json")
    values["stream"] = stream
    if not config.train.branches:
        values["train"]["schedule"] = "per_task"
    values["output"]["folder"] = str(folder)
    values["eval"]["every_steps"] = _every_steps(config, request)
    longer = RunConfig(**_with_share(parent, config, values, request.share))
    changed = RunConfig(**apply_overrides(longer.model_dump(mode="json"), request.overrides))
    _check_changes(parent, longer, changed, len(old))
    _check_steps(parent, config, changed)
    return changed.replace(output={**changed.output.model_dump(), "folder": folder})


def _restarted_config(parent: RunFolder, config: RunConfig, request: ContinuationRequest, folder: Path) -> RunConfig:
    """The parent's settings with a log of its own: the new tasks are trained, and texts of the past are measured."""
    if config.stream is None:
        raise UserError(f"{parent} has no stream of tasks: there is nothing to go on with.")
    if config.model.name == "lora_drs":
        raise UserError(
            f"{parent} has an adapter for each of its tasks (lora_drs), which cannot be counted again: give the new "
            "task a name of its own, outside of a versions folder."
        )
    taught = [task.name for task in request.tasks]
    if reserved := [name for name in taught if name.endswith(SUFFIX)]:
        raise UserError(f"The task name {reserved[0]} is used for earlier text: leave {SUFFIX} out.")
    past = earlier_tasks(parent, taught)
    known = {base_name(task.name) for task in past}
    past += [task.replace(holdout=1.0) for task in request.keep if task.name not in known]
    values: dict[str, Any] = config.model_dump(mode="json")
    values["stream"] |= {
        "tasks": [task.model_dump(mode="json") for task in (*past, *request.tasks)],
        "order": None, "only": taught, "mode": "sequential", "replay_prefill_files": [], "replay_prefill_tasks": [],
    }  # fmt: skip
    values["output"]["folder"] = str(folder)
    values["eval"]["every_steps"] = _every_steps(config, request)
    same = RunConfig(**_with_share(parent, config, values, request.share))
    changed = RunConfig(**apply_overrides(same.model_dump(mode="json"), request.overrides))
    assert changed.stream is not None
    for path, (old, new) in differences(same, changed).items():
        if _changes_function(path) or is_within(path, KEPT_IN_NEW_LOG):
            raise UserError(
                f"{path}={brief(new, 80)} cannot be set in a run that goes on from {parent}, which has "
                f"{brief(old, 80)}: leave it out, or go on from its export."
            )
    if [task.name for task in changed.stream.tasks] != [task.name for task in (*past, *request.tasks)]:
        raise UserError(f"The overrides would change which tasks {parent} is to learn: name them by --task.")
    return changed.replace(output={**changed.output.model_dump(), "folder": folder})


def _every_steps(config: RunConfig, request: ContinuationRequest) -> int:
    """Steps between evaluations: the parent's number, or more in a long task, or fewer if the run may stop early."""
    usual = config.eval.every_steps
    if request.stop_at is not None:
        return min(usual, _watchful(request.tasks))
    return max(usual, max(task.steps for task in request.tasks) // MAX_EVALUATIONS)


def _with_share(parent: RunFolder | Path, config: RunConfig, values: dict[str, Any], share: float | None) -> Any:
    """The same settings with a fixed share of replay."""
    if share is None:
        return values
    if not config.model.replay:
        raise UserError(f"{parent} has no replay, so no share of it can be set: train with model.replay=true.")
    fields = type(config.model).model_fields  # λ_rep and B_R would contradict the share
    values["model"] |= {name: fields[name].default for name in ("replay_coefficient", "replay_batch_size")}
    values["model"]["replay_share"] = share
    values["control"]["mode"] = "fixed"
    return values


def _check_changes(parent: RunFolder, longer: RunConfig, changed: RunConfig, num_old: int) -> None:
    """Reject changes of settings on which earlier scores depend."""
    assert longer.stream is not None
    assert changed.stream is not None
    changes = {path: values for path, values in differences(longer, changed).items() if path != "stream.tasks"}
    wrong = [path for path in changes if is_within(path, KEPT) or _changes_function(path)]
    if not wrong and changed.stream.tasks[:num_old] != longer.stream.tasks[:num_old]:
        raise UserError(
            f"The earlier tasks of {parent} are over and cannot be changed: change only those that are new."
        )
    if wrong:
        old, new = changes[wrong[0]]
        raise UserError(
            f"{wrong[0]}={brief(new, 80)} cannot be set in a run that goes on from {parent}, whose steps and scores "
            f"rest on {brief(old, 80)}: leave it out, or go on from its export."
        )
    if [task.name for task in changed.stream.tasks] != [task.name for task in longer.stream.tasks]:
        raise UserError(f"The overrides would change which tasks {parent} is to learn: name them by --task.")
    if longer.strategy.has_evaluation_weights and changed.strategy != longer.strategy:
        raise UserError(
            f"{parent} is used with the weights of its strategy {longer.strategy.name}, which cannot be changed on the "
            "way: leave strategy out, or go on from its export."
        )


def _check_steps(parent: RunFolder, config: RunConfig, changed: RunConfig) -> None:
    """Reject changes that give finished tasks another number of steps. With a budget, the cost of a step decides it."""
    past, spans = TaskSchedule.of_run(config).spans, TaskSchedule.of_run(changed).spans  # the config is `_as_ended`
    if config.stream is not None and config.stream.mode == "sequential" and spans[: len(past)] != past:
        raise UserError(
            f"budget.match={config.budget.match} would give the earlier tasks of {parent} other steps than they had, "
            "because a step would cost more or less: leave replay and strategy as they are, or go on from its export."
        )


def _changes_function(path: str) -> bool:
    """Whether a setting changes what the network computes."""
    return path.startswith("model.") and path not in CHANGEABLE and not path.startswith("model.lambda_")


# ------------------------------------------------------------------------------------------------ from a saved model


def _config_of_model(parent: Path, request: ContinuationRequest, folder: Path) -> RunConfig:
    """Settings for a saved model, which does not say how or on which text it was trained.

    Replay is on if it is the default of the backbone: an export drops the stores and writes replay=false. Documents
    that the model was taught are replayed.
    """
    home = str(parent.resolve())
    if is_plain(parent):
        model: dict[str, Any] = {"name": "hf", "pretrained": home}
    else:
        saved = load_config(parent)
        replay = saved.replay or bool(type(saved).model_fields["replay"].default)
        model = {**saved.model_dump(mode="json"), "replay": replay, "replay_seed": None}
    length = trained_length(parent)
    usual = MODELS[model["name"]].model_fields["replay_chunk_length"].default
    model["replay_chunk_length"] = min(model.get("replay_chunk_length", usual), length)
    trained = [task.name for task in request.tasks]
    kept = [task.replace(holdout=1.0) for task in request.keep]  # all of it is judged
    values: dict[str, Any] = {
        "model": model,
        "stream": {
            "tasks": [task.model_dump(mode="json") for task in (*kept, *request.tasks)],
            "only": trained if request.keep else None,
            "tokenizer": {} if is_plain(parent) else {"path": home},
        },
        "train": {"sequence_length": length, "learning_rate": LEARNING_RATE},
        "control": _ranges_with(model),
        "output": {"folder": str(folder)},
    }
    if request.share is not None:
        values = _with_share(parent, RunConfig(**values), values, request.share)
    first = RunConfig(**apply_overrides(values, request.overrides))
    values["eval"] = _modest_evaluation(first, is_watched=request.stop_at is not None)
    replayed = _replayable(first, [task.name for task in request.keep], request.share)
    if replayed:
        tasks = values["stream"]["tasks"]
        values["stream"]["tasks"] = [
            {**task, "holdout": JUDGED_SHARE} if task["name"] in replayed else task for task in tasks
        ]
        values["stream"]["replay_prefill_tasks"] = replayed
    if store_path(parent).is_file() and _fills_stores(first, request.share):
        values["stream"]["replay_prefill_files"] = [str(store_path(parent).resolve())]
    changed = RunConfig(**apply_overrides(values, request.overrides))
    return changed.replace(output={**changed.output.model_dump(), "folder": folder})


def _ranges_with(model: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Ranges of the controller that hold what the saved model was trained with, where the usual ones do not."""
    ranges = {}
    for name in ("coefficient", "batch_size", "share"):
        low, high = ReplayControlConfig.model_fields[f"{name.removesuffix('_size')}_range"].default
        value = model.get(f"replay_{name}")
        if value is not None and not low <= value <= high:
            ranges[f"{name.removesuffix('_size')}_range"] = (min(low, value), max(high, value))
    return ranges


def _watchful(tasks: Sequence[TaskConfig]) -> int:
    """Steps between evaluations with which a run that may stop early is measured often enough in every task."""
    return max(1, min(task.steps for task in tasks) // STOP_EVALUATIONS)


def _modest_evaluation(config: RunConfig, *, is_watched: bool) -> dict[str, int]:
    """Evaluation settings with which all evaluations together read half as many tokens as are trained.

    A forward pass is a third of a training step, so evaluation takes about a seventh of the time. The acceptance check,
    which reads all its text, may take as long again.
    """
    assert config.stream is not None
    steps, usual = [task.steps for task in config.stream.trained], config.eval
    every = max(type(usual).model_fields["every_steps"].default, max(steps) // MAX_EVALUATIONS)
    every = _watchful(config.stream.trained) if is_watched else every
    scored = 2 + len(steps) + sum(count // every for count in steps)  # before, after each task and between, and test
    length = config.train.sequence_length
    tokens = sum(steps) * config.train.tokens_per_step // (2 * scored * len(config.stream.tasks))
    sequences = min(type(usual).model_fields["text_sequences"].default, tokens // length // 4)
    return {
        "every_steps": every,
        "max_batches": max(1, tokens // (length * usual.batch_size)),
        "text_sequences": max(sequences, 1 if usual.metrics else 0),
    }


def has_old_text(parent: Path, config: RunConfig) -> bool:
    """Whether a child has old text to replay: the stores of a run or of a saved model, or prefill text."""
    assert config.stream is not None
    if not config.model.replay:
        return False
    is_prefilled = bool(config.stream.replay_prefill_files or config.stream.replay_prefill_tasks)
    return RunFolder(parent).is_run or is_prefilled or (not is_plain(parent) and load_config(parent).replay)


def _replayable(config: RunConfig, kept: Sequence[str], share: float | None) -> list[str]:
    """The texts of --keep that are divided into documents to replay and documents to judge.

    A text with few documents is judged whole. Without replay, every text is judged whole.
    """
    assert config.stream is not None
    if not _fills_stores(config, share):
        return []
    texts = [task for task in config.stream.tasks if task.name in kept]
    return [task.name for task in texts if has_documents(task, config.stream, MIN_DIVIDED)]


def _fills_stores(config: RunConfig, share: float | None) -> bool:
    """Whether text can be put into the replay stores before the first step."""
    return config.model.replay and config.model.replay_keep not in ("loss", "surprise") and share != 0.0
