"""Appendix "Cortical column": norm, rotary attention with shifted queries, routed experts, balance penalty."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trc2.config import TRC2Config
from trc2.reference import Weights, under


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """One vector: x / sqrt(mean(x²) + ε) ⊙ gain."""
    return x / torch.sqrt((x * x).mean() + eps) * gain


def rms_norm_rows(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return torch.stack([torch.stack([rms_norm(token, gain, eps) for token in row]) for row in x])


def rotate(x: Tensor, position: int, base: float | None) -> Tensor:
    """One head's vector: the pair (x_i, x_{i+K/2}) turned by position · base^(−2i/K). Without a base, not at all."""
    if base is None:
        return x
    half = x.shape[0] // 2
    turned = list(x)
    for i in range(half):
        angle = position * base ** (-2 * i / x.shape[0])
        cos, sin = math.cos(angle), math.sin(angle)
        turned[i] = x[i] * cos - x[i + half] * sin
        turned[i + half] = x[i + half] * cos + x[i] * sin
    return torch.stack(turned)


def attention(
    u: Tensor, z: Tensor | None, weights: Weights, num_heads: int, num_kv_heads: int, base: float | None
) -> Tensor:
    """(B, T, D): each query token looks at itself and at everything before it."""
    d_model = u.shape[-1]
    width = d_model // num_heads
    repeat = num_heads // num_kv_heads
    w_q, w_k, w_v = weights["qkv.weight"].split([d_model, num_kv_heads * width, num_kv_heads * width])
    rows = []
    for b in range(u.shape[0]):
        queries, keys, values = [], [], []
        for t in range(u.shape[1]):
            q = w_q @ u[b, t]
            if z is not None and "query_shift.weight" in weights:
                q = q + weights["query_shift.weight"] @ z[b, t]
            k, v = w_k @ u[b, t], w_v @ u[b, t]
            queries.append([rotate(q[h * width : (h + 1) * width], t, base) for h in range(num_heads)])
            keys.append([rotate(k[g * width : (g + 1) * width], t, base) for g in range(num_kv_heads)])
            values.append([v[g * width : (g + 1) * width] for g in range(num_kv_heads)])
        tokens = []
        for t in range(u.shape[1]):
            heads = []
            for h in range(num_heads):
                g = h // repeat
                scores = torch.stack([queries[t][h] @ keys[s][g] / width**0.5 for s in range(t + 1)])
                shares = torch.softmax(scores, dim=0)
                heads.append(sum((shares[s] * values[s][g] for s in range(t + 1)), torch.zeros_like(values[0][g])))
            tokens.append(weights["output.weight"] @ torch.cat(heads))
        rows.append(torch.stack(tokens))
    return torch.stack(rows)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def swiglu(u: Tensor, weights: Weights) -> Tensor:
    """One token: W_2 (SiLU(W_1 u) ⊙ W_3 u)."""
    w_1, w_3 = weights["gate_up.weight"].chunk(2)
    return weights["down.weight"] @ (silu(w_1 @ u) * (w_3 @ u))


def largest(scores: Tensor, k: int) -> list[int]:
    """Indices of the k largest entries of a vector. The lowest index wins a tie."""
    values = scores.tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


def mixture(u: Tensor, weights: Weights, num_active: int) -> Tensor:
    """One token: Σ over the chosen experts of renormalised weight times expert, plus the shared expert."""
    p = torch.softmax(weights["gate.weight"] @ u, dim=0)
    chosen = largest(p, num_active)
    total = sum((p[e] for e in chosen), torch.zeros_like(p[0]))
    out = torch.zeros_like(u)
    for e in chosen:
        out = out + p[e] / total * swiglu(u, under(weights, f"experts.{e}."))
    if "shared.gate_up.weight" in weights:
        out = out + swiglu(u, under(weights, "shared."))
    return out


def balance(u: Tensor, weights: Weights, num_chosen: int = 1) -> Tensor:
    """A_lb = E Σ_e load_e imp_e over the tokens u (N, D). The load counts the most probable expert of every token.

    DeepSeekMoE's Σ_i f_i P_i counts all K' experts that a token chooses, each 1 / K'.
    """
    gate = weights["gate.weight"]
    num_experts, num_tokens = gate.shape[0], u.shape[0]
    load = [0.0] * num_experts
    importance = [torch.zeros((), dtype=u.dtype)] * num_experts
    for token in u:
        p = torch.softmax(gate @ token, dim=0)
        for e in largest(p, num_chosen):
            load[e] += 1 / (num_chosen * num_tokens)
        for e in range(num_experts):
            importance[e] = importance[e] + p[e] / num_tokens
    return num_experts * sum((load[e] * importance[e] for e in range(num_experts)), torch.zeros((), dtype=u.dtype))


def column(hidden: Tensor, z: Tensor | None, weights: Weights, config: TRC2Config) -> tuple[Tensor, Tensor]:
    """(H⁺, A_lb) of one column. C = W_L5 H⁺ is left to the caller."""
    heads, groups, num_active = config.num_heads, config.num_kv_heads, config.num_active_experts
    u = rms_norm_rows(hidden, weights["attention_norm.gain"], config.norm_eps)
    hidden = hidden + attention(u, z, under(weights, "attention."), heads, groups, config.rotary_base)
    v = rms_norm_rows(hidden, weights["expert_norm.gain"], config.norm_eps)
    experts = under(weights, "experts.")
    mixed = torch.stack([torch.stack([mixture(token, experts, num_active) for token in row]) for row in v])
    return hidden + mixed, balance(v.flatten(0, 1), experts)
