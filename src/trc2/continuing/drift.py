"""How far a child's predictions moved from its parent's, which needs no old text.

The drift of a document is Σ_t KL(parent ‖ child), the divergence of the two distributions of the next token, summed
over its positions. On new text, forgetting was found to follow it ("RL's Razor", arXiv 2509.04259).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trc2.backbones.shell import Backbone
from trc2.config import RunConfig
from trc2.continuing.heldout import MIN_DOCUMENTS, HeldOut, held_out_split
from trc2.errors import UserError
from trc2.evaluation.tasks import evaluation_mode
from trc2.metrics.paired import Interval, document_mean
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.runs.lineage import DREAM, Lineage
from trc2.stream.batches import SplitWindows
from trc2.stream.packed import PreparedStream
from trc2.system.files import finite

MAX_LOGITS = 2**25  # of one model at once, which bounds the memory


@dataclass(frozen=True)
class Drift:
    """The mean drift per token on one text, in nats, with its interval over documents, and the limit."""

    task: str
    split: str
    documents: int
    tokens: int
    nats: Interval
    limit: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the upper bound is within the limit. NaN is not within any limit."""
        return self.limit is None or self.nats.high <= self.limit

    @property
    def text(self) -> str:
        kind = "generated text" if self.task == DREAM else f"new text, {self.task}/{self.split}"
        return f"{self.documents} documents of {kind}"

    def describe(self) -> dict[str, Any]:
        numbers = {"nats": finite(self.nats.value), "low": finite(self.nats.low), "high": finite(self.nats.high)}
        names = ("split", "documents", "tokens", "passed")
        return {**numbers, **{name: getattr(self, name) for name in names}}


def drift_from(name: str, content: dict[str, Any], limit: float | None) -> Drift:
    """From its JSON."""
    nats = Interval(*(float(content[key]) for key in ("nats", "low", "high")))
    return Drift(name, str(content["split"]), int(content["documents"]), int(content["tokens"]), nats, limit)


def texts_to_compare(lineage: Lineage, prepared: PreparedStream, wanted: str = "test") -> dict[str, HeldOut]:
    """The held-out part of every new task, and of the text that the parent generated."""
    names = [*lineage.tasks, *([] if lineage.generated is None else [lineage.generated])]
    texts = {}
    for name in names:
        task = prepared.tasks[name]
        split = held_out_split(task, wanted)
        texts[name] = HeldOut(task, split, np.ones(task.splits[split].documents, dtype=bool))
    return {name: text for name, text in texts.items() if text.task.splits[text.split].tokens > 1}


def check_drift_texts(lineage: Lineage, prepared: PreparedStream) -> None:
    """Reject a limit on the drift that could not be checked, before training."""
    for name, text in texts_to_compare(lineage, prepared).items() if lineage.max_drift is not None else ():
        if text.documents < MIN_DOCUMENTS:
            raise UserError(
                f"{name}/{text.split} has {text.documents} held-out document, but an interval takes at least "
                f"{MIN_DOCUMENTS}, so --max-drift {lineage.max_drift:g} could not be checked: give more documents, or "
                f"hold out more of them by stream.tasks.{name}.holdout=0.2."
            )


def measure_drift(
    parent: Backbone, child: Backbone, texts: dict[str, HeldOut], config: RunConfig, limit: float | None,
    device: torch.device,
) -> tuple[Drift, ...]:  # fmt: skip
    """The drift on every text. Both models are in memory, which is less than training the child took."""
    drifts = []
    for name, text in texts.items():
        nats, tokens = document_drift(parent, child, text, config, device)
        interval = document_mean(nats, tokens, np.random.default_rng(config.train.seed))
        drifts.append(Drift(name, text.split, len(tokens), int(tokens.sum()), interval, limit))
    return tuple(drifts)


def document_drift(
    parent: Backbone, child: Backbone, text: HeldOut, config: RunConfig, device: torch.device
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Σ KL(parent ‖ child) and the number of predicted tokens of every document."""
    count = len(text.is_judged)
    nats, tokens = np.zeros(count), np.zeros(count, dtype=np.int64)
    length = config.train.sequence_length
    rows = max(1, MAX_LOGITS // (length * config.model.vocab_size))
    with evaluation_mode(parent), evaluation_mode(child):
        for batch in SplitWindows(text.task, length).eval_batches(text.split, min(rows, config.eval.batch_size)):
            x = batch.x.to(device)
            before, after = (torch.log_softmax(model(x)[0].float(), dim=-1) for model in (parent, child))
            divergence = (before.exp() * (before - after)).sum(dim=-1)
            is_predicted = (batch.y != IGNORE_INDEX).numpy()
            assert batch.origin.document is not None
            documents = batch.origin.document.numpy()
            np.add.at(nats, documents, np.where(is_predicted, divergence.double().cpu().numpy(), 0.0))
            np.add.at(tokens, documents, is_predicted)
    has_tokens = tokens > 0
    return nats[has_tokens], tokens[has_tokens]
