"""Scoring a model on tasks: no gradient, no trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig
from trc2.metrics.language import Tally
from trc2.metrics.text import text_scores
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.stream.batches import Batch, SplitWindows, TaskData
from trc2.stream.tokenizer import Tokenizer
from trc2.train.chance import chance_unmoved


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, without gradients; outside, mode and all sources of chance are as they were.

    Metric libraries may draw random numbers, if only while they are imported.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), chance_unmoved():
            yield
    finally:
        model.train(was_training)


def tally(model: Backbone, batches: Iterable[Batch], device: torch.device) -> Tally:
    """Sums over all labelled positions of the batches."""
    total = Tally()
    for batch in batches:
        x, y = batch.x.to(device), batch.y.to(device)
        predicted = model.predict(x, y)
        labelled = y != IGNORE_INDEX
        correct = (predicted.tokens == y) & labelled
        total += Tally(
            nll=float(predicted.nll.double().sum()),
            tokens=int(labelled.sum()),
            correct=int(correct.sum()),
            sequences=x.shape[0],
            exact=int((correct | ~labelled).all(dim=1).sum()),
        )
    return total


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
    predictions, references = [], []
    for x, y in zip(sample.x.split(config.batch_size), sample.y.split(config.batch_size), strict=True):
        best = model.predict(x.to(device), y.to(device)).tokens.cpu()
        for guess, truth in zip(best, y, strict=True):
            labelled = truth != IGNORE_INDEX
            predictions.append(tokenizer.decode(guess[labelled].tolist()))
            references.append(tokenizer.decode(truth[labelled].tolist()))
    return text_scores(predictions, references)


def control_perplexity(model: Backbone, data: TaskData, batch_size: int, device: torch.device) -> float:
    """Perplexity on the task's control subset: what the replay controller looks at."""
    with evaluation_mode(model):
        return tally(model, data.control_batches(batch_size), device).metrics(1.0)["perplexity"]
