"""F: reservoir, next tokens and refreshed slots wait for the flush, tell the truth and survive being saved.

None of it is in the paper: a model without these settings has no such checks.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.nn.provenance import Origin
from trc2.replay.stores import cut_chunks
from trc2.verify.subject import (
    EXACT,
    Check,
    Subject,
    changed,
    gap,
    memory_of,
    state_of,
    train_forward,
    train_step,
)

STEPS = 3


def _optimizer(model: Backbone) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def _batch(subject: Subject, name: str) -> tuple[Tensor, Tensor]:
    tokens = subject.tokens(name, length=subject.length + 1)
    return tokens[:, :-1], tokens[:, 1:]


def the_reservoir_waits(subject: Subject) -> list[Check]:
    """Events leave the view, and enter the reservoir, at the flush only; the reader sees none of them twice."""
    model = subject.fresh("filled")
    memory = memory_of(model)
    if memory is None or not memory.num_reservoir:
        return []
    with torch.no_grad():
        memory.threshold.fill_(-1.0)  # every candidate is written
    left = memory.cursor.left
    assert left is not None
    before, in_view = int(left), min(memory.count, memory.window)
    train_forward(model, *_batch(subject, "batch"))
    early = int(left) - before
    pushed_out = max(0, in_view + model.flush_pending_write().writes - memory.window)
    seen = memory.keys[memory.readable()]
    twice = len(seen) - len(torch.unique(seen, dim=0))
    return [
        Check("F", "reservoir before flush", "events that left the view before the flush", float(early), "==", 0.0),
        Check("F", "reservoir at the flush", "events that left the view less those that new ones pushed out",
              float(int(left) - before - pushed_out), "==", 0.0),
        Check("F", "reservoir is read", "slots of the reservoir in view", float(memory.num_sampled), ">", 0.0),
        Check("F", "no event twice", "events that the reader sees in two slots", float(twice), "==", 0.0),
    ]  # fmt: skip


def slots_hold_what_followed(subject: Subject) -> list[Check]:
    """Every slot's next token is the one that stood after its event in the batch it came from."""
    model = subject.fresh()
    memory = memory_of(model)
    if memory is None or not memory.predicts:
        return []
    with torch.no_grad():
        memory.threshold.fill_(-1.0)
    x, y = _batch(subject, "batch")
    model.train()
    # Positions that number all tokens of the batch, so that a slot's origin names its token.
    model(x, targets=y, origin=Origin(position=torch.arange(x.numel()).view_as(x)))
    model.flush_pending_write()
    following, place = memory.following[: memory.count], memory.origins[: memory.count, 3]
    truth = y.clone()
    truth[:, -1] = -1  # the last token of a row is not followed by any that was read
    wrong = int((following != truth.flatten()[place]).sum())
    return [
        Check("F", "next tokens are true", "slots whose next token is not the one that followed", float(wrong), "==",
              0.0),
        Check("F", "next tokens are known", "slots that know their next token", float((following >= 0).sum()), ">",
              0.0),
    ]  # fmt: skip


def one_distribution(subject: Subject) -> list[Check]:
    """Logits, loss and prediction of a memory that has a say are one distribution, which the memory does change."""
    model = subject.fresh("filled").eval()
    memory = memory_of(model)
    if memory is None or not memory.predicts:
        return []
    x, y = _batch(subject, "probe")
    with torch.no_grad():
        logits, _ = model(x)
        _, aux = model(x, targets=y, return_logits=False)
        predicted = model.predict(x, y)
        nll = -logits.gather(2, y.unsqueeze(2)).squeeze(2)
        memory.next_gate_bias.fill_(-1e3)  # the gate is shut, feedback is as before
        shut, _ = model(x)
    return [
        Check("F", "probabilities", "distance of their sum from 1", gap(logits.exp().sum(dim=2), torch.ones_like(nll)),
              "<=", EXACT),
        Check("F", "loss = logits", "distance of the chunked loss from that of the logits",
              gap(aux["loss_lm"], nll.mean()), "<=", EXACT),
        Check("F", "prediction = logits", "distance of scored targets from the logits", gap(predicted.nll, nll), "<=",
              EXACT),
        Check("F", "memory has a say", "how far next tokens move the log-probabilities",
              gap(logits, shut.log_softmax(dim=2)), ">", 0.0),
    ]  # fmt: skip


def a_refresh_waits(subject: Subject) -> list[Check]:
    """A replayed chunk rewrites the slots that came from it: not before the flush, and then for certain."""
    model = subject.fresh()
    memory, stores = memory_of(model), model.replay
    if memory is None or stores is None or not memory.refreshes:
        return []
    with torch.no_grad():
        memory.threshold.fill_(-1.0)
    optimizer = _optimizer(model)
    x, y = _batch(subject, "batch")
    train_step(model, [(x, y)], optimizer)
    stores.commit(cut_chunks(x, stores.chunk_length).to(torch.int32))
    with torch.no_grad():
        memory.threshold.fill_(1e3)  # no new event hides what a refresh does
    before = state_of(memory)
    replays = 0
    early = 0.0
    for step in range(20):
        train_forward(model, *_batch(subject, f"other {step}"))
        refresh = model.pending[-1].proposal.refresh
        early += changed(before, state_of(memory))
        if refresh is not None and len(refresh.slots):
            replays = len(refresh.slots)
            break
        model.skip_step()
    model.flush_pending_write()
    after = state_of(memory)
    moved = int((after["keys"] != before["keys"]).any(dim=1).sum())
    return [
        Check("F", "refresh before flush", "tensors of the memory a replayed chunk changed before the flush", early,
              "==", 0.0),
        Check("F", "refresh at the flush", "slots that the flush of a replayed chunk rewrote", float(moved), ">", 0.0),
        Check("F", "refresh of its own", "slots rewritten beyond those of the chunk", float(max(0, moved - replays)),
              "==", 0.0),
    ]  # fmt: skip


def saved_and_loaded(subject: Subject) -> list[Check]:
    """A clone that loads what was saved goes on to the bit: the next step leaves the same memory and weights."""
    model = subject.fresh()
    memory = memory_of(model)
    if memory is None or not (memory.notes or memory.num_reservoir or memory.cursor.updates is not None):
        return []
    other = copy.deepcopy(model)
    optimizer = _optimizer(model)
    for step in range(STEPS):
        train_step(model, [_batch(subject, f"batch {step}")], optimizer)
    other.load_state_dict(state_of(model))
    for part in (model, other):
        train_step(part, [_batch(subject, "last")], _optimizer(part))
    differs = changed(state_of(model), state_of(other))
    return [Check("F", "resume", "tensors that differ a step after saving and loading", differs, "==", 0.0)]
