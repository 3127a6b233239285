"""Transformer: causal attention and a wide SwiGLU."""

from __future__ import annotations

import torch

from trc2.baselines.blocks import AttentionMixer, BaselineNet, Block, DenseFeedForward, Trunk
from trc2.baselines.costs import attention_cost, baseline_cost, swiglu_cost
from trc2.config.baselines import TransformerConfig
from trc2.model.flops import Cost
from trc2.nn.init import init_weights


def build(config: TransformerConfig, generator: torch.Generator | None = None) -> BaselineNet:
    """4d² of attention and 12d² of SwiGLU per block, by default."""
    trunk = Trunk(
        config, lambda: Block(config, AttentionMixer(config), DenseFeedForward(config.d_model, config.ff_dim))
    )
    init_weights(trunk, config.num_layers, generator)
    return BaselineNet(config, trunk)


def cost(config: TransformerConfig, rows: int, length: int) -> dict[str, Cost]:
    """FLOPs of one pass over rows × length tokens."""
    block = attention_cost(config, rows, length) + swiglu_cost(config.d_model, config.ff_dim, rows * length)
    return baseline_cost(config, rows, length, block)
