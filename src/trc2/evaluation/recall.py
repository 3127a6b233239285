"""Score a model that reads its replay stores while it predicts: p = (1 − g) p_model + g p_store.

Counts and gate are functions of the run's state, so a checkpoint need not hold them. The gate is fitted on control
windows. Nothing trains on these, and the stores never hold them, so no text finds itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from trc2.backbones.shell import Backbone
from trc2.evaluation.tasks import evaluation_mode
from trc2.ops.modes import at_least_float32
from trc2.recall.counts import Counts
from trc2.recall.gate import Examples, fit_gate
from trc2.recall.reader import Recall
from trc2.stream.batches import Batch


@contextmanager
def reading_stores(model: Backbone, control: Iterable[Batch], device: torch.device) -> Iterator[bool]:
    """Let the model read its replay stores. Yields whether they hold anything."""
    before, model.recall = model.recall, None
    try:
        model.recall = _reader(model, control, device)
        yield model.recall is not None
    finally:
        model.recall = before


def _reader(model: Backbone, control: Iterable[Batch], device: torch.device) -> Recall | None:
    chunks = None if model.replay is None else model.replay.stored()
    if chunks is None or not len(chunks):
        return None
    counts = Counts.of(list(chunks.numpy()), model.config.vocab_size, count_starts=False)
    examples = []
    with evaluation_mode(model):
        for batch in control:
            logits, _ = model(batch.x.to(device))
            assert logits is not None
            network = at_least_float32(logits).flatten(0, 1).log_softmax(dim=1).cpu()
            examples.append(Examples.of(counts, batch.x.numpy(), batch.y.numpy(), network))
    return Recall(counts, fit_gate(Examples.join(examples), Examples.join([]), "fitted on control windows"))
