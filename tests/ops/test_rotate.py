from __future__ import annotations

import pytest
import torch

from tests.ops.compare import compare, leaf
from trc2.nn.rope import RotaryTable
from trc2.ops.rotate import plain_rotate, rotate

BASE = 10_000.0


@pytest.mark.parametrize("length", [1, 7, 63])
def test_values_and_gradients_equal_the_plain_rotation(length: int) -> None:
    rotation = RotaryTable(64, 6, BASE).double()(torch.arange(length))
    compare(lambda x: rotate(x, rotation), lambda x: plain_rotate(x, rotation.cos, rotation.sin), leaf(length, 3, 6))


def test_pairs_turn_by_their_angle() -> None:
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], dtype=torch.float64)
    rotation = RotaryTable(8, 4, BASE).double()(torch.tensor([5]))
    angles = torch.tensor([5.0, 5.0 / BASE**0.5], dtype=torch.float64)
    turned = torch.polar(torch.ones(2, dtype=torch.float64), angles) * torch.complex(x[0, 0, :2], x[0, 0, 2:])
    torch.testing.assert_close(rotate(x, rotation)[0, 0], torch.cat((turned.real, turned.imag)))


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    table = RotaryTable(32, 6, BASE).double()
    q, k = torch.randn(1, 1, 6, dtype=torch.float64), torch.randn(1, 1, 6, dtype=torch.float64)

    def score(a: int, b: int) -> torch.Tensor:
        return (rotate(q, table(torch.tensor([a]))) * rotate(k, table(torch.tensor([b])))).sum()

    torch.testing.assert_close(score(3, 1), score(30, 28))
    torch.testing.assert_close(rotate(q, table(torch.tensor([17]))).norm(), q.norm())
