"""B: writes wait for the flush, an evaluation drops them, and a step flushes once."""

from __future__ import annotations

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.verify.check import (
    EXACT,
    Check,
    ModelUnderTest,
    changed,
    gap,
    largest,
    memory_of,
    skipped,
    state_of,
    train_forward,
)


def _probe(model: Backbone, x: Tensor, y: Tensor | None = None) -> Tensor:
    model.eval()
    with torch.no_grad():
        logits, _ = model(x, targets=y)
    return logits


def no_effect_before_flush(tested: ModelUnderTest) -> list[Check]:
    """Δ_preflush: a micro-step queues writes, which change neither later logits nor the memory."""
    name, claim = "no pre-flush effect, eval", "a micro-step without flush changes no logits of an evaluation"
    if not tested.has_memory:
        return skipped("B", name, claim, "no memory")
    model, probe, targets = tested.fresh(), tested.tokens("probe"), tested.tokens("targets")
    before = state_of(memory_of(model))
    model.train()
    model(probe)
    idle = float(len(model.pending))
    train_forward(model, tested.tokens("batch"), targets)
    queued = float(len(model.pending))
    moved = changed(before, state_of(memory_of(model)))
    # The next micro-step runs while writes are pending: it must not read them.
    next_logits, _ = model(probe, targets=targets)
    fresh_logits, _ = tested.fresh().train()(probe, targets=targets)
    return [
        Check("B", "no targets, no writes", "writes a training forward without targets queues", idle, "==", 0.0),
        Check("B", "micro-step queues writes", "a training micro-step leaves writes pending", queued, ">", 0.0),
        Check("B", "memory before flush", "tensors of the memory that changed before the flush", moved, "==", 0.0),
        Check("B", "no pre-flush effect, train", "a micro-step without flush changes no logits of the next one",
              gap(next_logits, fresh_logits), "<=", EXACT),
        Check("B", name, claim, gap(_probe(model, probe), _probe(tested.fresh(), probe)), "<=", EXACT),
    ]  # fmt: skip


def evaluation_clears_without_committing(tested: ModelUnderTest) -> list[Check]:
    """|Q| > 0 → eval forward → |Q| = 0, and the memory is what it was."""
    name, claim = "eval clears the queue", "writes pending after an evaluation forward"
    if not tested.has_memory:
        return skipped("B", name, claim, "no memory")
    model, probe, targets = tested.fresh(), tested.tokens("probe"), tested.tokens("targets")
    expected = _probe(tested.fresh(), probe)
    train_forward(model, tested.tokens("batch"), targets)
    before = state_of(memory_of(model))
    gaps = [gap(_probe(model, probe), expected)]
    left = float(len(model.pending))
    gaps += [gap(_probe(model, probe, targets), expected), gap(_probe(model, probe), expected)]
    moved = changed(before, state_of(memory_of(model))) + len(model.pending)
    return [
        Check("B", name, claim, left, "==", 0.0),
        Check("B", "eval does not commit", "tensors of the memory an evaluation changed, with targets or without",
              float(moved), "==", 0.0),
        Check("B", "logits after clearing", "evaluation with a queue gives the logits of a fresh model, each time",
              largest(gaps), "<=", EXACT),
    ]  # fmt: skip


def flush_order_under_accumulation(tested: ModelUnderTest) -> list[Check]:
    """Two micro-steps: nothing is written until both are done, then one threshold update covers their union."""
    name, claim = "no write inside the step", "events written before the flush of a two-micro-step step"
    if not tested.has_memory:
        return skipped("B", name, claim, "no memory")
    model = tested.fresh()
    memory = memory_of(model)
    assert memory is not None
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    start, seen = float(memory.threshold), 0
    for micro in range(2):
        train_forward(model, tested.tokens(f"batch {micro}"), tested.tokens(f"targets {micro}"))
        seen = max(seen, memory.count)
    candidates = torch.cat([waiting.proposal.scores for waiting in model.pending]) if model.pending else torch.empty(0)
    model.flush_pending_write()
    written = memory.count
    optimizer.step()
    slow, fast = memory.critic.slow_value.weight.clone(), memory.critic.value.weight.clone()
    model.update_slow_targets()
    expected_threshold = expected_writes = float("nan")
    if candidates.numel():
        union = float(torch.quantile(candidates, 1.0 - memory.keep_target))
        decay = memory.threshold_decay
        expected_threshold = decay * start + (1.0 - decay) * union
        expected_writes = float(min(memory.num_slots, int((candidates > expected_threshold).sum())))
    average = memory.critic.slow_decay * slow + (1.0 - memory.critic.slow_decay) * fast
    return [
        Check("B", name, claim, float(seen), "==", 0.0),
        Check("B", "queue after flush", "writes pending after the flush", float(len(model.pending)), "==", 0.0),
        Check("B", "one flush per step", "distance of the threshold from one update by the union of both micro-steps",
              abs(float(memory.threshold) - expected_threshold), "<=", EXACT),
        Check("B", "the flush writes", "events in memory after the step", float(written), ">", 0.0),
        Check("B", "only survivors are written", "events written less candidates above the threshold",
              abs(written - expected_writes), "==", 0.0),
        Check("B", "slow heads follow", "distance of the slow value head from its moving average",
              gap(memory.critic.slow_value.weight, average), "<=", EXACT),
        Check("B", "slow heads move", "how far one step moves the slow value head",
              gap(memory.critic.slow_value.weight, slow), ">", 0.0),
    ]  # fmt: skip
