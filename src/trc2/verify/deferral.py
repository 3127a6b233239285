"""B: writes wait for the flush, an evaluation drops them, and a step flushes once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trc2.verify.subject import EXACT, Check, Subject, changed, gap, memory_of, skipped, state_of, train_forward


def _probe(model: Any, x: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        logits, _ = model(x)
    return logits


def no_effect_before_flush(subject: Subject) -> list[Check]:
    """Δ_preflush: a micro-step queues writes, and nobody can tell from the logits or the memory."""
    name, claim = "no pre-flush effect", "a micro-step without flush changes no logits"
    if not subject.has_memory:
        return skipped("B", name, claim, "no memory")
    model, probe = subject.fresh(), subject.tokens("probe")
    before = state_of(memory_of(model))
    train_forward(model, subject.tokens("batch"), subject.tokens("targets"))
    queued = float(len(model.pending))
    moved = changed(before, state_of(memory_of(model)))
    return [
        Check("B", "micro-step queues writes", "a training micro-step leaves writes pending", queued, ">", 0.0),
        Check("B", "memory before flush", "tensors of the memory that changed before the flush", moved, "==", 0.0),
        Check("B", name, claim, gap(_probe(model, probe), _probe(subject.fresh(), probe)), "<=", EXACT),
    ]


def evaluation_clears_without_committing(subject: Subject) -> list[Check]:
    """|Q| > 0 → eval forward → |Q| = 0, and the memory is what it was."""
    name, claim = "eval clears the queue", "writes pending after an evaluation forward"
    if not subject.has_memory:
        return skipped("B", name, claim, "no memory")
    model, probe = subject.fresh(), subject.tokens("probe")
    expected = _probe(subject.fresh(), probe)
    train_forward(model, subject.tokens("batch"), subject.tokens("targets"))
    before = state_of(memory_of(model))
    first = _probe(model, probe)
    again = _probe(model, probe)
    left = float(len(model.pending))
    moved = changed(before, state_of(memory_of(model)))
    return [
        Check("B", name, claim, left, "==", 0.0),
        Check("B", "eval does not commit", "tensors of the memory an evaluation changed", moved, "==", 0.0),
        Check(
            "B",
            "logits after clearing",
            "evaluation with a queue gives the logits of a fresh model, twice",
            max(gap(first, expected), gap(again, expected)),
            "<=",
            EXACT,
        ),
    ]


def flush_order_under_accumulation(subject: Subject) -> list[Check]:
    """Two micro-steps: nothing is written until both are done, then one threshold update covers their union."""
    name, claim = "no write inside the step", "events written before the flush of a two-micro-step step"
    if not subject.has_memory:
        return skipped("B", name, claim, "no memory")
    model = subject.fresh()
    memory = memory_of(model)
    assert memory is not None
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    start = float(memory.threshold)
    seen = 0
    for micro in range(2):
        train_forward(model, subject.tokens(f"batch {micro}"), subject.tokens(f"targets {micro}"))
        seen = max(seen, int(memory.count))
    candidates = torch.cat([proposal.scores for proposal in model.pending]) if model.pending else torch.empty(0)
    model.flush_pending_write()
    optimizer.step()
    model.update_slow_targets()
    expected = float("nan")
    if candidates.numel():
        union = float(torch.quantile(candidates, 1.0 - memory.keep_target))
        expected = memory.threshold_decay * start + (1.0 - memory.threshold_decay) * union
    return [
        Check("B", name, claim, float(seen), "==", 0.0),
        Check("B", "queue after flush", "writes pending after the flush", float(len(model.pending)), "==", 0.0),
        Check(
            "B",
            "one flush per step",
            "distance of the threshold from one update by the union of both micro-steps",
            abs(float(memory.threshold) - expected),
            "<=",
            EXACT,
        ),
        Check("B", "the flush writes", "events in memory after the step", float(memory.count), ">", 0.0),
    ]
