"""Transformer: causal attention and a wide SwiGLU."""

from __future__ import annotations

from typing import Literal

import torch

from trc2.backbones.blocks import AttentionBaselineConfig, AttentionMixer, BaselineConfig, BlockTrunk, dense_block
from trc2.backbones.costs import attention_cost, baseline_cost, dense_activations, swiglu_cost
from trc2.backbones.shell import Backbone
from trc2.nn.cost import Cost
from trc2.nn.init import init_weights


class TransformerConfig(AttentionBaselineConfig):
    """Attention and SwiGLU. The width defaults to 4 d_model."""

    name: Literal["transformer"] = "transformer"

    @property
    def ff_dim(self) -> int:
        return 4 * self.d_model if self.d_ff is None else self.d_ff


def build(config: TransformerConfig, generator: torch.Generator | None = None) -> Backbone:
    """4d² of attention and 12d² of SwiGLU per block, by default."""
    trunk = BlockTrunk(config, lambda: dense_block(config, AttentionMixer(config)))
    init_weights(trunk, config.num_layers, generator)
    return Backbone(config, trunk)


def cost(config: BaselineConfig, rows: int, length: int, *, slots: int = 0, is_replay: bool = False) -> dict[str, Cost]:
    """FLOPs of one pass over rows × length tokens."""
    block = attention_cost(config, rows, length) + swiglu_cost(config.d_model, config.ff_dim, rows * length)
    return baseline_cost(config, rows, length, block)


activations = dense_activations
Config = TransformerConfig
