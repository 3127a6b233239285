from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.ops.head_loss import IGNORE_INDEX
from trc2.reference import replay as reference
from trc2.replay.stores import ReplayStores, cut_chunks, read_chunks, token_dtype
from trc2.system.rng import keyed_generator


@settings(deadline=None, max_examples=60)
@given(
    ring=st.integers(1, 6),
    reservoir=st.integers(1, 8),
    batches=st.lists(st.integers(0, 9), max_size=6),
    seed=st.integers(0, 9),
)
def test_insertion_equals_one_chunk_at_a_time(ring: int, reservoir: int, batches: list[int], seed: int) -> None:
    stores = ReplayStores(ring, reservoir, 3, seed=seed)
    recent: dict[int, reference.Chunk] = {}
    long: dict[int, reference.Chunk] = {}
    seen = 0
    for step, size in enumerate(batches):
        chunks = torch.arange(3 * size).reshape(-1, 3) + 100 * step
        stores.commit(chunks.int())
        draws = torch.rand(size, dtype=torch.float64, generator=keyed_generator("reservoir", seed, seen)).tolist()
        for chunk, draw in zip(chunks.tolist(), draws, strict=True):
            reference.insert(recent, ring, seen, tuple(chunk))
            reference.insert_reservoir(long, reservoir, seen, tuple(chunk), draw)
            seen += 1
    assert stores.num_recent == len(recent)
    assert stores.num_long == len(long)
    assert {slot: tuple(stores.recent[slot].tolist()) for slot in recent} == recent
    assert {slot: tuple(stores.long[slot].tolist()) for slot in long} == long


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 3), length=st.integers(1, 13), chunk=st.integers(2, 6))
def test_chunks_are_cut_as_in_the_paper(rows: int, length: int, chunk: int) -> None:
    tokens = torch.arange(rows * length).reshape(rows, length)
    assert [tuple(c) for c in cut_chunks(tokens, chunk).tolist()] == reference.cut_chunks(tokens.tolist(), chunk)


def test_every_chunk_has_the_same_chance_to_stay_in_the_reservoir() -> None:
    kept: Counter[int] = Counter()
    trials, offered, capacity = 600, 20, 5
    for seed in range(trials):
        stores = ReplayStores(1, capacity, 2, seed=seed)
        for step in range(4):
            numbers = torch.arange(step * 5, step * 5 + 5)
            stores.commit(torch.stack((numbers, numbers), dim=1).int())
        kept.update(stores.long[:, 0].tolist())
    expected = trials * capacity / offered
    spread = (expected * (1 - capacity / offered)) ** 0.5
    assert set(kept) == set(range(offered))
    assert all(abs(count - expected) < 5 * spread for count in kept.values())


def test_nothing_is_drawn_from_empty_stores_or_from_staged_chunks() -> None:
    stores = ReplayStores(4, 4, 3)
    assert stores.sample(0, 0) is None
    stores.stage(torch.arange(12).reshape(2, 6))
    assert (stores.num_recent, stores.num_long) == (4, 4)
    assert stores.sample(0, 1) is None
    stores.commit(*stores.take_staged())
    assert stores.sample(1, 0) is not None


def test_discarded_chunks_leave_no_trace() -> None:
    stores = ReplayStores(4, 4, 3)
    stores.stage(torch.arange(12).reshape(2, 6))
    stores.discard_staged()
    assert stores.num_recent == 0
    assert stores.take_staged()[0].shape == (0, 3)


def test_draws_depend_on_step_and_micro_step_only_and_mix_both_stores() -> None:
    stores = ReplayStores(2, 50, 2, batch_size=5, long_fraction=0.5)
    numbers = torch.arange(50)
    stores.commit(torch.stack((numbers, numbers), dim=1).int())
    first = stores.sample(7, 3)
    stores.sample(7, 4)
    assert torch.equal(stores.sample(7, 3), first)
    assert not torch.equal(stores.sample(8, 3), first)
    # round(2.5) = 2 from the reservoir, so 3 come from the recency buffer, which holds the last two chunks
    assert (first[:3, 0] >= 48).all()


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**15, torch.int16), (2**15 + 1, torch.int32)])
def test_all_tokens_and_their_marks_fit_into_the_type_of_the_stores(vocab_size: int, dtype: torch.dtype) -> None:
    stores = ReplayStores(2, 2, 4, dtype=token_dtype(vocab_size))
    assert (stores.recent.dtype, stores.long.dtype) == (dtype, dtype)
    tokens = torch.tensor([[0, 1, vocab_size - 1, vocab_size - 1]])
    stores.stage(tokens, targets=torch.tensor([[IGNORE_INDEX, IGNORE_INDEX, vocab_size - 1, IGNORE_INDEX]]))
    stores.commit(*stores.take_staged())
    drawn = stores.draw(2, 0.5, "test")
    assert drawn.dtype == torch.int64
    for chunk in read_chunks(drawn).tokens:
        assert torch.equal(chunk, tokens[0])
    assert torch.equal(read_chunks(drawn).targets[0], torch.tensor([IGNORE_INDEX, IGNORE_INDEX, vocab_size - 1]))


