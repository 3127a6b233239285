from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.ops.compare import compare, leaf
from trc2.nn.attention import attend
from trc2.ops.staircase import LONGEST, SHORTEST, plain_causal_attention, staircase_attention, suits


@pytest.mark.parametrize("length", [1, 3, 5, 7, 63, 64, 67])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (6, 2), (3, 1)])
def test_outputs_and_gradients_equal_the_plain_formula(length: int, heads: int, groups: int) -> None:
    q, k, v = leaf(2, length, heads, 8), leaf(2, length, groups, 8), leaf(2, length, groups, 8)
    compare(staircase_attention, plain_causal_attention, q, k, v)


def test_the_plain_formula_is_torchs_causal_attention() -> None:
    q, k, v = (torch.randn(2, 7, heads, 8, dtype=torch.float64) for heads in (6, 2, 2))
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(plain_causal_attention(q, k, v), expected.transpose(1, 2), atol=1e-13, rtol=1e-12)


def test_the_future_has_no_influence_at_all() -> None:
    q, k, v = (torch.randn(1, 96, 2, 4) for _ in range(3))
    before = staircase_attention(q, k, v)
    for x in (q, k, v):
        x[:, 50:] = torch.randn(1, 46, 2, 4)
    assert torch.equal(staircase_attention(q, k, v)[:, :50], before[:, :50])


@pytest.mark.parametrize("length", [SHORTEST - 1, SHORTEST, LONGEST, LONGEST + 1])
def test_attention_is_the_same_on_both_sides_of_the_borders(length: int) -> None:
    q, k, v = (torch.randn(1, length, heads, 4, dtype=torch.float64) for heads in (4, 2, 2))
    assert suits(q, k) == (SHORTEST <= length <= LONGEST)
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(attend(q, k, v, None), expected.transpose(1, 2), atol=1e-12, rtol=1e-12)


def test_half_types_and_pieces_go_to_the_fused_kernel() -> None:
    q = torch.randn(1, 128, 2, 4)
    assert suits(q, q)
    assert not suits(q.bfloat16(), q.bfloat16())
    assert not suits(q[:, -1:], q)
    with torch.autocast("cpu", torch.bfloat16):
        assert not suits(q, q)
