"""Score a model on tasks, without gradients and without side effects."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig
from trc2.distributed.group import Ranks
from trc2.errors import UserError
from trc2.metrics.language import Tally
from trc2.metrics.lm_eval import Score
from trc2.metrics.text import plugged_scores, text_scores
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.stream.batches import Batch, SplitWindows, TaskData
from trc2.stream.tokenizer import Tokenizer
from trc2.system.rng import rng_unchanged

T = TypeVar("T")


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients. Afterwards the mode and all random number generators are as before.

    Metric libraries may draw random numbers, even while they are imported.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), rng_unchanged():
            yield
    finally:
        model.train(was_training)


def tally(model: Backbone, batches: Iterable[Batch], device: torch.device) -> Tally:
    """Sums over all labelled positions of the batches, which are divided over the ranks.

    Sums are added in the order of the batches, so the result is the same to the bit for every number of ranks.
    """
    rows = []
    for number, batch, counts in share_items(batches, model.ranks):
        sums = dataclasses.astuple(_tally_of(model, batch, device))
        if counts:
            rows.append([number, *sums])
    total = Tally()
    for _, nll, *counted in sorted(model.ranks.gather_rows(rows, 1 + len(dataclasses.fields(Tally)))):
        total += Tally(nll, *(int(count) for count in counted))
    return total


def share_items(items: Iterable[T], ranks: Ranks) -> Iterator[tuple[int, T, bool]]:
    """The items this rank runs, with their numbers, and whether they count.

    If the last round has fewer items than ranks, the other ranks repeat one of them without counting it: all ranks
    must run the model together, because divided weights are gathered by all of them.
    """
    source = iter(items)
    for first in itertools.count(0, ranks.world):
        if not (together := list(itertools.islice(source, ranks.world))):
            return
        index = min(ranks.rank, len(together) - 1)
        yield first + ranks.rank, together[index], index == ranks.rank


def _tally_of(model: Backbone, batch: Batch, device: torch.device) -> Tally:
    x, y = batch.x.to(device), batch.y.to(device)
    predicted = model.predict(x, y)
    labelled = y != IGNORE_INDEX
    correct = (predicted.tokens == y) & labelled
    has_labels = labelled.any(dim=1)  # a window may lie within a long question
    return Tally(
        nll=float(predicted.nll.double().sum()),
        tokens=int(labelled.sum()),
        correct=int(correct.sum()),
        sequences=int(has_labels.sum()),
        exact=int(((correct | ~labelled).all(dim=1) & has_labels).sum()),
    )


def score_task(
    model: Backbone,
    data: SplitWindows,
    split: str,
    config: EvalConfig,
    tokenizer: Tokenizer,
    device: torch.device,
) -> dict[str, float]:
    """Language and text metrics of one split."""
    with evaluation_mode(model):
        total = tally(model, data.eval_batches(split, config.batch_size, config.max_batches), device)
        metrics = total.metrics(data.task.bytes_per_token(split))
        if config.text_sequences:
            metrics |= _score_text(model, data, split, config, tokenizer, device)
    return metrics


def _score_text(
    model: Backbone, data: SplitWindows, split: str, config: EvalConfig, tokenizer: Tokenizer, device: torch.device
) -> dict[str, float]:
    sample = data.sample_windows(split, config.text_sequences)
    if sample is None:
        return {}
    own = [torch.empty(0, 1 + sample.x.shape[1], dtype=torch.int64)]
    for number, rows, counts in share_items(torch.arange(len(sample.x)).split(config.batch_size), model.ranks):
        best = model.predict(sample.x[rows].to(device), sample.y[rows].to(device)).tokens.cpu()
        if counts:
            own.append(torch.cat((torch.full((len(rows), 1), number), best), dim=1))
    (guesses,) = model.ranks.gather(torch.cat(own))
    guesses = guesses[guesses[:, 0].argsort(stable=True), 1:]
    predictions, references = [], []
    for guess, truth in zip(guesses, sample.y, strict=True):
        labelled = truth != IGNORE_INDEX
        if not labelled.any():
            continue
        predictions.append(tokenizer.decode(guess[labelled].tolist()))
        references.append(tokenizer.decode(truth[labelled].tolist()))
    scores = text_scores(predictions, references)
    return scores | plugged_scores(config.metrics, (predictions, references), (guesses, sample.y))


def control_perplexity(model: Backbone, data: TaskData, batch_size: int, device: torch.device) -> float:
    """Perplexity on the task's control subset, the input of the replay controller."""
    with evaluation_mode(model):
        return tally(model, data.control_batches(batch_size), device).metrics(1.0)["perplexity"]


TRUST = "TRC2_TRUST_TASKS"


def check_trusted(config: EvalConfig) -> None:
    """Reject a folder of harness tasks that a recipe or a run names: such files can run code, also in templates.

    Only the user at the machine can allow it, by an environment variable, so it is not a setting.
    """
    if config.lm_tasks and config.lm_include is not None and os.environ.get(TRUST) != "1":
        raise UserError(
            f"eval.lm_include={config.lm_include} names tasks of the lm-evaluation-harness, whose files can run any "
            f"code: read them, then set {TRUST}=1 in the environment, or leave the setting out."
        )


def score_lm_tasks(model: Backbone, tokenizer: Tokenizer, config: EvalConfig) -> list[Score]:
    """Every metric of `eval.lm_tasks`."""
    if not config.lm_tasks:
        return []
    check_trusted(config)
    from trc2.evaluation.lm_eval import score_tasks  # the harness is an extra

    include = None if config.lm_include is None else Path(config.lm_include)
    with evaluation_mode(model):
        return score_tasks(
            model, tokenizer, config.lm_tasks, include=include, limit=config.lm_limit, rows=config.batch_size,
            quiet=True,
        )  # fmt: skip
