"""Fast weights: one matrix per head that every token corrects by a step of online ridge regression.

    r_t = v_t − S_{t−1}ᵀ x_t
    S_t = S_{t−1} diag(γ_t) + x_t (η_t ⊙ r_t)ᵀ
    o_t = S_tᵀ q_t

S is (K, J), write features by value channels. FALCON-1 has one step size η and one decay γ per head and token,
FALCON-2 one per value channel: here they differ only in the last dimension of η and γ, which is 1 or J.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

EPS = 1e-6
LEAST_KEPT = 1e-4  # ε_γ: no token forgets more than all but this share


@dataclass(frozen=True)
class Steps:
    """How much a token writes (η) and what share of the past it keeps (γ), per head or per value channel."""

    write: Float[Tensor, "B T H J"]
    keep: Float[Tensor, "B T H J"]


@dataclass(frozen=True)
class Reading:
    """What the tokens read, and the weights after the last of them."""

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

    Products stay in the type of the arguments, whatever autocast says: halves would not do. In float32 a chunk may
    have up to 16 tokens: their decays lie within 1e±32 of the one in the middle even if all keep only ε_γ.
    """
    length, heads = q.shape[1], state.shape[:2]
    chunk = min(chunk, length)
    qx = torch.cat((_cut(q, chunk), _cut(x, chunk)), dim=3)
    others = (_cut(v, chunk), _cut(steps.write, chunk), _cut(steps.keep, chunk, filler=1.0))
    chunks = (tensor.flatten(1, 2).contiguous() for tensor in (qx, *others))
    with torch.autocast(q.device.type, enabled=False):
        output, last = _Chunks.apply(*chunks, state.flatten(0, 1))
    tokens = output.unflatten(1, heads).permute(1, 0, 3, 2, 4).flatten(1, 2)
    return Reading(tokens if tokens.shape[1] == length else tokens[:, :length], last.unflatten(0, heads))


def recurrence(
    q: Float[Tensor, "B T H K"],
    x: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H J"],
    steps: Steps,
    state: Float[Tensor, "B H K J"],
) -> Reading:
    """The same, token by token."""
    heads, weights, outputs = state.shape[:2], state.flatten(0, 1), []
    tensors = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (q, x, v, steps.write, steps.keep))
    for query, feature, value, write, keep in zip(*(tensor.split(1, dim=1) for tensor in tensors), strict=True):
        written = write * (value - feature @ weights)
        weights = torch.baddbmm(weights * keep, feature.mT, written)
        outputs.append(query @ weights)
    output = torch.cat(outputs, dim=1).unflatten(0, heads).transpose(1, 2)
    return Reading(output, weights.unflatten(0, heads))


def _cut(tokens: Float[Tensor, "B T H K"], chunk: int, filler: float = 0.0) -> Float[Tensor, "N B H C K"]:
    """Chunks first; what the last one lacks is filled with tokens that neither write (η = 0) nor forget (γ = 1)."""
    missing = -tokens.shape[1] % chunk
    if missing:
        tokens = F.pad(tokens, (0, 0, 0, 0, 0, missing), value=filler)
    return tokens.unflatten(1, (-1, chunk)).permute(1, 0, 3, 2, 4)


