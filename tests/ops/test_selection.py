from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trc2.ops import selection
from trc2.ops.selection import top_k, top_k_mask
from trc2.reference.column import largest


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 3),
    width=st.integers(1, 700),
    k=st.integers(1, 12),
    levels=st.sampled_from([1, 2, 5, 10_000]),
    seed=st.integers(0, 1000),
)
def test_top_k_takes_the_lowest_index_among_ties(rows: int, width: int, k: int, levels: int, seed: int) -> None:
    k = min(k, width)
    scores = torch.randint(levels, (rows, width), generator=torch.Generator().manual_seed(seed)).double()
    expected = torch.tensor([largest(row, k) for row in scores])
    assert torch.equal(top_k(scores, k), expected)
    mask = torch.zeros(rows, width, dtype=torch.bool).scatter_(1, expected, True)
    assert torch.equal(top_k_mask(scores, k), mask)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 3),
    width=st.integers(2, 400),
    k=st.integers(1, 8),
    levels=st.sampled_from([1, 2, 5, 50, 10_000]),
    wide_row=st.sampled_from([130, 10_000]),
    is_cpu=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_way_to_select_agrees_about_ties(
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    width: int,
    k: int,
    levels: int,
    wide_row: int,
    is_cpu: bool,
    seed: int,
) -> None:
    """Few scores are sorted. Here the ways for many scores are made to take them."""
    monkeypatch.setattr(selection, "FEW_SCORES", 0)
    monkeypatch.setattr(selection, "WIDE_ROW", max(wide_row, 4 * k))
    monkeypatch.setattr(selection, "BLOCK", 8)
    monkeypatch.setattr(selection, "CHECKS_TIES", ("cpu",) if is_cpu else ())
    k = min(k, width)
    scores = torch.randint(levels, (rows, width), generator=torch.Generator().manual_seed(seed)).double()
    assert torch.equal(top_k(scores, k), torch.tensor([largest(row, k) for row in scores]))


def test_top_k_of_a_wide_row_uses_blocks_and_stays_exact() -> None:
    scores = torch.randn(64, 8192)
    assert torch.equal(scores.gather(1, top_k(scores, 4)), scores.topk(4).values)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_top_k_never_returns_an_index_twice(k: int) -> None:
    lowest = torch.finfo(torch.float32).min
    scores = torch.full((1, 600), lowest)
    scores[0, 5], scores[0, 400] = float("inf"), 0.0
    picked = top_k(scores, k)[0].tolist()
    assert picked[:2] == [5, 400][: min(k, 2)]
    assert len(set(picked)) == k
