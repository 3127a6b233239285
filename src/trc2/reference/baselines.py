"""Transformer, MoE, DeepSeekMoE and BlkAttnRes in slow code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trc2.backbones.blk_attn_res import BlkAttnResConfig
from trc2.backbones.blocks import BaselineConfig
from trc2.backbones.deepseek_moe import DeepSeekMoEConfig
from trc2.backbones.moe import MoEConfig
from trc2.backbones.transformer import TransformerConfig
from trc2.reference import Weights, under
from trc2.reference import column as trc2
from trc2.reference.column import largest, rms_norm, rms_norm_rows, swiglu
from trc2.reference.cortex import next_token_loss


@dataclass
class Pass:
    logits: Tensor
    balance: Tensor


Forward = Callable[[Tensor, Weights], Pass]  # of tokens (B, T)
Part = Callable[[Tensor, Weights], Tensor]  # a mixer or feed-forward part: (B, T, D) in and out
Penalty = Callable[[Tensor, Weights], Tensor]  # the balance loss of tokens (N, D)


def transformer(config: TransformerConfig) -> Forward:
    return lambda x, weights: residual_stream(x, weights, config, attention(config), each_token(swiglu))


def moe(config: MoEConfig) -> Forward:
    """TRC²'s experts and balance loss. The weights contain no shared expert."""

    def mixture(u: Tensor, weights: Weights) -> Tensor:
        return trc2.mixture(u, weights, config.num_active_experts)

    return lambda x, weights: residual_stream(x, weights, config, attention(config), each_token(mixture), trc2.balance)


def deepseek_moe(config: DeepSeekMoEConfig) -> Forward:
    def experts(u: Tensor, weights: Weights) -> Tensor:
        return fine_grained_mixture(u, weights, config.num_active_experts, config.num_shared_experts)

    def penalty(u: Tensor, weights: Weights) -> Tensor:
        return trc2.balance(u, weights, config.num_active_experts)

    return lambda x, weights: residual_stream(x, weights, config, attention(config), each_token(experts), penalty)


def blk_attn_res(config: BlkAttnResConfig) -> Forward:
    return lambda x, weights: attention_residuals(x, weights, config)


def objective(
    forward: Forward,
    x: Tensor,
    targets: Tensor,
    replayed: Tensor | None,
    weights: Weights,
    config: BaselineConfig,
) -> Tensor:
    """L = L_LM + λ_router λ_lb Σ A + λ_rep L_rep, replay in a pass of its own."""
    main = forward(x, weights)
    loss = next_token_loss(main.logits, targets) + config.lambda_router * config.lambda_load_balance * main.balance
    if replayed is not None:
        again = forward(replayed, weights)
        loss = loss + config.replay_coefficient * next_token_loss(again.logits[:, :-1], replayed[:, 1:])
    return loss


# ------------------------------------------------------------------------------------------------------------- wiring


def residual_stream(
    x: Tensor,
    weights: Weights,
    config: BaselineConfig,
    mixer: Part,
    feed_forward: Part,
    penalty: Penalty | None = None,
) -> Pass:
    """h ← h + Mixer(RMSNorm(h));  h ← h + FFN(RMSNorm(h)), L times."""
    hidden = embed(x, weights)
    total = torch.zeros((), dtype=hidden.dtype)
    for layer in range(config.num_layers):
        block = under(weights, f"blocks.{layer}.")
        u = rms_norm_rows(hidden, block["mixer_norm.gain"], config.norm_eps)
        hidden = hidden + mixer(u, under(block, "mixer."))
        u = rms_norm_rows(hidden, block["ff_norm.gain"], config.norm_eps)
        hidden = hidden + feed_forward(u, under(block, "feed_forward."))
        if penalty is not None:
            total = total + penalty(u.flatten(0, 1), under(block, "feed_forward."))
    return Pass(head(hidden, weights, config), total)


