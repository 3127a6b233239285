from __future__ import annotations

import math

import pytest
import torch

from trc2.metrics.ngram_cache import ENTRY_BYTES, NGramCache, mixed_nll


def test_a_cache_tells_what_followed_the_same_context() -> None:
    cache = NGramCache(order=2, num_bytes=100 * ENTRY_BYTES)
    text = torch.tensor([[1, 2, 3, 1, 2, 4, 1, 2, 3]])
    cache.offer(text[:, :-1], text[:, 1:])
    assert cache.num_entries == 7
    x, y = torch.tensor([[1, 2, 9, 1]]), torch.tensor([[2, 3, 1, 2]])
    p, known = cache.probability(x, y)
    assert known.tolist() == [[False, True, False, False]]  # (1, 2) is known, (2, 9) and (9, 1) are not
    assert p[0, 1] == pytest.approx(2 / 3)  # 1 2 was followed by 3, 4 and 3
    nll = torch.full((1, 4), math.log(4.0))
    mixed = mixed_nll(nll, p, known, 0.5)
    assert mixed[0].exp().tolist() == pytest.approx([4.0, 1 / (0.5 / 4 + 0.5 * 2 / 3), 4.0, 4.0])
    assert torch.equal(mixed_nll(nll, p, known, 0.0), mixed_nll(nll, p, torch.zeros_like(known), 0.3))


def test_a_cache_holds_no_more_than_its_bytes_and_may_be_shorter_than_a_context() -> None:
    cache = NGramCache(order=3, num_bytes=5 * ENTRY_BYTES + 1)
    for seed in range(4):
        x = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(seed))
        cache.offer(x[:, :-1], x[:, 1:])
    assert (cache.offered, cache.num_entries) == (4 * 2 * 6, 5)
    short = torch.tensor([[1, 2]])
    assert not cache.probability(short, short)[1].any()