def test_stores_of_32_bits_are_loaded_into_16() -> None:
    earlier, now = ReplayStores(2, 4, 3), ReplayStores(2, 4, 3, dtype=torch.int16)
    earlier.commit(torch.tensor([[5, -1, 2], [32767, -32768, 0]], dtype=torch.int32))
    now.load_state_dict(earlier.state_dict())
    assert now.long.dtype == torch.int16
    assert torch.equal(now.draw(6, 0.5, "test"), earlier.draw(6, 0.5, "test"))


def test_stores_stay_on_the_host_and_keep_their_types() -> None:
    stores = ReplayStores(2, 2, 2).double()
    assert stores.recent.dtype == torch.int32
    assert stores.coefficient.dtype == torch.float64
    stores.set_strength(0.1, 6, 0.25)
    assert (float(stores.coefficient), int(stores.batch_size), float(stores.long_fraction)) == (0.1, 6, 0.25)


@pytest.mark.parametrize(("share", "fraction"), [(0.02, 0.5), (0.05, 0.5), (0.3, 0.2), (0.05, 1.0), (0.3, 0.0)])
def test_a_share_however_small_draws_from_the_reservoir_as_asked(share: float, fraction: float) -> None:
    stores = ReplayStores(4, 4, 5, share=share)
    stores.commit(torch.arange(80, dtype=torch.int32).reshape(16, 5))
    stores.recent.fill_(7)
    stores.long.fill_(9)
    stores.set_strength(0.05, 4, fraction, share=share)
    drawn = torch.cat([chunks for step in range(2000) if (chunks := stores.sample_share(30, step, 0)) is not None])
    assert len(drawn) > 200
    spread = (fraction * (1 - fraction) / len(drawn)) ** 0.5
    assert abs(float((drawn[:, 0] == 9).double().mean()) - fraction) <= 4 * spread


def test_a_share_of_the_tokens_comes_from_the_stores_on_average() -> None:
    stores = ReplayStores(8, 8, 5, share=0.2)
    assert stores.sample_share(32, 0, 0) is None  # nothing is stored yet
    stores.commit(torch.arange(40, dtype=torch.int32).reshape(8, 5))
    drawn = [stores.sample_share(30, step, micro) for step in range(400) for micro in range(2)]
    replayed = sum(0 if chunks is None else chunks.shape[0] * 4 for chunks in drawn)
    assert abs(replayed / (replayed + 30 * 800) - 0.2) < 0.005
    assert {0 if chunks is None else chunks.shape[0] for chunks in drawn} == {1, 2}  # 1.875 chunks
    again = stores.sample_share(30, 7, 1)
    assert again is not None
    assert torch.equal(again, drawn[15])
    stores.set_strength(0.05, 4, 0.5, share=0.0)
    assert stores.is_off
    assert "share" in stores.state_dict()
    assert "share" not in ReplayStores(8, 8, 5).state_dict()


def test_a_chunk_keeps_which_of_its_tokens_are_labels() -> None:
    stores = ReplayStores(4, 4, 4, seed=0)
    x = torch.arange(16).reshape(2, 8)
    y = torch.where(torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]]).bool(), x + 1, IGNORE_INDEX)
    stores.stage(x, targets=y)
    stores.commit(*stores.take_staged())
    read = read_chunks(stores.recent.long())
    assert torch.equal(read.tokens, x.reshape(4, 4))
    ignored = IGNORE_INDEX  # the first token of a chunk is never a target
    expected = [[1, ignored, 3], [ignored, ignored, 7], [9, 10, 11], [13, 14, 15]]
    assert read.targets.tolist() == expected
    assert read.num_labels == 9
    assert torch.equal(stores.recent[2:], x[1:].reshape(2, 4).int())  # without ignored tokens as they are


def test_scores_of_ignored_tokens_do_not_count() -> None:
    stores = ReplayStores(4, 4, 4, seed=0, keep="loss")
    x = torch.arange(8).reshape(1, 8)
    y = torch.tensor([[1, IGNORE_INDEX, 3, 4, *[IGNORE_INDEX] * 4]])
    stores.stage(x, scores=torch.tensor([[1.0, 50.0, 2.0, 6.0, 9.0, 9.0, 9.0, 9.0]]), targets=y)
    assert stores.take_staged()[1].tolist() == [3.0, 0.0]