def attention_residuals(x: Tensor, weights: Weights, config: BlkAttnResConfig) -> Pass:
    """The method's own pseudocode: every sub-layer looks at all its sources again."""
    num_sublayers = 2 * config.num_layers
    size = (num_sublayers + config.num_residual_blocks - 1) // config.num_residual_blocks
    blocks = [embed(x, weights)]
    partial: Tensor | None = None
    for index in range(num_sublayers):
        if index > 0 and index % size == 0:
            assert partial is not None
            blocks.append(partial)
            partial = None
        sources = blocks if partial is None else [*blocks, partial]
        hidden = aggregate(sources, under(weights, f"depth_queries.{index}."), config.norm_eps)
        block = under(weights, f"blocks.{index // 2}.")
        if index % 2 == 0:
            u = rms_norm_rows(hidden, block["mixer_norm.gain"], config.norm_eps)
            output = attention(config)(u, under(block, "mixer."))
        else:
            u = rms_norm_rows(hidden, block["ff_norm.gain"], config.norm_eps)
            output = each_token(swiglu)(u, under(block, "feed_forward."))
        partial = output if partial is None else partial + output
    assert partial is not None
    hidden = aggregate([*blocks, partial], under(weights, f"depth_queries.{num_sublayers}."), config.norm_eps)
    return Pass(head(hidden, weights, config), torch.zeros((), dtype=hidden.dtype))


def embed(x: Tensor, weights: Weights) -> Tensor:
    """E[token] + P[position]. With rotary positions, E[token] alone."""
    token, position = weights["embedding.weight"], weights.get("positions.weight")
    if position is None:
        return torch.stack([torch.stack([token[i] for i in row]) for row in x])
    return torch.stack([torch.stack([token[row[t]] + position[t] for t in range(x.shape[1])]) for row in x])


def head(hidden: Tensor, weights: Weights, config: BaselineConfig) -> Tensor:
    return rms_norm_rows(hidden, weights["final_norm.gain"], config.norm_eps) @ weights["embedding.weight"].T


# -------------------------------------------------------------------------------------------------------------- parts


def attention(config: BaselineConfig) -> Part:
    """As many key heads as query heads, no shift. Rotated unless positions are learned."""
    heads, base = config.num_heads, config.rotation_base
    return lambda u, weights: trc2.attention(u, None, weights, heads, heads, base)


def each_token(function: Part) -> Part:
    """A function of one token's vector (D,), applied to all of (B, T, D)."""
    return lambda u, weights: torch.stack([torch.stack([function(token, weights) for token in row]) for row in u])


def fine_grained_mixture(u: Tensor, weights: Weights, num_active: int, num_shared: int) -> Tensor:
    """One token: Σ over the shared experts, plus Σ over the chosen ones weighted by their raw scores."""
    s = torch.softmax(weights["gate.weight"] @ u, dim=0)
    out = torch.zeros_like(u)
    for e in range(num_shared):
        out = out + swiglu(u, shared_expert(weights, e, num_shared))
    for e in largest(s, num_active):
        out = out + s[e] * swiglu(u, under(weights, f"experts.{e}."))
    return out


def shared_expert(weights: Weights, index: int, num_shared: int) -> Weights:
    """One of the shared experts, cut out of the SwiGLU that holds them side by side."""
    w_1, w_3 = weights["shared.gate_up.weight"].chunk(2)
    gate_up = torch.cat((w_1.chunk(num_shared)[index], w_3.chunk(num_shared)[index]))
    return {"gate_up.weight": gate_up, "down.weight": weights["shared.down.weight"].chunk(num_shared, dim=1)[index]}


def aggregate(sources: list[Tensor], weights: Weights, eps: float) -> Tensor:
    """h = Σ_i α_i v_i with α = softmax_i(w · RMSNorm(v_i)), for each token of (B, T, D) alone."""
    rows = []
    for b in range(sources[0].shape[0]):
        tokens = []
        for t in range(sources[0].shape[1]):
            values = [source[b, t] for source in sources]
            scores = [weights["query"] @ rms_norm(v, weights["key_gain"], eps) for v in values]
            shares = torch.softmax(torch.stack(scores), dim=0)
            tokens.append(sum((shares[i] * v for i, v in enumerate(values)), torch.zeros_like(values[0])))
        rows.append(torch.stack(tokens))
    return torch.stack(rows)