class _Chunks(torch.autograd.Function):
    """The recurrence over N chunks of C tokens, for A = B·H heads at once; keeps the states between chunks only.

    Inside a chunk that begins with S, let E_t = γ_1 ⋯ γ_t, c its value in the middle, F = E/c and F_0 = 1/c. Then

        z_t = η_t/γ_t ⊙ (v_t/F_{t−1} − c ⊙ Sᵀx_t − Σ_{s<t} (x_t·x_s) z_s)        which is η_t ⊙ r_t / F_t
        o_t = F_t ⊙ (c ⊙ Sᵀq_t + Σ_{s≤t} (q_t·x_s) z_s)
        S ← S diag(E_C) + Σ_s x_s (F_C ⊙ z_s)ᵀ

    A decay from s to t is F_t/F_s: products keep the relative precision that sums of logarithms lose, and counting
    from the middle halves the exponent of the largest factor. The first line is a triangular system for each value
    channel; substitution, token by token over all channels at once, never builds its matrices.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qx: Float[Tensor, "N A _R K"],
        v: Float[Tensor, "N A C J"],
        write: Float[Tensor, "N A C _J"],
        keep: Float[Tensor, "N A C _J"],
        state: Float[Tensor, "A K J"],
    ) -> tuple[Float[Tensor, "N A C J"], Float[Tensor, "A K J"]]:
        length = v.shape[2]
        x = qx[:, :, length:]
        products = qx @ x.mT  # rows of q_t·x_s, then rows of x_t·x_s
        scores, gram = products.split(length, dim=2)
        scores *= _triangles(length, v)[:length]
        decay, middle, total = _decays(keep)
        gain = write / keep
        residual = _divided_by_previous(v, decay, middle)
        solution, output = torch.empty_like(v), torch.empty_like(v)
        states = v.new_empty(v.shape[0] + 1, *state.shape)
        states[0] = state
        substitutions = _substitutions(residual, gain, gram, solution)
        for n, substitution in enumerate(substitutions):
            from_state, r = (qx[n] @ states[n]).mul_(middle[n]), residual[n]
            r -= from_state[:, length:]
            _substitute(substitution)
            torch.baddbmm(from_state[:, :length], scores[n], solution[n], out=output[n]).mul_(decay[n])
            kept = states[n] * total[n]
            torch.baddbmm(kept, x[n].mT, solution[n] * decay[n, :, -1:], out=states[n + 1])
        ctx.save_for_backward(qx, v, keep, products, decay, middle, total, gain, residual, solution, states, output)
        return output, states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_output: Float[Tensor, "N A C J"], grad_state: Float[Tensor, "A K J"]
    ) -> tuple[Tensor, ...]:
        with torch.autocast(grad_output.device.type, enabled=False):
            return _backward(grad_output.contiguous(), grad_state, *ctx.saved_tensors)


def _backward(
    grad_output: Tensor,
    grad_state: Tensor,
    qx: Tensor,
    v: Tensor,
    keep: Tensor,
    products: Tensor,
    decay: Tensor,
    middle: Tensor,
    total: Tensor,
    gain: Tensor,
    residual: Tensor,
    solution: Tensor,
    states: Tensor,
    output: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients, chunks in reverse: the transposed systems give those of the right-hand sides, products the rest.

        y_t = η_t/γ_t ⊙ (Σ_{s≥t} (q_s·x_t) F_s ⊙ ∂o_s + F_C ⊙ ∂Sᵀx_t − Σ_{s>t} (x_s·x_t) y_s)
        ∂S ← ∂S diag(E_C) + Σ_t q_t (c ⊙ F_t ⊙ ∂o_t)ᵀ − Σ_t x_t (c ⊙ y_t)ᵀ

    `sources` holds F_t ⊙ ∂o_t, then −y_t: the gradients of what q_t and x_t read from S, but for the factor c.
    """
    length = v.shape[2]
    x = qx[:, :, length:]
    scores, gram = products.split(length, dim=2)
    sources = v.new_empty(*qx.shape[:3], v.shape[3])
    of_queries, of_features = sources.split(length, dim=2)
    torch.mul(grad_output, decay, out=of_queries)
    grad_solution = scores.mT @ of_queries
    grad_log_decay = grad_output * output  # of log E_t, then of log γ_t
    grad_qx, grad_x = torch.empty_like(qx), v.new_empty(x.shape)
    substitutions = _substitutions(grad_solution, gain, gram, of_features, backwards=True)
    for n, substitution in reversed(list(enumerate(substitutions))):
        last_decay = decay[n, :, -1:]
        grad_solution[n].addcmul_(x[n] @ grad_state, last_decay)
        _substitute(substitution)
        of_features[n].neg_()
        grad_log_decay[n, :, -1] += torch.linalg.vecdot(grad_state, states[n + 1], dim=1)
        torch.bmm(solution[n] * last_decay, grad_state.mT, out=grad_x[n])
        source = sources[n] * middle[n]
        torch.bmm(source, states[n].mT, out=grad_qx[n])
        grad_state = torch.baddbmm(grad_state * total[n], qx[n].mT, source)

    # Above the diagonal, where a product divides decays the wrong way round, it may overflow.
    grad_products = (sources @ solution.mT).nan_to_num_().mul_(_triangles(length, v))
    _add_product(grad_qx, grad_products, x)
    _add_product(grad_x, grad_products.mT, qx)
    grad_qx[:, :, length:] += grad_x
    grad_v = _divided_by_previous(of_features, decay, middle).neg_()
    grad_gain = grad_solution.mul_(residual)  # each substitution left behind what its gains multiply

    # E_t multiplies o_t and divides v_{t+1}, E_C multiplies the state (above); log γ_t is in all E from t on, and in
    # the gain η_t/γ_t.
    grad_log_decay[:, :, :-1] -= grad_v[:, :, 1:] * v[:, :, 1:]
    for t in reversed(range(length - 1)):
        grad_log_decay[:, :, t] += grad_log_decay[:, :, t + 1]
    grad_log_decay.addcmul_(grad_gain, gain, value=-1)
    grad_write, grad_keep = ((grad / keep).sum_to_size(keep.shape) for grad in (grad_gain, grad_log_decay))
    return grad_qx, grad_v, grad_write, grad_keep, grad_state


