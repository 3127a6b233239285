"""Fast weights: one matrix per head that every token corrects by a step of online ridge regression.

    r_t = v_t − S_{t−1}ᵀ x_t
    S_t = S_{t−1} diag(γ_t) + x_t (η_t ⊙ r_t)ᵀ
    o_t = S_tᵀ q_t

S is (K, J), write features by value channels. FALCON-1 has one step size η and one decay γ per head and token,
FALCON-2 one per value channel. In this file they differ only in the last dimension of η and γ, which is 1 or J.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trc2.ops.modes import with_gradient

EPS = 1e-6
LEAST_KEPT = 1e-4  # ε_γ: no token forgets more than all but this share


@dataclass(frozen=True)
class Steps:
    """How much a token writes (η) and what share of the past it keeps (γ), per head or per value channel."""

    write: Float[Tensor, "B T H J"]
    keep: Float[Tensor, "B T H J"]


@dataclass(frozen=True)
class Reading:
    """The outputs of the tokens, and the weights after the last token."""

    output: Float[Tensor, "B T H J"]
    state: Float[Tensor, "B H K J"]


def ridge_steps(
    gain: Float[Tensor, "B T H J"], x: Float[Tensor, "B T H K"], relative_ridge: Float[Tensor, "B T H 1"]
) -> Steps:
    """η = β / (|x|² + λ + ε) and γ = 1 − min(ηλ, 1 − ε_γ), with a ridge λ = λ̄ |x|² on the scale of the feature."""
    energy = x.square().sum(dim=-1, keepdim=True)
    ridge = relative_ridge * energy
    write = gain / (energy + ridge + EPS)
    return Steps(write, 1 - (write * ridge).clamp_max(1 - LEAST_KEPT))


def fast_weights(
    q: Float[Tensor, "B T H K"],
    x: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H J"],
    steps: Steps,
    state: Float[Tensor, "B H K J"],
    chunk: int,
) -> Reading:
    """Run T tokens from `state`, `chunk` of them at a time: equal to `recurrence`, in less time and memory.

    Products stay in the type of the arguments even under autocast: half precision would not be enough. In float32 a
    chunk may have up to 16 tokens: their decays lie within 1e±32 of the one in the middle even if all keep only ε_γ.
    """
    length, heads = q.shape[1], state.shape[:2]
    chunk = min(chunk, length)
    qx = torch.cat([_cut(tensor, chunk).permute(0, 2, 3, 1, 4) for tensor in (q, x)], dim=3).flatten(1, 2)
    others = (_cut(v, chunk), _cut(steps.write, chunk), _cut(steps.keep, chunk, filler=1.0))
    tensors = qx, *(tensor.flatten(2, 3).contiguous() for tensor in others), state.flatten(0, 1)
    with torch.autocast(q.device.type, enabled=False):
        output, last = with_gradient(_Chunks.apply, _without_gradient, *tensors)
    tokens = output.flatten(0, 1).unflatten(1, heads).transpose(0, 1)
    return Reading(tokens if tokens.shape[1] == length else tokens[:, :length], last.unflatten(0, heads))


def recurrence(
    q: Float[Tensor, "B T H K"],
    x: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H J"],
    steps: Steps,
    state: Float[Tensor, "B H K J"],
) -> Reading:
    """The plain version: the same in torch operations, token by token."""
    heads, weights, outputs = state.shape[:2], state.flatten(0, 1), []
    tensors = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (q, x, v, steps.write, steps.keep))
    for query, feature, value, write, keep in zip(*(tensor.split(1, dim=1) for tensor in tensors), strict=True):
        written = write * (value - feature @ weights)
        weights = torch.baddbmm(weights * keep, feature.mT, written)
        outputs.append(query @ weights)
    output = torch.cat(outputs, dim=1).unflatten(0, heads).transpose(1, 2)
    return Reading(output, weights.unflatten(0, heads))


def _cut(tokens: Float[Tensor, "B T H K"], chunk: int, filler: float = 0.0) -> Float[Tensor, "N C B H K"]:
    """Chunks first. The last one is filled up with tokens that neither write (η = 0) nor forget (γ = 1)."""
    missing = -tokens.shape[1] % chunk
    if missing:
        tokens = F.pad(tokens, (0, 0, 0, 0, 0, missing), value=filler)
    return tokens.unflatten(1, (-1, chunk)).permute(1, 2, 0, 3, 4)


class _Chunks(torch.autograd.Function):
    """The recurrence over N chunks of C tokens, for A = B·H heads at once. Keeps the states between chunks only.

    Inside a chunk that begins with S, let E_t = γ_1 ⋯ γ_t, c its value in the middle, F = E/c and F_0 = 1/c. Then

        z_t = η_t/γ_t ⊙ (v_t/F_{t−1} − c ⊙ Sᵀx_t − Σ_{s<t} (x_t·x_s) z_s)        which is η_t ⊙ r_t / F_t
        o_t = F_t ⊙ (c ⊙ Sᵀq_t + Σ_{s≤t} (q_t·x_s) z_s)
        S ← S diag(E_C) + Σ_s x_s (F_C ⊙ z_s)ᵀ

    A decay from s to t is F_t/F_s: products keep the relative precision that sums of logarithms lose, and counting
    from the middle halves the exponent of the largest factor. The first line is a triangular system for each value
    channel. Substitution, token by token over all channels at once, never builds its matrices.
    """

    @staticmethod
    def forward(ctx: Any, qx: Tensor, v: Tensor, write: Tensor, keep: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        output, last, kept = _forward(qx, v, write, keep, state)
        ctx.save_for_backward(qx, v, write, keep, *kept, output)
        return output, last

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_output: Float[Tensor, "N C A J"], grad_state: Float[Tensor, "A K J"]
    ) -> tuple[Tensor, ...]:
        with torch.autocast(grad_output.device.type, enabled=False):
            return _backward(grad_output, grad_state, *ctx.saved_tensors)


def _without_gradient(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Also in chunks, which take less time than single tokens."""
    output, last, _ = _forward(*tensors)
    return output, last


