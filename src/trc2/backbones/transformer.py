"""Transformer: causal attention and a wide SwiGLU."""

from __future__ import annotations

from typing import Literal

import torch

from trc2.backbones.blocks import AttentionBaselineConfig, AttentionMixer, Block, BlockTrunk, DenseFeedForward
from trc2.backbones.costs import attention_cost, attention_kept, baseline_cost, baseline_kept, swiglu_cost, swiglu_kept
from trc2.backbones.shell import Backbone
from trc2.nn.cost import Activations, Cost
from trc2.nn.init import init_weights


class TransformerConfig(AttentionBaselineConfig):
    """Attention and SwiGLU; the width defaults to 4 d_model."""

    name: Literal["transformer"] = "transformer"

    @property
    def ff_dim(self) -> int:
        return 4 * self.d_model if self.d_ff is None else self.d_ff


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


def activations(config: TransformerConfig, length: int, *, on_cpu: bool) -> Activations:
    """What a pass over rows of this length keeps for its backward pass."""
    mixer = attention_kept(config.d_model, config.d_model, config.num_heads, length, on_cpu)
    return baseline_kept(config, mixer, swiglu_kept(config.ff_dim))


Config = TransformerConfig
