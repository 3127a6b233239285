"""A: logits know nothing of later tokens. A1: nor do write scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trc2.verify.subject import EXACT, Check, Memory, Subject, gap, skipped


def _label(name: str, memory: Memory, subject: Subject) -> str:
    return f"{name} ({memory} memory)" if subject.has_readout else name


def _logits(model: Any, x: Tensor, y: Tensor | None = None) -> Tensor:
    logits, _ = model(x, targets=y)
    return logits


def eval_forward(subject: Subject) -> list[Check]:
    """Δ_eval(t): other tokens after t leave the logits at t alone."""
    checks = []
    x = subject.tokens("probe")
    for memory in subject.memories:
        model = subject.fresh(memory).eval()
        with torch.no_grad():
            full = _logits(model, x)
            worst = max(
                gap(full[:, t], _logits(model, subject.with_other_suffix(x, t))[:, t]) for t in subject.positions()
            )
        name = _label("forward, eval", memory, subject)
        checks.append(Check("A", name, "logits at t ignore tokens after t", worst, "<=", EXACT))
    return checks


def eval_gradient(subject: Subject) -> list[Check]:
    """Γ_eval(t): no gradient of the logits at t reaches a later embedding."""
    checks = []
    x = subject.tokens("probe")
    for memory in subject.memories:
        model = subject.fresh(memory).eval()
        captured: list[Tensor] = []
        embedding = model.get_input_embeddings()
        embedding.register_forward_hook(lambda _m, _i, out, kept=captured: kept.append(out))
        worst = 0.0
        for t in subject.positions():
            captured.clear()
            total = _logits(model, x)[:, t].sum()
            (gradient,) = torch.autograd.grad(total, captured[0])
            worst = max(worst, float(gradient.reshape(*x.shape, -1)[:, t + 1 :].abs().max()))
        name = _label("gradient, eval", memory, subject)
        checks.append(Check("A", name, "no gradient from t to later embeddings", worst, "<=", 0.0))
    return checks


def prefix_consistency(subject: Subject) -> list[Check]:
    """Δ_prefix(t): a prefix alone gives the same logits as inside the whole."""
    checks = []
    x = subject.tokens("probe")
    for memory in subject.memories:
        model = subject.fresh(memory).eval()
        with torch.no_grad():
            full = _logits(model, x)
            worst = max(gap(full[:, t], _logits(model, x[:, : t + 1])[:, -1]) for t in subject.positions())
        name = _label("prefix, eval", memory, subject)
        checks.append(Check("A", name, "logits at t equal those of the prefix alone", worst, "<=", EXACT))
    return checks


def train_forward_before_flush(subject: Subject) -> list[Check]:
    """Δ_train,noflush(t): the same in training mode, where writes are pending but not flushed."""
    checks = []
    x, y = subject.tokens("probe"), subject.tokens("targets")
    for memory in subject.memories:
        worst = 0.0
        full = _logits(subject.fresh(memory).train(), x, y)
        for t in subject.positions():
            other = _logits(subject.fresh(memory).train(), subject.with_other_suffix(x, t), y)
            worst = max(worst, gap(full[:, t], other[:, t]))
        name = _label("forward, train before flush", memory, subject)
        checks.append(Check("A", name, "logits at t ignore tokens after t in training mode", worst, "<=", EXACT))
    return checks


def write_scores(subject: Subject) -> list[Check]:
    """Δ_score: changing only token t+1 leaves scores up to t alone, and does reach the score of t+1."""
    claims = (
        ("write score, prefix", "scores before t ignore token t+1", "<=", EXACT),
        ("write score, t", "the score of t ignores token t+1", "<=", EXACT),
        ("write score, t+1", "the score of t+1 does see token t+1 (else the test is empty)", ">", 0.0),
    )
    if not subject.has_memory:
        return [check for name, claim, *_ in claims for check in skipped("A1", name, claim, "no memory")]
    x, y = subject.tokens("probe"), subject.tokens("targets")
    checks = []
    for memory in subject.memories:
        measured = [0.0, 0.0, float("inf")]
        plain = _scores(subject, memory, x, y)
        for t in subject.positions():
            other = _scores(subject, memory, subject.with_other_suffix(x, t, 1), y)
            measured[0] = max(measured[0], gap(plain[:, :t], other[:, :t]))
            measured[1] = max(measured[1], gap(plain[:, t], other[:, t]))
            measured[2] = min(measured[2], gap(plain[:, t + 1], other[:, t + 1]))
        for (name, claim, relation, bound), value in zip(claims, measured, strict=True):
            checks.append(Check("A1", _label(name, memory, subject), claim, value, relation, bound))  # type: ignore[arg-type]
    return checks


def _scores(subject: Subject, memory: Memory, x: Tensor, y: Tensor) -> Tensor:
    model = subject.fresh(memory).train()
    _logits(model, x, y)
    return model.pending[-1].surprise
