from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.ops.compare import compare
from trc2.ops.scan import Scanned, plain_selective_scan, selective_scan
from trc2.reference import mamba as reference

NAMES = ("x", "delta", "A", "B", "C", "state")


def draw(rows: int, length: int, channels: int, states: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, Δ ≥ 0, A < 0, B, C and a first state, all asking for gradients."""
    x, delta = torch.randn(2, rows, length, channels, dtype=dtype).unbind(0)
    B, C = torch.randn(2, rows, length, states, dtype=dtype).unbind(0)
    A, state = torch.randn(channels, states, dtype=dtype), torch.randn(rows, channels, states, dtype=dtype)
    return [t.clone().requires_grad_() for t in (x, torch.nn.functional.softplus(delta), -torch.exp(A), B, C, state)]


def slow_scan(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    rows = [reference.scan(list(x[b]), list(delta[b]), A, list(B[b]), list(C[b]), state[b]) for b in range(x.shape[0])]
    return torch.stack([torch.stack(ys) for ys, _ in rows]), torch.stack([last for _, last in rows])


def objective(y: Tensor, last: Tensor) -> Tensor:
    """Reads every output and the last state, each with a weight of its own."""
    return (y.square() * torch.arange(1, y.numel() + 1).view_as(y)).mean() + last.pow(3).sum()


@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (7, 1), (7, 3), (7, 7), (7, 32), (63, 16)])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-11), (torch.float32, 2e-4)], ids=str)
def test_outputs_and_gradients_equal_the_reference(length: int, chunk: int, dtype: torch.dtype, close: float) -> None:
    inputs = draw(2, length, 3, 2, dtype)
    y, last = selective_scan(*inputs, chunk=chunk)
    expected, expected_last = slow_scan(*inputs)
    torch.testing.assert_close(y, expected, atol=close, rtol=close)
    torch.testing.assert_close(last, expected_last, atol=close, rtol=close)
    fast = torch.autograd.grad(objective(y, last), inputs)
    slow = torch.autograd.grad(objective(expected, expected_last), inputs)
    for name, a, b in zip(NAMES, fast, slow, strict=True):
        torch.testing.assert_close(
            a, b, atol=close * float(b.abs().max()), rtol=close, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (7, 3), (63, 16)])
def test_values_and_gradients_equal_the_plain_scan(length: int, chunk: int) -> None:
    def joined(scanned: Scanned) -> Tensor:
        return torch.cat((scanned.y.flatten(), scanned.last_state.flatten()))

    inputs = draw(2, length, 3, 2)
    compare(lambda *t: joined(selective_scan(*t, chunk=chunk)), lambda *t: joined(plain_selective_scan(*t)), *inputs)


@settings(max_examples=30, deadline=None)
@given(length=st.integers(2, 20), cut=st.integers(1, 19), chunk=st.integers(1, 21), seed=st.integers(0, 1000))
def test_a_scan_can_be_interrupted_anywhere_whatever_the_chunk(length: int, cut: int, chunk: int, seed: int) -> None:
    cut = min(cut, length - 1)
    torch.manual_seed(seed)
    *inputs, state = draw(2, length, 3, 4)
    x, delta, A, B, C = inputs
    whole = selective_scan(*inputs, state)
    first = selective_scan(x[:, :cut], delta[:, :cut], A, B[:, :cut], C[:, :cut], state, chunk=chunk)
    rest = selective_scan(x[:, cut:], delta[:, cut:], A, B[:, cut:], C[:, cut:], first.last_state, chunk=chunk)
    torch.testing.assert_close(torch.cat((first.y, rest.y), dim=1), whole.y, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(rest.last_state, whole.last_state, atol=1e-12, rtol=1e-10)
    wanted = [*inputs, state]
    ours = torch.autograd.grad(first.y.square().sum() + rest.y.square().sum(), wanted)
    for a, b in zip(ours, torch.autograd.grad(whole.y.square().sum(), wanted), strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-9)


def test_without_a_first_state_the_scan_starts_from_zero() -> None:
    *inputs, state = draw(2, 6, 3, 4)
    torch.testing.assert_close(selective_scan(*inputs).y, selective_scan(*inputs, torch.zeros_like(state)).y)


def test_a_step_of_zero_leaves_the_state_alone() -> None:
    x, delta, A, B, C, state = draw(2, 9, 3, 4)
    silent = selective_scan(x, torch.zeros_like(delta), A, B, C, state, chunk=4)
    assert torch.equal(silent.last_state, state)
    torch.testing.assert_close(silent.y, torch.einsum("bdn,btn->btd", state, C))


@pytest.mark.parametrize("strength", [1.0, 30.0, 1000.0])
def test_decays_of_any_strength_neither_overflow_nor_lose_precision(strength: float) -> None:
    """Dividing by a product of decays, exp(−Σ ΔA), would overflow float32 within a few of these tokens."""
    narrow = draw(2, 150, 4, 3, torch.float32)
    with torch.no_grad():
        narrow[2].mul_(strength)
    wide = [tensor.detach().double().requires_grad_() for tensor in narrow]
    results = []
    for inputs in (narrow, wide):
        y, last = selective_scan(*inputs, chunk=64)
        results.append([y, last, *torch.autograd.grad(y.square().sum() + last.sum(), inputs)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-4 * float(b.detach().abs().max()), rtol=1e-3)


class LargestTensor(TorchDispatchMode):
    """Notes the largest storage any operation writes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


def test_only_the_states_of_one_chunk_are_held_and_one_per_chunk_is_kept() -> None:
    rows, length, channels, states, chunk = 2, 96, 32, 32, 4
    inputs = draw(rows, length, channels, states)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with LargestTensor() as seen:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            y, last = selective_scan(*inputs, chunk=chunk)
        torch.autograd.grad(y.sum() + last.sum(), inputs)
    per_step = rows * channels * states
    assert seen.elements == (chunk + 1) * per_step
    small = sum(tensor.numel() for tensor in inputs[:5])
    assert sum(kept) == small + length // chunk * per_step


def test_the_scan_keeps_float32_under_autocast() -> None:
    inputs = draw(2, 9, 4, 8, torch.float32)
    y, last = selective_scan(*inputs, chunk=4)
    grads = torch.autograd.grad(objective(y, last), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = selective_scan(*inputs, chunk=4)
        mixed_grads = torch.autograd.grad(objective(*mixed), inputs)
        with torch.no_grad():
            stepped = selective_scan(*(t[:, :1] if t.ndim == 3 and t is not inputs[5] else t for t in inputs))
    for a, b in zip((y, last, *grads, y[:, :1]), (*mixed, *mixed_grads, stepped.y), strict=True):
        assert b.dtype == torch.float32
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_half_types_are_widened() -> None:
    inputs = [tensor.detach().bfloat16() for tensor in draw(2, 9, 4, 8)]
    assert {tensor.dtype for tensor in selective_scan(*inputs)} == {torch.float32}
    torch.testing.assert_close(selective_scan(*inputs).y, selective_scan(*(t.float() for t in inputs)).y)
