from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.ops.compare import compare, leaf
from trc2.ops import head_loss
from trc2.ops.head_loss import IGNORE_INDEX, linear_cross_entropy, plain_linear_cross_entropy


@pytest.mark.parametrize("length", [1, 7, 63])
@pytest.mark.parametrize("chunk", [1, 4, 100, None])
def test_values_and_gradients_equal_the_plain_loss(length: int, chunk: int | None) -> None:
    targets = torch.randint(11, (length,))
    targets[1::3] = IGNORE_INDEX
    compare(
        lambda hidden, weight: linear_cross_entropy(hidden, weight, targets, chunk),
        lambda hidden, weight: plain_linear_cross_entropy(hidden, weight, targets),
        leaf(length, 5),
        leaf(11, 5),
    )


def test_no_label_means_no_loss_and_no_gradient() -> None:
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.full((3,), -100))
    loss.backward()
    assert loss.item() == 0.0
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_no_gradient_buffer_is_made_where_none_is_asked_for() -> None:
    hidden, weight = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        linear_cross_entropy(hidden, weight, torch.tensor([1, 2, 3]))
    assert counter.get_total_flops() == 2 * 3 * 4 * 5


def test_half_precision_hidden_states_are_scored_in_float32() -> None:
    hidden, weight = torch.randn(6, 8), torch.randn(9, 8)
    targets = torch.randint(9, (6,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(hidden @ weight.T, targets, reduction="sum"), rtol=0.05, atol=0.5)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_predictions_equal_cross_entropy_and_argmax_whatever_the_chunk(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_loss, "chunk_rows", lambda _: rows)
    hidden, weight = torch.randn(7, 5, dtype=torch.float64) * 30, torch.randn(11, 5, dtype=torch.float64)
    weight[4] = weight[2]  # a tie: the first of the likeliest is named
    targets = torch.tensor([0, 10, IGNORE_INDEX, 3, 4, IGNORE_INDEX, 2])
    nll, best = head_loss.linear_predict(hidden, weight, targets)
    logits = hidden @ weight.T
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="none")
    torch.testing.assert_close(nll, expected, atol=1e-12, rtol=1e-12)
    assert best.tolist() == [row.index(max(row)) for row in logits.tolist()]
