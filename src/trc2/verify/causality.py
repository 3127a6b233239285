"""A: logits know nothing of later tokens. A1: nor do write scores."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.verify.check import EXACT, Check, Fill, Subject, gap, largest, skipped, smallest


def _logits(model: Backbone, x: Tensor, y: Tensor | None = None) -> Tensor:
    logits, _ = model(x, targets=y)
    return logits


def eval_forward(subject: Subject) -> list[Check]:
    """Δ_eval(t): other tokens after t leave the logits at t alone."""
    checks = []
    x = subject.tokens("probe")
    for fill in subject.fills:
        model = subject.fresh(fill).eval()
        with torch.no_grad():
            full = _logits(model, x)
            gaps = [gap(full[:, t], _logits(model, subject.with_other_suffix(x, t))[:, t]) for t in subject.positions()]
        name = subject.label("forward, eval", fill)
        checks.append(Check("A", name, "logits at t ignore tokens after t", largest(gaps), "<=", subject.rounding))
    return checks


def eval_gradient(subject: Subject) -> list[Check]:
    """Γ_eval(t): no gradient of the logits at t reaches a later embedding."""
    checks = []
    x = subject.tokens("probe")
    for fill in subject.fills:
        model = subject.fresh(fill).eval()
        captured: list[Tensor] = []
        embedding = model.get_input_embeddings()
        embedding.register_forward_hook(lambda _m, _i, out, kept=captured: kept.append(out))
        leaks = []
        for t in subject.positions():
            captured.clear()
            total = _logits(model, x)[:, t].sum()
            (gradient,) = torch.autograd.grad(total, captured[0])
            leaks.append(float(gradient.reshape(*x.shape, -1)[:, t + 1 :].abs().max()))
        name = subject.label("gradient, eval", fill)
        checks.append(Check("A", name, "no gradient from t to later embeddings", largest(leaks), "<=", 0.0))
    return checks


def prefix_consistency(subject: Subject) -> list[Check]:
    """Δ_prefix(t): a prefix alone gives the same logits as inside the whole."""
    checks = []
    x = subject.tokens("probe")
    for fill in subject.fills:
        model = subject.fresh(fill).eval()
        with torch.no_grad():
            full = _logits(model, x)
            gaps = [gap(full[:, t], _logits(model, x[:, : t + 1])[:, -1]) for t in subject.positions()]
        name = subject.label("prefix, eval", fill)
        checks.append(
            Check("A", name, "logits at t equal those of the prefix alone", largest(gaps), "<=", subject.rounding)
        )
    return checks


def decoding_in_pieces(subject: Subject) -> list[Check]:
    """Δ_decode: tokens run one by one, with nothing but the state of those before, give the logits of the whole."""
    claim = "logits of tokens run one by one less those of the whole"
    checks = []
    x = subject.tokens("probe")
    for fill in subject.fills:
        model = subject.fresh(fill).eval()
        with torch.no_grad():
            state = model.start_decoding()
            pieces = [model.decode(part, state) for part in x.split([2] + [1] * (x.shape[1] - 2), dim=1)]
            difference = gap(torch.cat(pieces, dim=1), _logits(model, x))
        checks.append(Check("A", subject.label("decoding with state", fill), claim, difference, "<=", subject.rounding))
    return checks


def padding_is_nothing(subject: Subject) -> list[Check]:
    """Δ_pad: a row with padding on its left has the logits it has alone, whatever tokens stand there."""
    claim = "logits of a row padded on the left less those of the row alone"
    checks = []
    x = subject.tokens("probe")
    num_padded = max(1, subject.length // 4)
    valid = torch.ones_like(x, dtype=torch.bool)
    valid[0, :num_padded] = False
    for fill in subject.fills:
        model = subject.fresh(fill).eval()
        with torch.no_grad():
            padded, _ = model(x, valid=valid)
            difference = gap(padded[:1, num_padded:], _logits(model, x[:1, num_padded:]))
        checks.append(Check("A", subject.label("padding, eval", fill), claim, difference, "<=", subject.rounding))
    return checks


def train_forward_before_flush(subject: Subject) -> list[Check]:
    """Δ_train,noflush(t): the same in training mode, with replay running where the stores hold something."""
    checks = []
    x, y = subject.tokens("probe"), subject.tokens("targets")
    for fill in subject.fills:
        full = _logits(subject.fresh(fill).train(), x, y)
        gaps = []
        for t in subject.positions():
            other = _logits(subject.fresh(fill).train(), subject.with_other_suffix(x, t), y)
            gaps.append(gap(full[:, t], other[:, t]))
        name = subject.label("forward, train before flush", fill)
        checks.append(
            Check(
                "A", name, "logits at t ignore tokens after t in training mode", largest(gaps), "<=", subject.rounding
            )
        )
    return checks


def write_scores(subject: Subject) -> list[Check]:
    """Δ_score: changing only token t+1 leaves scores up to t alone, and does reach the score of t+1."""
    claims: tuple[tuple[str, str, Literal["<=", ">"], float], ...] = (
        ("write score, prefix", "scores before t ignore token t+1", "<=", EXACT),
        ("write score, t", "the score of t ignores token t+1", "<=", EXACT),
        ("write score, t+1", "the score of t+1 does see token t+1 (else the test is empty)", ">", 0.0),
    )
    if not subject.has_memory:
        return [check for name, claim, *_ in claims for check in skipped("A1", name, claim, "no memory")]
    x, y = subject.tokens("probe"), subject.tokens("targets")
    checks = []
    for fill in subject.fills:
        before, at, after = [], [], []
        plain = _scores(subject, fill, x, y)
        for t in subject.positions():
            other = _scores(subject, fill, subject.with_other_suffix(x, t, 1), y)
            before.append(gap(plain[:, :t], other[:, :t]))
            at.append(gap(plain[:, t], other[:, t]))
            after.append(gap(plain[:, t + 1], other[:, t + 1]))
        measured = (largest(before), largest(at), smallest(after))
        for (name, claim, relation, bound), value in zip(claims, measured, strict=True):
            checks.append(Check("A1", subject.label(name, fill), claim, value, relation, bound))
    return checks


def _scores(subject: Subject, fill: Fill, x: Tensor, y: Tensor) -> Tensor:
    """The queued scores; NaN, which keeps no bound, where nothing was queued."""
    model = subject.fresh(fill).train()
    _logits(model, x, y)
    return model.pending[-1].proposal.surprise if model.pending else torch.full(x.shape, float("nan"))
