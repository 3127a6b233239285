"""Appendix "Hippocampal memory": retrieval, appraisal, deferred writes, feedback."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trc2.config import TRC2Config
from trc2.reference import Weights, under
from trc2.reference.column import largest, silu


@dataclass
class Store:
    """The memory as plain lists would have it: slots in a circle."""

    keys: Tensor
    values: Tensor
    count: int
    pointer: int


def read_set(store: Store, read_window: int) -> list[int]:
    """I_read: the most recent n_read slots."""
    slots = store.keys.shape[0]
    n_read = min(store.count, read_window)
    return [(store.pointer - n_read + j) % slots for j in range(n_read)]


def insert(store: Store, key: Tensor, value: Tensor) -> None:
    """One event into the circle."""
    slots = store.keys.shape[0]
    store.keys[store.pointer], store.values[store.pointer] = key, value
    store.pointer = (store.pointer + 1) % slots
    store.count = min(store.count + 1, slots)


def attention(h: Tensor, store: Store, weights: Weights, *, top_k: int, read_window: int) -> list[tuple[int, Tensor]]:
    """(slot, α) of one token: softmax over the exact top-k scores only."""
    slots = sorted(read_set(store, read_window))
    if not slots:
        return []
    q = weights["query.weight"] @ h
    scores = torch.stack([q @ store.keys[i] / store.keys.shape[1] ** 0.5 for i in slots])
    chosen = largest(scores, min(top_k, len(slots)))
    alpha = torch.softmax(scores[chosen], dim=0)
    return [(slots[j], alpha[rank]) for rank, j in enumerate(chosen)]


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
    index = q * (len(ordered) - 1)
    low, high = math.floor(index), math.ceil(index)
    return ordered[low] + (ordered[high] - ordered[low]) * (index - low)


def commit(
    store: Store,
    threshold: float,
    pending: list[tuple[Tensor, Tensor]],
    weights: Weights,
    *,
    writes_per_sequence: int,
    target_writes: int,
    decay: float,
) -> float:
    """Write the survivors of pending (X, s) pairs into the store. Returns the new threshold."""
    candidates: list[tuple[float, Tensor]] = []
    for states, scores in pending:
        for x, s in zip(states, scores, strict=True):
            for t in sorted(largest(s, min(writes_per_sequence, len(s)))):
                candidates.append((float(s[t]), x[t]))
    if not candidates:
        return threshold
    keep = min(1.0, target_writes / writes_per_sequence)
    batch_threshold = quantile([score for score, _ in candidates], 1 - keep)
    threshold = decay * threshold + (1 - decay) * batch_threshold
    for score, x in candidates:
        if score > threshold:
            key, value = weights["write_key.weight"] @ x, weights["write_value.weight"] @ x
            insert(store, key, value)
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


def hippocampal_feedback(hidden: Tensor, store: Store, weights: Weights, config: TRC2Config) -> Tensor:
    """From the early-cortex state to F_hip."""
    top_k, window = config.memory_top_k, config.memory_read_window
    memory = recall(hidden, store, under(weights, "hippocampus."), top_k=top_k, read_window=window)
    return feedback(hidden, memory, under(weights, "feedback."), top_fraction=config.gate_top_fraction)
