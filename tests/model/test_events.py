"""The slots: circle and reservoir against the reference, and how even the sample is."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.model.events import EventStore
from trc2.nn.keyed import keyed_generator
from trc2.reference import hippocampus as reference
from trc2.reference.hippocampus import Store


def store(slots: int, reservoir: int, window: int, seed: int = 0) -> EventStore:
    return EventStore(slots, 1, 1, window=window, reservoir=reservoir, seed=seed, notes={"following": ()})


def write(events: EventStore, first: int, total: int) -> None:
    """Events whose key, value and next token are their number."""
    numbers = torch.arange(first, first + total)
    rows = numbers.unsqueeze(1)
    events.insert(
        {"keys": rows.float(), "values": -rows.float(), "origins": rows.expand(-1, 4), "following": numbers}, total
    )


def seen(events: EventStore) -> list[int]:
    return events.keys[events.readable(), 0].long().tolist()


@settings(deadline=None, max_examples=60)
@given(
    slots=st.integers(1, 8),
    reservoir=st.integers(1, 6),
    window=st.integers(1, 10),
    batches=st.lists(st.integers(0, 14), max_size=6),
)
def test_circle_and_reservoir_equal_the_reference(slots: int, reservoir: int, window: int, batches: list[int]) -> None:
    events = store(slots, reservoir, window)
    keys = torch.zeros(slots + reservoir, 1)
    expected = Store(keys, keys.clone(), 0, 0, reservoir, 0, torch.full((slots + reservoir,), -1))
    written = 0
    for total in batches:
        leaving = max(0, min(written, slots, window) + total - min(slots, window))
        draws = torch.rand(
            leaving, dtype=torch.float64, generator=keyed_generator("memory reservoir", 0, expected.left)
        ).tolist()
        write(events, written, total)
        for number in range(written, written + total):  # the reference writes event by event
            leaves = min(expected.count, window) == min(slots, window)
            draw = draws.pop(0) if leaves else 0.0
            key = torch.tensor([float(number)])
            reference.insert(expected, key, -key, read_window=window, draw=draw, token=number)
        written += total
    assert torch.equal(events.keys, expected.keys)
    assert torch.equal(events.values, expected.values)
    assert torch.equal(events.following, expected.following)
    assert sorted(reference.read_set(expected, window)) == events.readable().tolist()
    assert (events.count, events.num_sampled) == (expected.count, min(expected.left, reservoir))
    # Every event is seen once, the most recent ones for certain.
    assert len(set(seen(events))) == len(seen(events)) == min(written, min(slots, window) + reservoir)
    assert set(range(max(0, written - min(slots, window)), written)) <= set(seen(events))


def test_every_event_that_left_has_the_same_chance_to_be_kept() -> None:
    runs, left, size = 300, 40, 8
    kept = torch.zeros(left)
    for seed in range(runs):
        events = store(4, size, 4, seed)
        for first in range(0, left + 4, 11):
            write(events, first, 11)
        kept[events.keys[4:, 0].long()] += 1
    share = size / left
    deviation = (kept / runs - share) / (share * (1 - share) / runs) ** 0.5
    assert deviation.abs().max() < 4.0
    assert kept.sum() == runs * size


def test_a_store_without_reservoir_has_the_tensors_of_before() -> None:
    names = set(EventStore(4, 2, 3, window=4).state_dict())
    assert names == {"keys", "values", "origins", "cursor.count", "cursor.pointer"}


def test_the_last_of_several_replacements_stays() -> None:
    events = store(4, 0, 4)
    write(events, 0, 4)
    events.replace(torch.tensor([1, 3, 1]), {"keys": torch.tensor([[7.0], [8.0], [9.0]])})
    assert events.keys[:, 0].tolist() == [0.0, 9.0, 2.0, 8.0]
    assert events.values[:, 0].tolist() == [0.0, -1.0, -2.0, -3.0]
