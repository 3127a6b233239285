from __future__ import annotations

import pytest
import torch

from trc2.nn.mixture import MixedHead, Mixture
from trc2.ops import head_loss

# Of four positions: a token named twice, one named once, unknown tokens (share 0), and nothing at all.
TOKENS = torch.tensor([[3, 3, 5], [1, 2, 0], [0, 4, 0], [0, 0, 0]])
SHARES = torch.tensor([[0.2, 0.1, 0.3], [0.05, 0.0, 0.2], [0.0, 0.9, 0.0], [0.0, 0.0, 0.0]])
TARGETS = torch.tensor([3, 6, -100, 0])


def direct(hidden: torch.Tensor, weight: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """log p, term by term."""
    rows = []
    for scores, share, tokens in zip(hidden @ weight.T, shares, TOKENS, strict=True):
        p = torch.softmax(scores, dim=0) * (1 - share.sum())
        for c, token in zip(share, tokens, strict=True):
            p = p + c * torch.eye(7, dtype=p.dtype)[token]
        rows.append(p.log())
    return torch.stack(rows)


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    return [x.double().requires_grad_() for x in (torch.randn(4, 5), torch.randn(7, 5), SHARES.clone())]


def test_loss_logits_and_prediction_are_one_distribution(
    inputs: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(head_loss.CHUNK_ELEMENTS, "cpu", 14)  # two rows at a time
    hidden, weight, shares = inputs
    head = MixedHead(weight, Mixture(shares, TOKENS))
    expected = direct(*inputs)
    torch.testing.assert_close(head.logits(hidden), expected)
    torch.testing.assert_close(head.logits(hidden).exp().sum(dim=1), torch.ones(4, dtype=torch.float64))
    labelled = TARGETS >= 0
    nll = -expected[labelled].gather(1, TARGETS[labelled].unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(head.loss_sum(hidden, TARGETS), nll.sum())
    with torch.no_grad():
        torch.testing.assert_close(head.loss_sum(hidden, TARGETS), nll.sum())
    scored, best = head.predict(hidden, TARGETS)
    torch.testing.assert_close(scored[labelled], nll)
    assert scored[2] == 0.0
    assert torch.equal(best, expected.argmax(dim=1))


@pytest.mark.parametrize("way", ["logits", "loss"])
def test_gradients_are_those_of_the_formula(inputs: list[torch.Tensor], way: str) -> None:
    hidden, weight, shares = inputs
    head = MixedHead(weight, Mixture(shares, TOKENS))
    labelled = TARGETS >= 0
    expected = -direct(*inputs)[labelled].gather(1, TARGETS[labelled].unsqueeze(1)).sum()
    ours = head.loss_sum(hidden, TARGETS)
    if way == "logits":
        ours = -head.logits(hidden)[labelled].gather(1, TARGETS[labelled].unsqueeze(1)).sum()
    for a, b, name in zip(
        torch.autograd.grad(ours, inputs), torch.autograd.grad(expected, inputs), ("h", "w", "c"), strict=True
    ):
        # A share of exactly 0 is a token nobody knows: what it would gain is not asked.
        known = SHARES > 0 if name == "c" else torch.ones_like(a, dtype=torch.bool)
        torch.testing.assert_close(a[known], b[known])
        assert torch.isfinite(a).all()


def test_a_confident_model_and_a_silent_memory_stay_finite_in_float32() -> None:
    hidden, weight = torch.tensor([[200.0]]), torch.tensor([[1.0], [-1.0]]).requires_grad_()
    shares = torch.tensor([[0.0]], requires_grad=True)
    loss = MixedHead(weight, Mixture(shares, torch.tensor([[1]]))).loss_sum(hidden, torch.tensor([1]))
    loss.backward()
    assert loss == 400.0
    assert torch.isfinite(weight.grad).all()
    assert torch.isfinite(shares.grad).all()
