from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tiny_config
from tests.ops.compare import compare_gradients
from trc2.model.hippocampus import Hippocampus
from trc2.nn.provenance import Origin, stamp
from trc2.nn.trunk import Pending
from trc2.reference import hippocampus as reference
from trc2.reference.hippocampus import Store


def build(dtype: torch.dtype = torch.float64, **changes: object) -> Hippocampus:
    hippocampus = Hippocampus(tiny_config(**changes))
    for parameter in hippocampus.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    return hippocampus.to(dtype)


def store_of(hippocampus: Hippocampus) -> Store:
    return Store(hippocampus.keys.clone(), hippocampus.values.clone(), hippocampus.count, hippocampus.pointer)


@pytest.mark.parametrize("length", [1, 2, 7, 63])
@pytest.mark.parametrize("events", [0, 4, 10, 17], ids=["empty", "part-filled", "full", "wrapped"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_recall_and_its_gradients_equal_the_reference(length: int, events: int, dtype: torch.dtype) -> None:
    hippocampus = build(dtype)
    hippocampus.write(torch.randn(events, 16, dtype=dtype))
    hidden = torch.randn(2, length, 16, dtype=dtype, requires_grad=True)
    fast = hippocampus.recall(hidden.flatten(0, 1)).unflatten(0, (2, length))
    weights = dict(hippocampus.named_parameters())
    slow = reference.recall(hidden, store_of(hippocampus), weights, top_k=3, read_window=8)
    close = 1e-11 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(fast, slow, atol=close, rtol=close)
    inputs = [hidden, hippocampus.query.weight, hippocampus.output.weight, hippocampus.output_gate]
    compare_gradients(fast.square().sum(), slow.square().sum(), inputs, atol=close, rtol=close)


@settings(deadline=None, max_examples=40)
@given(slots=st.integers(1, 12), batches=st.lists(st.integers(0, 15), max_size=5), window=st.integers(1, 14))
def test_the_circular_store_and_its_recent_window_equal_the_reference(
    slots: int, batches: list[int], window: int
) -> None:
    hippocampus = build(memory_slots=slots, memory_read_window=window)
    weights = dict(hippocampus.named_parameters())
    expected = store_of(hippocampus)
    for number, events in enumerate(batches):
        states = torch.randn(events, 16, dtype=torch.float64)
        origins = torch.full((events, 4), number)
        hippocampus.write(states, origins)
        for x in states:  # the reference writes event by event
            expected.keys[expected.pointer] = weights["write_key.weight"] @ x
            expected.values[expected.pointer] = weights["write_value.weight"] @ x
            expected.pointer = (expected.pointer + 1) % slots
            expected.count = min(expected.count + 1, slots)
    assert (hippocampus.count, hippocampus.pointer) == (expected.count, expected.pointer)
    torch.testing.assert_close(hippocampus.keys, expected.keys)
    torch.testing.assert_close(hippocampus.values, expected.values)
    read = sorted(slot for part in hippocampus.read_ranges() for slot in part)
    assert read == sorted(reference.read_set(expected, window))


@settings(deadline=None, max_examples=30)
@given(chunk=st.integers(1, 12), k=st.integers(1, 12), events=st.integers(1, 25), seed=st.integers(0, 99))
def test_the_search_is_exact_whatever_the_chunk(chunk: int, k: int, events: int, seed: int) -> None:
    hippocampus = build(memory_read_chunk=chunk, memory_top_k=k, memory_slots=20, memory_read_window=15)
    torch.manual_seed(seed)
    hippocampus.write(torch.randint(-1, 2, (events, 16)).double())  # few values, so that scores tie
    query = torch.randint(-1, 2, (3, 5)).double()
    found = hippocampus.search(query, hippocampus.read_ranges())
    slots = sorted(slot for part in hippocampus.read_ranges() for slot in part)
    scores = query @ hippocampus.keys[slots].T
    best = scores.sort(dim=1, descending=True).values[:, : min(k, len(slots))]
    torch.testing.assert_close((query @ hippocampus.keys.T).gather(1, found), best)


def test_ties_go_to_the_lowest_slot_also_in_a_wrapped_store() -> None:
    hippocampus = build(memory_slots=6, memory_read_window=6, memory_read_chunk=2, memory_top_k=2)
    hippocampus.write(torch.ones(1, 16, dtype=torch.float64).expand(9, 16))
    found = hippocampus.search(torch.randn(1, 5, dtype=torch.float64), hippocampus.read_ranges())
    assert found.tolist() == [[0, 1]]


@pytest.mark.parametrize("length", [2, 7, 63])
@pytest.mark.parametrize("micro_steps", [1, 3])
def test_appraisal_threshold_and_writes_equal_the_reference(length: int, micro_steps: int) -> None:
    hippocampus = build(memory_slots=12)
    weights = dict(hippocampus.named_parameters())
    critic = dict(hippocampus.critic.named_parameters())
    store, threshold = store_of(hippocampus), 0.0
    for _ in range(3):
        proposals: list[Pending] = []
        pending = []
        for _ in range(micro_steps):
            states = torch.randn(2, length, 16, dtype=torch.float64)
            appraisal, proposal = hippocampus.propose(states, None)
            td, prediction, surprise = reference.appraise(states, critic, discount=0.95, clip=1.0)
            torch.testing.assert_close(appraisal.loss_td, td)
            torch.testing.assert_close(appraisal.loss_predictor, prediction)
            torch.testing.assert_close(appraisal.surprise, surprise)
            proposals.append(Pending(proposal, stamp(proposal.places, None, step=0)))
            pending.append((states, surprise))
        report = hippocampus.commit(proposals)
        threshold = reference.commit(
            store, threshold, pending, weights, writes_per_sequence=3, target_writes=2, decay=0.99
        )
        torch.testing.assert_close(float(hippocampus.threshold), threshold)
        torch.testing.assert_close(hippocampus.keys, store.keys)
        torch.testing.assert_close(hippocampus.values, store.values)
        assert hippocampus.count == store.count
        assert report.candidates == micro_steps * 2 * min(3, length)


def test_proposing_does_not_change_what_is_recalled() -> None:
    hippocampus = build()
    hippocampus.write(torch.randn(4, 16, dtype=torch.float64))
    before = {name: tensor.clone() for name, tensor in hippocampus.state_dict().items()}
    hippocampus.propose(torch.randn(2, 9, 16, dtype=torch.float64), None)
    assert all(torch.equal(before[name], tensor) for name, tensor in hippocampus.state_dict().items())


def test_a_single_token_has_no_surprise_and_queues_nothing() -> None:
    appraisal, proposal = build().propose(torch.randn(2, 1, 16, dtype=torch.float64), None)
    assert proposal is None
    assert appraisal.loss_td == 0.0
    assert appraisal.loss_predictor == 0.0
    assert appraisal.surprise.tolist() == [[0.0], [0.0]]


def test_slots_remember_where_their_event_came_from() -> None:
    hippocampus = build(writes_per_sequence=2, target_writes_per_sequence=2, threshold_decay=0.0)
    states = torch.randn(1, 6, 16, dtype=torch.float64)
    document = torch.tensor([[7, 7, 7, 8, 8, 8]])
    _, proposal = hippocampus.propose(states, None)
    hippocampus.commit([Pending(proposal, stamp(proposal.places, Origin(task=3, document=document), step=11))])
    written = hippocampus.origins[: hippocampus.count]
    assert written.shape[0] > 0
    assert written[:, 0].tolist() == [3] * len(written)
    assert written[:, 1].tolist() == [11] * len(written)
    assert all(document[0, position] == doc for _, _, doc, position in written.tolist())
    assert (hippocampus.origins[hippocampus.count :] == -1).all()


def test_events_are_committed_in_order_of_sequence_and_position() -> None:
    hippocampus = build(memory_slots=64)
    with torch.no_grad():
        hippocampus.threshold.fill_(-1.0)
    _, proposal = hippocampus.propose(torch.randn(4, 9, 16, dtype=torch.float64), None)
    positions = proposal.places[:, 1].reshape(4, 3)
    assert torch.equal(positions, positions.sort(dim=1).values)
    hippocampus.commit([Pending(proposal, stamp(proposal.places, None, step=0))])
    torch.testing.assert_close(hippocampus.keys[0], hippocampus.write_key(proposal.states[0]))


def test_slow_heads_follow_by_moving_average() -> None:
    critic = build(slow_decay=0.75).critic
    slow, fast = critic.slow_value.weight.clone(), critic.value.weight
    critic.update_slow()
    torch.testing.assert_close(critic.slow_value.weight.data, 0.75 * slow + 0.25 * fast.detach())
