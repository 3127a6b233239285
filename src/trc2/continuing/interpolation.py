"""Interpolation after the training: θ = θ_parent + α (θ_child − θ_parent), with the largest α that is accepted.

The grid is walked upwards and ends at the first α that is not accepted. The hypotheses are tested in a fixed order, so
the confidence of the acceptance check holds for the chosen α, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

import torch

from trc2.backbones.shell import Backbone
from trc2.config import RunConfig
from trc2.config.pretrained import HFConfig
from trc2.errors import UserError
from trc2.evaluation.tasks import score_lm_tasks, score_task
from trc2.metrics.lm_eval import with_forgetting
from trc2.runs.checkpoint import Checkpoint, save_checkpoint
from trc2.runs.folder import RunFolder
from trc2.runs.lock import lock_folder
from trc2.runs.records import Record, append_record
from trc2.stream.batches import SplitWindows
from trc2.stream.packed import PreparedStream
from trc2.system.failpoints import failpoint
from trc2.system.precision import choose_device

AUTO: Literal["auto"] = "auto"
Choice: TypeAlias = float | str
"""A number in 0…1, or "auto"."""
GRID = (0.1, 0.25, 0.5, 0.75, 1.0)
ALPHA = "interpolation/alpha"


def read_choice(value: str | float | None) -> Choice | None:
    """The value of --interpolate. Raises a UserError unless it is auto or a number above 0 and at most 1."""
    if value is None or value == AUTO:
        return value
    try:
        alpha = float(value)
    except ValueError:
        alpha = math.nan
    if not 0 < alpha <= 1:
        raise UserError(f"--interpolate {value} is neither auto nor a number above 0 and at most 1: give 0.5, say.")
    return alpha


def check_interpolation(choice: Choice | None, config: RunConfig, *, is_run: bool, has_limit: bool) -> None:
    """Refuse models between whose weights there is no meaningful line, and auto without a limit."""
    if choice is None:
        return
    model = config.model
    if choice == AUTO and not has_limit:
        raise UserError(
            "--interpolate auto looks for the largest step that is accepted: give --max-forgetting or --max-drift."
        )
    reason = None
    if getattr(model, "memory", False):
        reason = "the episodic memory of this model holds states of the child's own weights"
    elif model.name == "lora_drs":
        reason = "lora_drs has an adapter for each of its tasks"
    elif config.strategy.has_evaluation_weights:
        reason = f"the strategy {config.strategy.name} is evaluated with weights of its own"
    elif isinstance(model, HFConfig) and model.lora is not None and (is_run or model.adapter is not None):
        reason = "the product of two adapters has no straight line between parent and child"
    if reason is not None:
        raise UserError(f"--interpolate {choice} makes no sense here, because {reason}: leave it out.")


def blend(parent: Backbone, net: Backbone, checkpoint: Checkpoint, alpha: float) -> Checkpoint:
    """The checkpoint with interpolated weights. Optimizer, stores and generators stay those of the child.

    Of adapters that began at zero only B is scaled, which interpolates B·A exactly.
    """
    config = net.config
    names = {f"model.{name}" for name, _ in net.named_parameters()} & checkpoint.tensors.keys()
    tensors = dict(checkpoint.tensors)
    if isinstance(config, HFConfig) and config.lora is not None:
        for name in names:
            if ".lora_B." in name:
                tensors[name] = tensors[name] * alpha
    else:
        before = parent.state_dict()
        for name in names:
            old = before[name.removeprefix("model.")].to(tensors[name].dtype)
            tensors[name] = torch.lerp(old, tensors[name], alpha)
    progress = {**checkpoint.state["progress"], "interpolation": alpha}
    return replace(checkpoint, tensors=tensors, state={**checkpoint.state, "progress": progress})


def alpha_of(checkpoint: Checkpoint) -> float | None:
    """The α with which a checkpoint was interpolated. None if it was not."""
    return float(checkpoint.state.get("progress", {}).get("interpolation", 0.0)) or None


def settle(
    folder: RunFolder,
    last: Checkpoint,
    choice: Choice,
    load_parent: Callable[[], Backbone],
    is_accepted: Callable[[Checkpoint], bool],
    prepared: PreparedStream,
) -> float | None:
    """Replace the weights of a finished child by interpolated ones and score them. None if no α is accepted.

    A command that is killed on the way is repeated by `trc2 resume`, to the same end.
    """
    alpha = alpha_of(last)
    with lock_folder(folder.path):
        if alpha is None:
            parent, net = load_parent(), folder.model_of(last)
            alpha = _largest(lambda a: is_accepted(blend(parent, net, last, a))) if choice == AUTO else float(choice)
            if alpha is None:
                return None
            _blend_before_anneal(folder, last.step, parent, net, alpha)
            last = blend(parent, net, last, alpha)
            failpoint("interpolate")
            save_checkpoint(folder.checkpoints, last)
            failpoint("interpolated")
        # An interpolated parent leaves such a record in the child's log, too, at an earlier step.
        if not any(ALPHA in record.metrics and record.step == last.step for record in folder.records()):
            _score(folder, last, alpha, prepared)
    return alpha


def _blend_before_anneal(folder: RunFolder, end: int, parent: Backbone, net: Backbone, alpha: float) -> None:
    """Go as far with the weights from before the last anneal, from which the next task starts, and keep them apart.

    The line begins where the training of the child began, which is before the anneal of its parent if that had one.
    """
    schedule, lineage = folder.schedule(), folder.lineage()
    before = schedule.step_before_anneal(end)
    if before is None or lineage is None:
        return
    begun = schedule.step_before_anneal(min(span.start for span in schedule.spans if span.task in lineage.tasks))
    origin = parent if begun is None else folder.model_of(folder.checkpoint_of(begun), with_replay=False)
    save_checkpoint(folder.interpolated, blend(origin, net, folder.checkpoint_of(before), alpha))


def _largest(is_accepted: Callable[[float], bool]) -> float | None:
    """The last α of the grid before the first that is not accepted."""
    chosen = None
    for alpha in GRID:
        if not is_accepted(alpha):
            break
        chosen = alpha
    return chosen


def _score(folder: RunFolder, checkpoint: Checkpoint, alpha: float, prepared: PreparedStream) -> None:
    """Record the scores of the interpolated weights, which replace those of the end of the training."""
    config, device, end = folder.config(), choose_device("auto"), folder.records()[-1]
    model = folder.model_of(checkpoint).to(device)
    tests: dict[str, float] = {}
    scores: dict[str, float] = {ALPHA: alpha}
    for name, task in prepared.tasks.items():
        windows = SplitWindows(task, config.train.sequence_length)
        for split, found in (("validation", scores), ("test", tests)):
            if task.splits[split].tokens > 1 and (split == "validation" or config.eval.test):
                values = score_task(model, windows, split, config.eval, prepared.tokenizer, device)
                prefix = "eval" if split == "validation" else "test"
                found |= {f"{prefix}/{name}/{key}": value for key, value in values.items()}
    earlier = [record.metrics for record in folder.records() if record.kind == "eval"]
    for score in score_lm_tasks(model, prepared.tokenizer, config.eval):
        scores |= with_forgetting(score, earlier)
    if tests:
        append_record(folder.metrics_file, Record("test", checkpoint.step, end.task, tests, end.seconds))
    append_record(folder.metrics_file, Record("eval", checkpoint.step, end.task, scores, end.seconds))
