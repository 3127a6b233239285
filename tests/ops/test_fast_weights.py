from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trc2.ops.fast_weights import LEAST_KEPT, Reading, Steps, fast_weights, recurrence, ridge_steps
from trc2.reference import falcon as reference

Problem = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # q, x, v, η, γ, state


def problem(
    rows: int, length: int, heads: int, width: int, channels: int, *, per_channel: bool, seed: int = 0
) -> Problem:
    """Random tokens in float64 whose steps are as large, and whose decays as strong, as they can be."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    q, x, v = (
        normal(rows, length, heads, width),
        normal(rows, length, heads, width),
        normal(rows, length, heads, channels),
    )
    gain = 2 * normal(rows, length, heads, channels if per_channel else 1).mul(3).sigmoid()
    steps = ridge_steps(gain, x, normal(rows, length, heads, 1).mul(3).sigmoid())
    return q, x, v, steps.write, steps.keep, normal(rows, heads, width, channels)


def live(tensors: Problem) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def run(tensors: list[Tensor], chunk: int | None) -> Reading:
    q, x, v, write, keep, state = tensors
    if chunk is None:
        return recurrence(q, x, v, Steps(write, keep), state)
    return fast_weights(q, x, v, Steps(write, keep), state, chunk)


def slowly(tensors: list[Tensor]) -> Reading:
    """The reference, row by row and head by head."""
    q, x, v, write, keep, state = tensors
    write, keep = write.expand_as(v), keep.expand_as(v)
    outputs, states = [], []
    for b in range(q.shape[0]):
        heads = [
            reference.fast_weights(*(list(t[b, :, h]) for t in (q, x, v, write, keep)), state[b, h])
            for h in range(q.shape[2])
        ]
        outputs.append(torch.stack([torch.stack(head[0]) for head in heads], dim=1))
        states.append(torch.stack([head[1] for head in heads]))
    return Reading(torch.stack(outputs), torch.stack(states))


def score(reading: Reading) -> Tensor:
    """A number in which every output and every weight counts differently."""
    weight = torch.linspace(0.5, 2.0, reading.output.numel(), dtype=reading.output.dtype).view(reading.output.shape)
    return (reading.output * weight).sum() + reading.state.square().sum()


def assert_same(ours: list[Tensor], theirs: list[Tensor], close: float) -> None:
    """Relative to the largest entry of each tensor."""
    for a, b in zip(ours, theirs, strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a.double() / b.abs().max(), b / b.abs().max(), atol=close, rtol=0.0)


def everything(tensors: list[Tensor], reading: Reading) -> list[Tensor]:
    return [reading.output, reading.state, *torch.autograd.grad(score(reading), tensors)]


@pytest.mark.parametrize("per_channel", [False, True], ids=["falcon1", "falcon2"])
@pytest.mark.parametrize(("length", "chunk"), [(1, 8), (1, None), (7, 8), (8, 8), (9, 4), (25, 12), (13, 1), (6, None)])
def test_outputs_state_and_gradients_equal_the_reference(length: int, chunk: int | None, per_channel: bool) -> None:
    tensors = live(problem(2, length, 2, 3, 4, per_channel=per_channel))
    assert_same(everything(tensors, run(tensors, chunk)), everything(tensors, slowly(tensors)), 1e-12)


@pytest.mark.parametrize("per_channel", [False, True], ids=["falcon1", "falcon2"])
@pytest.mark.parametrize(("length", "chunk"), [(1, 8), (7, 4), (63, 16)])
def test_values_and_gradients_equal_the_recurrence(length: int, chunk: int, per_channel: bool) -> None:
    tensors = live(problem(2, length, 2, 3, 4, per_channel=per_channel))
    ours, plain = run(tensors, chunk), run(tensors, None)
    assert_same(everything(tensors, ours), everything(tensors, plain), 1e-12)
    with torch.no_grad():
        again = run(tensors, chunk)
    assert torch.equal(again.output, ours.output)
    assert torch.equal(again.state, ours.state)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    chunk=st.integers(1, 12),
    per_channel=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_pieces_in_any_chunks_equal_the_recurrence(
    lengths: list[int], chunk: int, per_channel: bool, seed: int
) -> None:
    tensors = live(problem(1, sum(lengths), 2, 5, 3, per_channel=per_channel, seed=seed))
    state, outputs = tensors[5], []
    for piece in zip(*(tensor.split(lengths, dim=1) for tensor in tensors[:5]), strict=True):
        reading = run([*piece, state], chunk)
        outputs.append(reading.output)
        state = reading.state
    pieces = Reading(torch.cat(outputs, dim=1), state)
    assert_same(everything(tensors, pieces), everything(tensors, run(tensors, None)), 1e-11)


@pytest.mark.parametrize("chunk", [8, 16])
@pytest.mark.parametrize("forgetting", ["all", "some", "one channel", "first half of a chunk"])
@pytest.mark.parametrize("scale", [1.0, 1e-8])
def test_float32_stays_finite_and_exact_where_tokens_forget_all_they_can(
    chunk: int, forgetting: str, scale: float
) -> None:
    """A whole chunk of them decays by 1e-32 or 1e-64, far below what float32 can divide by. Gradients may be small."""
    tensors = problem(2, 48, 2, 8, 8, per_channel=True)
    keep = tensors[4]
    extreme = {
        "all": torch.ones_like(keep, dtype=torch.bool),
        "some": torch.rand(keep.shape, generator=torch.Generator().manual_seed(0)) < 0.5,
        "one channel": torch.arange(8).expand(keep.shape) == 3,
        "first half of a chunk": (torch.arange(48) % chunk < chunk // 2).view(1, -1, 1, 1).expand(keep.shape),
    }[forgetting]
    tensors = (*tensors[:4], keep.masked_fill(extreme, LEAST_KEPT), tensors[5])
    wide = live(tensors)
    narrow = [tensor.detach().float().requires_grad_() for tensor in wide]
    exact, fast = run(wide, None), run(narrow, chunk)
    assert_same([fast.output, fast.state], [exact.output, exact.state], 2e-6)
    expected = torch.autograd.grad(scale * score(exact), wide)
    ours = torch.autograd.grad(scale * score(fast), narrow)
    assert_same([*ours[:4], ours[5]], [*expected[:4], expected[5]], 1e-5)
    # ∂log γ is a difference of terms like ∂log η, and has their absolute precision where all but nothing is kept.
    off = (ours[4] * narrow[4]).double() - expected[4] * wide[4]
    assert off.abs().max() < 1e-5 * (expected[3] * wide[3]).abs().max()


def test_a_token_without_a_feature_neither_writes_nor_forgets() -> None:
    q, x, v, _, _, state = problem(1, 3, 2, 4, 4, per_channel=True)
    x[:, 1] = 0.0
    steps = ridge_steps(torch.full_like(v, 2.0), x, torch.ones(1, 3, 2, 1, dtype=torch.float64))
    assert (steps.keep[:, 1] == 1.0).all()
    reading = recurrence(*(t[:, 1:2] for t in (q, x, v)), Steps(steps.write[:, 1:2], steps.keep[:, 1:2]), state)
    assert torch.equal(reading.state, state)


def test_steps_follow_the_ridge_and_never_forget_everything() -> None:
    x = torch.tensor([3.0, 4.0]).view(1, 1, 1, 2)
    gain = torch.tensor([0.5, 2.0]).view(1, 1, 1, 2)
    steps = ridge_steps(gain, x, torch.full((1, 1, 1, 1), 0.2))
    torch.testing.assert_close(steps.write.flatten(), torch.tensor([0.5 / 30, 2.0 / 30]))
    torch.testing.assert_close(steps.keep.flatten(), torch.tensor([1 - 2.5 / 30, 1 - 10 / 30]))
    saturated = ridge_steps(gain, x, torch.full((1, 1, 1, 1), 50.0))
    torch.testing.assert_close(saturated.keep.flatten(), torch.tensor([1 - 0.5 * 50 / 51, LEAST_KEPT]))


def test_a_full_step_stores_the_value_exactly() -> None:
    """Without a ridge and with β = 1, reading with the key just written gives its value back."""
    _, x, v, _, _, state = problem(1, 9, 2, 4, 4, per_channel=True)
    steps = ridge_steps(torch.ones_like(v), x, torch.zeros(1, 9, 2, 1, dtype=torch.float64))
    torch.testing.assert_close(fast_weights(x, x, v, steps, state, 4).output, v, atol=1e-5, rtol=1e-5)


def test_only_states_between_chunks_are_kept_for_the_backward_pass() -> None:
    tensors = live(problem(1, 64, 2, 16, 16, per_channel=True))
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run(tensors, 8)
    one_state, tokens = 2 * 16 * 16, 2 * 64 * 16
    assert sum(kept.values()) <= 9 * one_state + 12 * tokens
    assert sum(kept.values()) < 64 * one_state


def test_autocast_does_not_narrow_the_products() -> None:
    tensors = [tensor.detach().float().requires_grad_() for tensor in problem(1, 9, 2, 8, 8, per_channel=True)]
    plain = everything(tensors, run(tensors, 8))
    with torch.autocast("cpu", torch.bfloat16):
        inside = everything(tensors, run(tensors, 8))
    for a, b in zip(inside, plain, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


def test_the_arguments_are_left_alone() -> None:
    tensors = problem(1, 9, 2, 4, 4, per_channel=True)
    copies = [tensor.clone() for tensor in tensors]
    run(live(tensors), 4)
    run(list(tensors), 4)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
