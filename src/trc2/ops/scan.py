"""Mamba's selective scan: a linear recurrence whose decay depends on the token, a chunk of tokens at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from trc2.ops.modes import at_least_float32, with_gradient


class Scanned(NamedTuple):
    """What was read at every token, and the state after the last one."""

    y: Float[Tensor, "B T D"]
    last_state: Float[Tensor, "B D N"]


def selective_scan(
    x: Float[Tensor, "B T D"],
    delta: Float[Tensor, "B T D"],
    A: Float[Tensor, "D N"],
    B: Float[Tensor, "B T N"],
    C: Float[Tensor, "B T N"],
    initial_state: Float[Tensor, "B D N"] | None = None,
    *,
    chunk: int = 32,
) -> Scanned:
    """s_t = exp(Δ_t A) ∘ s_{t−1} + (Δ_t x_t) ⊗ B_t;  y_t = s_t C_t: every channel of x drives N states of its own.

    Runs in float32 or better. Of the T×D×N states only those of one chunk are ever held. Training also keeps the one
    that enters each chunk, from which the backward pass runs the chunk again. The recurrence is computed as it is
    written, so no decay is ever divided out. A < 0 and Δ ≥ 0 keep every factor at most 1. A token with Δ = 0 leaves
    the state as it is.
    """
    x, delta, A, B, C = (at_least_float32(tensor) for tensor in (x, delta, A, B, C))
    state = x.new_zeros(x.shape[0], *A.shape) if initial_state is None else at_least_float32(initial_state)
    with torch.autocast(x.device.type, enabled=False):
        return Scanned(*with_gradient(_Scan.apply, _without_gradient, x, delta, A, B, C, state, chunk))


def plain_selective_scan(
    x: Float[Tensor, "B T D"],
    delta: Float[Tensor, "B T D"],
    A: Float[Tensor, "D N"],
    B: Float[Tensor, "B T N"],
    C: Float[Tensor, "B T N"],
    initial_state: Float[Tensor, "B D N"],
) -> Scanned:
    """The same in torch operations, token by token. Autograd would keep every state of every token."""
    state, outputs = initial_state, []
    for t in range(x.shape[1]):
        decay = torch.exp(delta[:, t].unsqueeze(2) * A)
        state = decay * state + (delta[:, t] * x[:, t]).unsqueeze(2) * B[:, t].unsqueeze(1)
        outputs.append((state * C[:, t].unsqueeze(1)).sum(dim=2))
    return Scanned(torch.stack(outputs, dim=1), state)


class _Scan(torch.autograd.Function):
    """Keeps the inputs and the states that enter the chunks. The backward pass runs every chunk again from there."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        y, last, entering = _forward(x, delta, A, B, C, state, chunk)
        ctx.save_for_backward(x, delta, A, B, C, *entering)
        ctx.chunk = chunk
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        """With g_t = C_t dy_t + exp(Δ_{t+1} A) g_{t+1}, the derivative by s_t, the others are sums of its products:

        dC_t = s_t dy_t,  dB_t = g_t Δ_t x_t,  d(Δ_t x_t) = g_t B_t,  d(Δ_t A) = g_t exp(Δ_t A) s_{t−1}.
        """
        x, delta, A, B, C, *entering = ctx.saved_tensors
        decay, states, grads = _buffers(x, A, ctx.chunk, 3)
        rates, A_t = _rates(A), A.t().contiguous()
        inputs = _time_first(delta * x, delta, B, C)
        results = grad_driven, grad_delta, grad_B, grad_C = [torch.empty_like(tensor) for tensor in inputs]
        grad_A = torch.zeros_like(A_t)
        later = grad_last.mT.clone(memory_format=torch.contiguous_format)
        chunks = list(zip(_chunks(ctx.chunk, *inputs, *_time_first(grad_y), *results), entering, strict=True))
        for (driven_c, delta_c, B_c, C_c, dy, d_driven, d_delta, d_B, d_C), state in reversed(chunks):
            a, s, g = decay[: len(dy)], states[: len(dy) + 1], grads[: len(dy)]
            s[0] = state
            _run(a, s, driven_c, delta_c, rates, B_c)
            torch.mul(dy.unsqueeze(2), C_c.unsqueeze(3), out=g)
            g[-1] += later
            _run_back(g, a)
            torch.mul(a[0], g[0], out=later)

            _contract(dy, s[1:].mT, out=d_C)
            _contract(driven_c, g.mT, out=d_B)
            _contract(B_c, g, out=d_driven)
            d_exponent = a.mul_(g).mul_(s[:-1])
            torch.sum(torch.mul(d_exponent, A_t, out=g), dim=2, out=d_delta)
            grad_A += d_exponent.mul_(delta_c.unsqueeze(2)).sum(dim=(0, 1))
        grad_driven, grad_delta = grad_driven.transpose(0, 1), grad_delta.transpose(0, 1)
        grad_x, grad_delta = grad_driven * delta, torch.addcmul(grad_delta, grad_driven, x)
        return grad_x, grad_delta, grad_A.t(), grad_B.transpose(0, 1), grad_C.transpose(0, 1), later.mT, None


