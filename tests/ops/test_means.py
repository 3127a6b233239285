from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.ops.compare import compare, leaf
from trc2.ops.means import mean_of_earlier, plain_mean_of_earlier, sums_of_earlier


def by_hand(z: Tensor, valid: Tensor | None = None) -> Tensor:
    """Row by row and token by token."""
    valid = torch.ones(z.shape[:2], dtype=torch.bool) if valid is None else valid
    means = torch.zeros_like(z)
    for b in range(z.shape[0]):
        for t in range(z.shape[1]):
            earlier = z[b, :t][valid[b, :t]]
            if len(earlier):
                means[b, t] = earlier.mean(dim=0)
    return means


@pytest.mark.parametrize("length", [1, 7, 63])
def test_values_and_gradients_equal_the_plain_mean(length: int) -> None:
    z = leaf(2, length, 3)
    compare(mean_of_earlier, plain_mean_of_earlier, z)
    torch.testing.assert_close(mean_of_earlier(z), by_hand(z), atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("length", [1, 7, 63])
def test_padding_counts_neither_in_sums_nor_in_counts(length: int) -> None:
    z, valid = leaf(2, length, 3), torch.rand(2, length) < 0.6
    means = mean_of_earlier(z, valid)
    torch.testing.assert_close(means, by_hand(z, valid), atol=1e-13, rtol=1e-12)
    (grad,) = torch.autograd.grad(means.square().sum(), z)
    assert not grad[~valid].any()


def test_the_total_is_the_sum_over_the_real_tokens_of_a_row() -> None:
    z, valid = leaf(2, 5, 3), torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]).bool()
    torch.testing.assert_close(sums_of_earlier(z).total, z.sum(dim=1))
    torch.testing.assert_close(sums_of_earlier(z, valid).total, (z * valid.unsqueeze(-1)).sum(dim=1))
