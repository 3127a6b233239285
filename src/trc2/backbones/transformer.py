"""Transformer: causal attention and a wide SwiGLU."""

from __future__ import annotations

import torch

from trc2.backbones.blocks import AttentionMixer, Block, BlockTrunk, DenseFeedForward
from trc2.backbones.costs import attention_cost, baseline_cost, swiglu_cost
from trc2.backbones.shell import Backbone
from trc2.config.baselines import TransformerConfig
from trc2.nn.cost import Cost
from trc2.nn.init import init_weights


def build(config: TransformerConfig, generator: torch.Generator | None = None) -> Backbone:
    """4d² of attention and 12d² of SwiGLU per block, by default."""
    trunk = BlockTrunk(
        config, lambda: Block(config, AttentionMixer(config), DenseFeedForward(config.d_model, config.ff_dim))
    )
    init_weights(trunk, config.num_layers, generator)
    return Backbone(config, trunk)


def cost(
    config: TransformerConfig, rows: int, length: int, *, slots: int = 0, is_replay: bool = False
) -> dict[str, Cost]:
    """FLOPs of one pass over rows × length tokens."""
    block = attention_cost(config, rows, length) + swiglu_cost(config.d_model, config.ff_dim, rows * length)
    return baseline_cost(config, rows, length, block)