def _without_gradient(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Also in chunks: the plain version needs several operations per token, a chunk one for most of its work."""
    if x.shape[1] == 1:
        return _step(x, delta, A, B, C, state)
    y, last, _ = _forward(x, delta, A, B, C, state, chunk)
    return y, last


def _step(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token while decoding, without chunks."""
    decay = torch.exp(delta.mT * A)
    state = torch.addcmul(decay.mul_(state), (delta * x).mT, B)
    return (state @ C.mT).mT, state


def _forward(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs, the last state, and the states that enter the chunks.

    Inside, time comes first and channels last: a step is one pass over contiguous (B, N, D), and what has no N is
    spread over rows of D instead of single numbers.
    """
    decay, states = _buffers(x, A, chunk, 2)
    rates = _rates(A)
    inputs = _time_first(delta * x, delta, B, C)
    y = torch.empty_like(inputs[0])
    entering = [state.mT.contiguous()]
    for driven_c, delta_c, B_c, C_c, y_c in _chunks(chunk, *inputs, y):
        s = states[: len(y_c) + 1]
        s[0] = entering[-1]
        _run(decay[: len(y_c)], s, driven_c, delta_c, rates, B_c)
        _contract(C_c, s[1:], out=y_c)
        entering.append(s[-1].clone())
    last = entering.pop()
    return y.transpose(0, 1), last.mT, entering


def _run(
    decay: Float[Tensor, "c B N D"],
    states: Float[Tensor, "c+1 B N D"],
    driven: Float[Tensor, "c B D"],
    delta: Float[Tensor, "c B D"],
    rates: Float[Tensor, "N D"],
    B: Float[Tensor, "c B N"],
) -> None:
    """Fill a chunk's decays, and its states after the first one, which is given."""
    torch.mul(delta.unsqueeze(2), rates, out=decay).exp2_()
    torch.mul(driven.unsqueeze(2), B.unsqueeze(3), out=states[1:])
    before, *after = states.unbind(0)
    for factor, state in zip(decay.unbind(0), after, strict=True):
        before = state.addcmul_(factor, before)


def _run_back(grads: Float[Tensor, "c B N D"], decay: Float[Tensor, "c B N D"]) -> None:
    """Add to the gradient of every state of a chunk what comes back from the next one."""
    factors, steps = decay.unbind(0), grads.unbind(0)
    for t in range(len(steps) - 1, 0, -1):
        steps[t - 1].addcmul_(factors[t], steps[t])


def _contract(vectors: Float[Tensor, "c B K"], matrices: Float[Tensor, "c B K M"], *, out: Tensor) -> None:
    """out = Σ_K vectors · matrices, for every token. With the vector on the right it takes ten times as long on CPUs.

    Autocast, which may be on during the backward pass, leaves products with `out` alone.
    """
    torch.matmul(vectors.unsqueeze(2), matrices, out=out.unsqueeze(2))


def _rates(A: Float[Tensor, "D N"]) -> Float[Tensor, "N D"]:
    """exp(ΔA) = 2^(Δ · A log₂e): on CPUs exp2 takes half the time of exp, and a tenth where results underflow."""
    return A.t().contiguous() * math.log2(math.e)


def _buffers(x: Tensor, A: Tensor, chunk: int, count: int) -> list[Tensor]:
    """Buffers of the size of the c + 1 states of a chunk. All chunks share them."""
    return [x.new_empty(min(chunk, x.shape[1]) + 1, x.shape[0], A.shape[1], A.shape[0]) for _ in range(count)]


def _time_first(*tensors: Float[Tensor, "B T _"]) -> list[Tensor]:
    return [tensor.transpose(0, 1).contiguous() for tensor in tensors]


def _chunks(size: int, *tensors: Float[Tensor, "T B _"]) -> Iterator[tuple[Tensor, ...]]:
    """The same stretch of every tensor, from the first to the last. Writing to a stretch writes to its tensor."""
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)
