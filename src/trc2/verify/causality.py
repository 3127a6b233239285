"""A: logits do not depend on later tokens. A1: neither do write scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.verify.check import EXACT, Check, Fill, ModelUnderTest, gap, largest, skipped, smallest


def _logits(model: Backbone, x: Tensor, y: Tensor | None = None) -> Tensor:
    logits, _ = model(x, targets=y)
    return logits


def _with_every_fill(
    tested: ModelUnderTest, name: str, claim: str, measure: Callable[[Fill], float], bound: float | None = None
) -> list[Check]:
    """The check in every state of memory and stores. The bound is the model's rounding unless it is given."""
    bound = tested.rounding if bound is None else bound
    return [Check("A", tested.label(name, fill), claim, measure(fill), "<=", bound) for fill in tested.fills]


def eval_forward(tested: ModelUnderTest) -> list[Check]:
    """Δ_eval(t): other tokens after t leave the logits at t alone."""
    x = tested.tokens("probe")

    @torch.no_grad()
    def measure(fill: Fill) -> float:
        model = tested.fresh(fill).eval()
        full = _logits(model, x)
        others = {t: _logits(model, tested.with_other_suffix(x, t)) for t in tested.positions()}
        return largest([gap(full[:, t], other[:, t]) for t, other in others.items()])

    return _with_every_fill(tested, "forward, eval", "logits at t ignore tokens after t", measure)


def eval_gradient(tested: ModelUnderTest) -> list[Check]:
    """Γ_eval(t): no gradient of the logits at t reaches a later embedding."""
    x = tested.tokens("probe")

    def measure(fill: Fill) -> float:
        model = tested.fresh(fill).eval()
        captured: list[Tensor] = []
        model.get_input_embeddings().register_forward_hook(lambda _m, _i, out: captured.append(out))
        leaks = []
        for t in tested.positions():
            captured.clear()
            (gradient,) = torch.autograd.grad(_logits(model, x)[:, t].sum(), captured[0])
            leaks.append(float(gradient.reshape(*x.shape, -1)[:, t + 1 :].abs().max()))
        return largest(leaks)

    return _with_every_fill(tested, "gradient, eval", "no gradient from t to later embeddings", measure, 0.0)


def prefix_consistency(tested: ModelUnderTest) -> list[Check]:
    """Δ_prefix(t): a prefix alone gives the same logits as inside the whole."""
    x = tested.tokens("probe")

    @torch.no_grad()
    def measure(fill: Fill) -> float:
        model = tested.fresh(fill).eval()
        full = _logits(model, x)
        return largest([gap(full[:, t], _logits(model, x[:, : t + 1])[:, -1]) for t in tested.positions()])

    return _with_every_fill(tested, "prefix, eval", "logits at t equal those of the prefix alone", measure)


def decoding_in_pieces(tested: ModelUnderTest) -> list[Check]:
    """Δ_decode: tokens run one by one, with only the state of those before, give the logits of the whole."""
    x = tested.tokens("probe")

    @torch.no_grad()
    def measure(fill: Fill) -> float:
        model = tested.fresh(fill).eval()
        state = model.start_decoding()
        pieces = [model.decode(part, state) for part in x.split([2] + [1] * (x.shape[1] - 2), dim=1)]
        return gap(torch.cat(pieces, dim=1), _logits(model, x))

    claim = "logits of tokens run one by one less those of the whole"
    return _with_every_fill(tested, "decoding with state", claim, measure)


def padding_is_nothing(tested: ModelUnderTest) -> list[Check]:
    """Δ_pad: a row with padding on its left has the logits it has alone, whatever tokens stand there."""
    x = tested.tokens("probe")
    num_padded = max(1, tested.length // 4)
    valid = torch.ones_like(x, dtype=torch.bool)
    valid[0, :num_padded] = False

    @torch.no_grad()
    def measure(fill: Fill) -> float:
        model = tested.fresh(fill).eval()
        padded, _ = model(x, valid=valid)
        return gap(padded[:1, num_padded:], _logits(model, x[:1, num_padded:]))

    claim = "logits of a row padded on the left less those of the row alone"
    return _with_every_fill(tested, "padding, eval", claim, measure)


def train_forward_before_flush(tested: ModelUnderTest) -> list[Check]:
    """Δ_train,noflush(t): the same in training mode, with replay running where the stores hold something."""
    x, y = tested.tokens("probe"), tested.tokens("targets")

    def measure(fill: Fill) -> float:
        full = _logits(tested.fresh(fill).train(), x, y)
        others = [_logits(tested.fresh(fill).train(), tested.with_other_suffix(x, t), y) for t in tested.positions()]
        return largest([gap(full[:, t], o[:, t]) for t, o in zip(tested.positions(), others, strict=True)])

    claim = "logits at t ignore tokens after t in training mode"
    return _with_every_fill(tested, "forward, train before flush", claim, measure)


def write_scores(tested: ModelUnderTest) -> list[Check]:
    """Δ_score: changing only token t+1 leaves scores up to t alone, and does reach the score of t+1."""
    claims: tuple[tuple[str, str, Literal["<=", ">"], float], ...] = (
        ("write score, prefix", "scores before t ignore token t+1", "<=", EXACT),
        ("write score, t", "the score of t ignores token t+1", "<=", EXACT),
        ("write score, t+1", "the score of t+1 does see token t+1 (else the test is empty)", ">", 0.0),
    )
    if not tested.has_memory:
        return [check for name, claim, *_ in claims for check in skipped("A1", name, claim, "no memory")]
    x, y = tested.tokens("probe"), tested.tokens("targets")
    checks = []
    for fill in tested.fills:
        before, at, after = [], [], []
        plain = _scores(tested, fill, x, y)
        for t in tested.positions():
            other = _scores(tested, fill, tested.with_other_suffix(x, t, 1), y)
            before.append(gap(plain[:, :t], other[:, :t]))
            at.append(gap(plain[:, t], other[:, t]))
            after.append(gap(plain[:, t + 1], other[:, t + 1]))
        measured = (largest(before), largest(at), smallest(after))
        for (name, claim, relation, bound), value in zip(claims, measured, strict=True):
            checks.append(Check("A1", tested.label(name, fill), claim, value, relation, bound))
    return checks


def _scores(tested: ModelUnderTest, fill: Fill, x: Tensor, y: Tensor) -> Tensor:
    """The queued scores. NaN, which keeps no bound, where nothing was queued."""
    model = tested.fresh(fill).train()
    _logits(model, x, y)
    return model.pending[-1].proposal.surprise if model.pending else torch.full(x.shape, float("nan"))