def _forward(
    qx: Float[Tensor, "N A _R K"],
    v: Float[Tensor, "N C A J"],
    write: Float[Tensor, "N C A _J"],
    keep: Float[Tensor, "N C A _J"],
    state: Float[Tensor, "A K J"],
) -> tuple[Float[Tensor, "N C A J"], Float[Tensor, "A K J"], tuple[Tensor, ...]]:
    """Outputs, the last state, and the tensors that the backward pass needs."""
    num_chunks, length = v.shape[:2]
    decay, middle, total = _decays(keep)
    system = _System(v[0], write[0])
    residual, output = torch.empty_like(v), torch.empty_like(v)
    states = v.new_empty(num_chunks + 1, *state.shape)
    states[0] = state
    for n in range(num_chunks):
        system.load(qx[n], write[n], keep[n])
        read = (qx[n] @ states[n]).mul_(_swap(middle[n]))
        _divide_by_previous(v[n], decay[n], middle[n], out=system.target)
        system.target.sub_(_swap(read[:, length:]))
        system.solve()
        residual[n] = system.target
        inside = torch.baddbmm(read[:, :length], system.scores, _swap(system.solution))
        torch.mul(_swap(inside), decay[n], out=output[n])
        written = _swap(system.solution * decay[n, -1:])
        torch.baddbmm(states[n] * _swap(total[n]), qx[n, :, length:].mT, written, out=states[n + 1])
    # A copy of the last state: a view of it would keep the states of all chunks alive.
    return output, states[-1].clone(), (decay, middle, total, residual, states)


