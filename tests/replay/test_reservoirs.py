"""Reservoirs keep chunks with the probabilities of their rules, over many streams."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.conftest import excited, tiny_config, tokens
from trc2 import CortexNet, UserError
from trc2.replay.reservoirs import Stretches, weighted_slots
from trc2.replay.stores import ReplayStores


def stretches(size: int, rooms: int = 4) -> Stretches:
    whole = {"dtype": torch.int64}
    return Stretches(
        torch.full((size,), -1, **whole),
        torch.zeros(rooms, **whole),
        torch.zeros((), **whole),
        torch.tensor(torch.nan, dtype=torch.float64),
        torch.zeros((), **whole),
    )


def test_weighted_reservoir_draws_without_replacement_by_weight() -> None:
    """Of weights 1, 2, 3 two are kept: P(pair {i, j}) is w_i/6 · w_j/(6 − w_i) plus the same for (j, i)."""
    weights, counts = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), dict.fromkeys([(0, 1), (0, 2), (1, 2)], 0)
    rng, trials = torch.Generator().manual_seed(0), 4000
    for _ in range(trials):
        keys, held = torch.full((2,), -torch.inf, dtype=torch.float64), [-1, -1]
        for number, weight in enumerate(weights):  # one at a time, as a stream
            (slot,) = weighted_slots(keys, weight[None], torch.rand(1, dtype=torch.float64, generator=rng)).tolist()
            if slot < 2:
                held[slot] = number
        counts[tuple(sorted(held))] += 1
    for (i, j), found in counts.items():
        a, b = float(weights[i]), float(weights[j])
        expected = a / 6 * b / (6 - a) + b / 6 * a / (6 - b)
        assert found / trials == pytest.approx(expected, abs=4 * (expected * (1 - expected) / trials) ** 0.5)


def test_a_batch_is_kept_as_its_chunks_one_by_one() -> None:
    rng = torch.Generator().manual_seed(1)
    weights, draws = (torch.rand(9, dtype=torch.float64, generator=rng) for _ in range(2))
    at_once, one_by_one = (torch.full((4,), -torch.inf, dtype=torch.float64) for _ in range(2))
    weighted_slots(at_once, weights, draws)
    for i in range(9):
        weighted_slots(one_by_one, weights[i : i + 1], draws[i : i + 1])
    torch.testing.assert_close(at_once.sort().values, one_by_one.sort().values)


def test_balanced_gives_a_short_stretch_as_much_room_as_a_long_one() -> None:
    rng, kept = torch.Generator().manual_seed(2), torch.zeros(240)
    for _ in range(60):
        parts, held = stretches(12), torch.full((12,), -1)
        number = 0
        for loss, steps in ((3.0, 100), (5.0, 20)):  # five times as long
            for _ in range(steps):
                parts.observe_loss(loss)
                for slot in parts.slots(torch.rand(2, 2, dtype=torch.float64, generator=rng)).tolist():
                    if slot < 12:
                        held[slot] = number
                    number += 1
        assert torch.bincount(parts.of_slot, minlength=2)[:2].tolist() == [6, 6]
        kept[held] += 1
    long, short = kept[:200], kept[200:]
    assert long.sum() == short.sum() == 60 * 6
    # Within a stretch every chunk has the same probability: halves hold equally many, within four standard deviations.
    for part in (long, short):
        first, second = part[: len(part) // 2].sum(), part[len(part) // 2 :].sum()
        assert abs(float(first - second)) < 4 * (60 * 6) ** 0.5


def test_only_a_jump_begins_a_stretch() -> None:
    parts = stretches(4)
    heard = []
    for loss in itertools.chain([8.0 - 0.1 * i for i in range(30)], [5.4] * 5, [6.0] * 3, [7.5], [5.0] * 30, [6.5]):
        parts.observe_loss(loss)
        heard.append(int(parts.current))
    jumps = [step for step, (a, b) in enumerate(itertools.pairwise(heard), start=1) if a != b]
    assert len(jumps) == 2
    assert jumps[0] == 38, "6.0 is less than 0.5 above the mean of the steps before, 7.5 is more"
    for _ in range(9):  # there is room for four stretches. Further jumps belong to the last
        for loss in [1.0] * 25 + [9.0]:
            parts.observe_loss(loss)
    assert int(parts.current) == 3


@pytest.mark.parametrize("keep", ["loss", "surprise", "balanced"])
def test_a_network_hands_its_reservoir_what_it_asks_for(keep: str) -> None:
    net = excited(CortexNet(tiny_config(replay_keep=keep))).train()
    for step in range(4):
        rows = tokens(net.config, 3, 11, seed=step)
        net(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        chunks, scores = net.replay.take_staged()
        assert len(scores) == len(set(scores.tolist())) == 6, "every chunk has a score of its own"
        net.replay.commit(chunks, scores)
        net.skip_step()
    state = net.state_dict()
    again = CortexNet(tiny_config(replay_keep=keep))
    again.load_state_dict(state)
    assert again.replay.num_long == 6
    other = CortexNet(tiny_config())
    assert not {name for name in other.state_dict() if "stretch" in name or "reservoir_keys" in name}


def test_loss_scores_are_the_mean_of_the_chunks_tokens() -> None:
    net = excited(CortexNet(tiny_config(replay_keep="loss"))).train()
    rows = tokens(net.config, 2, 11)
    x, y = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    net(x, y)
    _, scores = net.replay.take_staged()
    nll = net.eval().predict(x, y).nll
    torch.testing.assert_close(scores, nll.reshape(4, 5).double().mean(dim=1), rtol=1e-5, atol=1e-5)


def test_hard_text_stays_longer() -> None:
    stores = ReplayStores(4, 50, 2, keep="loss")
    for first in range(0, 1000, 10):
        numbers = torch.arange(first, first + 10)
        stores.commit(torch.stack((numbers, numbers), dim=1).int(), torch.where(numbers % 2 == 0, 3.0, 1.0).double())
    hard = float((stores.long[:, 0] % 2 == 0).double().mean())
    assert hard == pytest.approx(0.75, abs=0.2)


def test_surprise_without_a_memory_is_refused() -> None:
    with pytest.raises(UserError, match="replay_keep=surprise needs the memory's critic"):
        tiny_config(replay_keep="surprise", memory=False)


@pytest.mark.parametrize("keep", ["uniform", "loss", "balanced"])
def test_what_is_drawn_before_the_reservoir_is_full_was_stored(keep: str) -> None:
    """An empty slot is a row of zeros, which must not be trained on."""
    store = ReplayStores(2, 64, 4, keep=keep)
    for step in range(5):
        store.commit(torch.full((3, 4), step + 1, dtype=torch.int32), torch.rand(3, dtype=torch.float64))
        assert bool(store.long[: int(store.seen)].all())