Substitution = tuple[tuple[Tensor, Tensor, Tensor, Tensor, Tensor], ...]


def _substitutions(
    target: Float[Tensor, "N A C J"],
    gain: Float[Tensor, "N A C _J"],
    gram: Float[Tensor, "N A C C"],
    solution: Float[Tensor, "N A C J"],
    *,
    backwards: bool = False,
) -> Sequence[Substitution]:
    """For every chunk, the views that its substitution visits; all cut at once, for cutting is a third of the work."""
    length = target.shape[2]
    visits = []
    for t in reversed(range(length)) if backwards else range(length):
        here, unsolved = slice(t, t + 1), slice(0, t) if backwards else slice(t + 1, length)
        rows = (tensor[:, :, here] for tensor in (target, gain, solution))
        cuts = (*rows, target[:, :, unsolved], gram[:, :, unsolved, here])
        visits.append(zip(*(cut.unbind() for cut in cuts), strict=True))
    return list(zip(*visits, strict=True))


def _substitute(substitution: Substitution) -> None:
    """z_t = gain_t ⊙ (target_t − Σ_s gram_ts z_s) over the s already solved; leaves the bracket in `target`."""
    for target, gain, solution, unsolved, gram in substitution:
        torch.mul(target, gain, out=solution)
        unsolved.addcmul_(gram, solution, value=-1)


def _decays(keep: Float[Tensor, "N A C J"]) -> tuple[Tensor, Tensor, Tensor]:
    """F, c and E_C of every chunk; F is built outwards from the middle, for E itself may be too small for float32."""
    half = (keep.shape[2] - 1) // 2
    decay = torch.empty_like(keep)
    decay[:, :, half] = 1.0
    for t in range(half + 1, keep.shape[2]):
        torch.mul(decay[:, :, t - 1], keep[:, :, t], out=decay[:, :, t])
    for t in reversed(range(half)):
        torch.div(decay[:, :, t + 1], keep[:, :, t + 1], out=decay[:, :, t])
    middle = keep[:, :, :1] / decay[:, :, :1]
    return decay, middle, middle * decay[:, :, -1:]


def _divided_by_previous(rows: Float[Tensor, "N A C J"], decay: Tensor, middle: Tensor) -> Float[Tensor, "N A C J"]:
    """rows_t / F_{t−1}, where F_0 = 1/c."""
    quotient = rows.new_empty(rows.shape)
    torch.mul(rows[:, :, :1], middle, out=quotient[:, :, :1])
    torch.div(rows[:, :, 1:], decay[:, :, :-1], out=quotient[:, :, 1:])
    return quotient


def _triangles(length: int, like: Tensor) -> Float[Tensor, "_R C"]:
    """Ones where q_t·x_s counts (s ≤ t), then where x_t·x_s does (s < t); torch's batched tril takes far longer."""
    ones = like.new_ones(length, length)
    return torch.cat((ones.tril(), ones.tril(-1)))


def _add_product(total: Float[Tensor, "N A _R K"], left: Tensor, right: Tensor) -> None:
    flat = total.flatten(0, 1)
    torch.baddbmm(flat, left.flatten(0, 1), right.flatten(0, 1), out=flat)