def _backward(
    grad_output: Tensor,
    grad_state: Tensor,
    qx: Tensor,
    v: Tensor,
    write: Tensor,
    keep: Tensor,
    decay: Tensor,
    middle: Tensor,
    total: Tensor,
    residual: Tensor,
    states: Tensor,
    output: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients, chunks in reverse: the transposed systems give those of the right-hand sides, products the rest.

        y_t = η_t/γ_t ⊙ (Σ_{s≥t} (q_s·x_t) F_s ⊙ ∂o_s + F_C ⊙ ∂Sᵀx_t − Σ_{s>t} (x_s·x_t) y_s)
        ∂S ← ∂S diag(E_C) + Σ_t q_t (c ⊙ F_t ⊙ ∂o_t)ᵀ − Σ_t x_t (c ⊙ y_t)ᵀ

    `source` holds F_t ⊙ ∂o_t, then −y_t: the gradients of what q_t and x_t read from S, without the factor c.
    """
    num_chunks, length, num_heads, width = v.shape
    system = _System(v[0], write[0], backwards=True)
    source = v.new_empty(num_heads, 2 * length, width)
    grad_qx, grad_v, grad_write, grad_log_decay = (torch.empty_like(tensor) for tensor in (qx, v, v, v))
    for n in reversed(range(num_chunks)):
        x, last_decay = qx[n, :, length:], decay[n, -1:]
        system.load(qx[n], write[n], keep[n])
        written = _swap(residual[n] * system.gain)
        torch.mul(_swap(grad_output[n]), _swap(decay[n]), out=source[:, :length])
        from_outputs, from_state = system.scores.mT @ source[:, :length], x @ grad_state
        torch.addcmul(_swap(from_outputs), _swap(from_state), last_decay, out=system.target)
        system.solve()
        torch.neg(_swap(system.solution), out=source[:, length:])
        _divide_by_previous(system.solution, decay[n], middle[n], out=grad_v[n])
        torch.mul(system.target, residual[n], out=grad_write[n])  # of η/γ, which multiplies both brackets
        torch.mul(grad_output[n], output[n], out=grad_log_decay[n])
        grad_log_decay[n, -1] += torch.linalg.vecdot(grad_state, states[n + 1], dim=1)
        # Above the diagonal, where a product divides decays the wrong way round, it may overflow.
        grad_products = (source @ written.mT).nan_to_num_().mul_(system.triangles)
        scaled = source * _swap(middle[n])
        torch.baddbmm(scaled @ states[n].mT, grad_products, x, out=grad_qx[n])
        from_writing = (written * _swap(last_decay)) @ grad_state.mT
        grad_qx[n, :, length:] += torch.baddbmm(from_writing, grad_products.mT, qx[n])
        grad_state = torch.baddbmm(grad_state * _swap(total[n]), qx[n].mT, scaled)

    # E_t multiplies o_t and divides v_{t+1}, E_C multiplies the state (above). The term log γ_t is in all E from t on,
    # and in the gain η_t/γ_t.
    grad_log_decay[:, :-1].addcmul_(grad_v[:, 1:], v[:, 1:], value=-1)
    for t in reversed(range(length - 1)):
        grad_log_decay[:, t] += grad_log_decay[:, t + 1]
    grad_write /= keep
    grad_log_decay.addcmul_(grad_write, write, value=-1)
    grad_keep = grad_log_decay.div_(keep)
    return grad_qx, grad_v, grad_write.sum_to_size(write.shape), grad_keep.sum_to_size(keep.shape), grad_state


class _System:
    """The triangular systems of one chunk, z_t = gain_t ⊙ (target_t − Σ_{s<t} (x_t·x_s) z_s), or s > t.

    Every chunk is loaded into the same buffers, so that the views a substitution visits are cut only once.
    """

    def __init__(self, v: Float[Tensor, "C A J"], write: Float[Tensor, "C A _J"], *, backwards: bool = False) -> None:
        length, num_heads, _ = v.shape
        ones = v.new_ones(length, length)
        self.triangles = torch.cat((ones.tril(), ones.tril(-1)))  # torch's batched tril takes far longer
        self.products = v.new_empty(num_heads, 2 * length, length)  # rows of q_t·x_s, then rows of x_t·x_s
        self.scores = self.products[:, :length]
        self.gain, self.target, self.solution = torch.empty_like(write), torch.empty_like(v), torch.empty_like(v)
        gram = self.products[:, length:].permute(1, 2, 0).unsqueeze(-1)
        self.visits = []
        for t in reversed(range(length)) if backwards else range(length):
            unsolved = slice(0, t) if backwards else slice(t + 1, length)
            rows = self.target[t], self.gain[t], self.solution[t]
            self.visits.append((*rows, self.target[unsolved], gram[unsolved, t]))

    def load(self, qx: Float[Tensor, "A _R K"], write: Float[Tensor, "C A _J"], keep: Float[Tensor, "C A _J"]) -> None:
        length = write.shape[0]
        torch.bmm(qx, qx[:, length:].mT, out=self.products)
        self.scores.mul_(self.triangles[:length])
        torch.div(write, keep, out=self.gain)

    def solve(self) -> None:
        """Substitution, token by token over all channels. Leaves the bracket in `target`."""
        for target, gain, solution, unsolved, gram in self.visits:
            torch.mul(target, gain, out=solution)
            unsolved.addcmul_(gram, solution, value=-1)


def _decays(keep: Float[Tensor, "N C A J"]) -> tuple[Tensor, Tensor, Tensor]:
    """F, c and E_C of every chunk. F is built outwards from the middle, for E itself may be too small for float32."""
    half = (keep.shape[1] - 1) // 2
    decay = torch.empty_like(keep)
    decay[:, half] = 1.0
    for t in range(half + 1, keep.shape[1]):
        torch.mul(decay[:, t - 1], keep[:, t], out=decay[:, t])
    for t in reversed(range(half)):
        torch.div(decay[:, t + 1], keep[:, t + 1], out=decay[:, t])
    middle = keep[:, :1] / decay[:, :1]
    return decay, middle, middle * decay[:, -1:]


def _divide_by_previous(rows: Float[Tensor, "C A J"], decay: Tensor, middle: Tensor, *, out: Tensor) -> None:
    """rows_t / F_{t−1}, where F_0 = 1/c."""
    torch.mul(rows[:1], middle, out=out[:1])
    torch.div(rows[1:], decay[:-1], out=out[1:])


def _swap(x: Float[Tensor, "_A _C J"]) -> Float[Tensor, "_C _A J"]:
    """Between tokens first, the fast order of element-wise work, and heads first, that of products."""
    return x.transpose(0, 1)
