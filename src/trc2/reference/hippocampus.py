"""Appendix "Hippocampal memory": retrieval, appraisal, deferred writes, feedback."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trc2.reference import Weights, under
from trc2.reference.column import largest
from trc2.reference.thalamus import silu


@dataclass
class Store:
    """The memory as plain lists would have it: a circle, then `reservoir` slots for events that left its view."""

    keys: Tensor
    values: Tensor
    count: int
    pointer: int
    reservoir: int = 0
    left: int = 0
    following: Tensor | None = None

    @property
    def circle(self) -> int:
        return self.keys.shape[0] - self.reservoir


def read_set(store: Store, read_window: int) -> list[int]:
    """I_read: the most recent n_read slots, and whatever the reservoir holds."""
    slots = store.circle
    n_read = min(store.count, read_window)
    sampled = [slots + j for j in range(min(store.left, store.reservoir))]
    if store.count < slots:
        return list(range(store.count - n_read, store.count)) + sampled
    return [(store.pointer - n_read + j) % slots for j in range(n_read)] + sampled


def insert(store: Store, key: Tensor, value: Tensor, *, read_window: int, draw: float = 0.0, token: int = -1) -> None:
    """One event into the circle; the one that leaves the reader's view for it may go to the reservoir.

    Not in the paper: leaving event number n takes slot n while there is room, then slot r = ⌊draw · (n + 1)⌋ if that is
    a slot.
    """
    window = min(store.circle, read_window)
    if store.reservoir and min(store.count, window) == window:
        place = store.left if store.left < store.reservoir else int(draw * (store.left + 1))
        if place < store.reservoir:
            copy(store, (store.pointer - window) % store.circle, store.circle + place)
        store.left += 1
    store.keys[store.pointer], store.values[store.pointer] = key, value
    if store.following is not None:
        store.following[store.pointer] = token
    store.pointer = (store.pointer + 1) % store.circle
    store.count = min(store.count + 1, store.circle)


def copy(store: Store, source: int, target: int) -> None:
    for tensor in (store.keys, store.values, store.following):
        if tensor is not None:
            tensor[target] = tensor[source]


def attention(h: Tensor, store: Store, weights: Weights, *, top_k: int, read_window: int) -> list[tuple[int, Tensor]]:
    """(slot, α) of one token: softmax over the exact top-k scores only."""
    slots = sorted(read_set(store, read_window))
    if not slots:
        return []
    q = weights["query.weight"] @ h
    scores = torch.stack([q @ store.keys[i] / store.keys.shape[1] ** 0.5 for i in slots])
    chosen = largest(scores, min(top_k, len(slots)))
    alpha = torch.softmax(scores[chosen], dim=0)
    return [(slots[j], alpha[place]) for place, j in enumerate(chosen)]


def readout(hidden: Tensor, store: Store, weights: Weights, *, top_k: int, read_window: int) -> Tensor:
    """R (B, T, D)."""
    rows = []
    for row in hidden:
        tokens = []
        for h in row:
            r = torch.zeros_like(store.values[0])
            for slot, alpha in attention(h, store, weights, top_k=top_k, read_window=read_window):
                r = r + alpha * store.values[slot]
            tokens.append(r)
        rows.append(torch.stack(tokens))
    return torch.stack(rows)


def mixed(
    logits: Tensor, hidden: Tensor, final: Tensor, store: Store, weights: Weights, *, top_k: int, read_window: int
) -> Tensor:
    """log p (B, T, V), p = (1 − g m) p_model + g Σ α [the token that followed the slot]; m is the α that know theirs.

    Not in the paper. g = 0.999 σ(⟨w, final⟩ + b); `hidden` are the early states, by which slots are found.
    """
    assert store.following is not None
    result = []
    for b in range(hidden.shape[0]):
        for t in range(hidden.shape[1]):
            gate = 0.999 * torch.sigmoid(weights["next_gate"] @ final[b, t] + weights["next_gate_bias"][0])
            p = torch.softmax(logits[b, t], dim=0)
            mixture = torch.zeros_like(p)
            mass = torch.zeros_like(gate)
            for slot, alpha in attention(hidden[b, t], store, weights, top_k=top_k, read_window=read_window):
                token = int(store.following[slot])
                if token >= 0:
                    mass = mass + alpha
                    mixture = mixture + alpha * torch.eye(len(p), dtype=p.dtype)[token]
            result.append(((1 - gate * mass) * p + gate * mixture).log())
    return torch.stack(result).view(logits.shape)


def recall(hidden: Tensor, store: Store, weights: Weights, *, top_k: int, read_window: int) -> Tensor:
    """M = (R W_O) ⊙ σ(g_hip)."""
    r = readout(hidden, store, weights, top_k=top_k, read_window=read_window)
    return r @ weights["output.weight"].T * torch.sigmoid(weights["output_gate"])


def unit(x: Tensor) -> Tensor:
    return x / (torch.sqrt((x * x).sum()) + 1e-6)


def appraise(states: Tensor, weights: Weights, *, discount: float, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """(L_td, L_pred, s) of states X (B, T, D)."""

    def predict(x: Tensor, head: str) -> Tensor:
        return weights[f"{head}.outer.weight"] @ silu(weights[f"{head}.inner.weight"] @ x)

    zero = torch.zeros((), dtype=states.dtype)
    td, prediction, scores = zero, zero, []
    batch, length, _ = states.shape
    transitions = max(1, batch * (length - 1))
    for x in states:
        row = [zero]
        for t in range(length - 1):
            target = unit(x[t + 1])
            fast = unit(predict(x[t], "predictor")) @ target
            slow = unit(predict(x[t], "slow_predictor")) @ target
            reward = torch.clamp(fast - slow, min=0.0).detach()
            prediction = prediction + (1 - fast) / transitions
            value, slow_value = weights["value.weight"][0], weights["slow_value.weight"][0]
            delta_fast = torch.clamp(reward + discount * (value @ x[t + 1]) - value @ x[t], -clip, clip)
            delta_slow = torch.clamp(reward + discount * (slow_value @ x[t + 1]) - slow_value @ x[t], -clip, clip)
            td = td + delta_fast**2 / (2 * transitions)
            row.append(delta_slow.abs().detach())
        scores.append(torch.stack(row))
    return td, prediction, torch.stack(scores)


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between the two neighbouring order statistics."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def commit(
    store: Store,
    threshold: float,
    pending: list[tuple[Tensor, Tensor]],
    weights: Weights,
    *,
    writes_per_sequence: int,
    target_writes: int,
    decay: float,
    updates: int | None = None,
) -> float:
    """Write the survivors of pending (X, s) pairs into the store; returns the new threshold.

    With `updates` made before, the threshold is Adam's: τ / (1 − β^n) of an average τ that began at 0. It is kept and
    returned divided, so it is multiplied out first.
    """
    candidates: list[tuple[float, Tensor]] = []
    for states, scores in pending:
        for x, s in zip(states, scores, strict=True):
            for t in sorted(largest(s, min(writes_per_sequence, len(s)))):
                candidates.append((float(s[t]), x[t]))
    if not candidates:
        return threshold
    keep = min(1.0, target_writes / writes_per_sequence)
    batch_threshold = quantile([score for score, _ in candidates], 1 - keep)
    if updates is not None:
        threshold = threshold * (1 - decay**updates)
    threshold = decay * threshold + (1 - decay) * batch_threshold
    if updates is not None:
        threshold = threshold / (1 - decay ** (updates + 1))
    for score, x in candidates:
        if score > threshold:
            key, value = weights["write_key.weight"] @ x, weights["write_value.weight"] @ x
            insert(store, key, value, read_window=store.circle)
    return threshold


def feedback(hidden: Tensor, memory: Tensor, weights: Weights, *, top_fraction: float) -> Tensor:
    """F_hip = σ(a_hip) ((G ⊙ M) W), with only the ⌈ρ d⌉ largest channels of G kept at each token."""
    d_model = hidden.shape[-1]
    kept = math.ceil(top_fraction * d_model - 1e-9)
    rows = []
    for b in range(hidden.shape[0]):
        tokens = []
        for t in range(hidden.shape[1]):
            joined = torch.cat((hidden[b, t].detach(), memory[b, t]))
            gate = torch.sigmoid(weights["gate.weight"] @ joined + weights["gate_bias"])
            mask = torch.zeros_like(gate)
            mask[largest(gate, kept)] = 1.0
            mixed = weights["to_thalamus.weight"] @ (gate * mask * memory[b, t])
            tokens.append(torch.sigmoid(weights["strength"]) * mixed)
        rows.append(torch.stack(tokens))
    return torch.stack(rows)


def hippocampal_feedback(
    hidden: Tensor, store: Store, weights: Weights, *, top_k: int, read_window: int, top_fraction: float
) -> Tensor:
    """From the early-cortex state to F_hip."""
    memory = recall(hidden, store, under(weights, "hippocampus."), top_k=top_k, read_window=read_window)
    return feedback(hidden, memory, under(weights, "feedback."), top_fraction=top_fraction)
