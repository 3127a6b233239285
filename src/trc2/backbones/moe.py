"""MoE: attention and routed SwiGLU experts, with none shared."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from trc2.backbones.blocks import AttentionBaselineConfig, AttentionMixer, Block, BlockTrunk, Counted
from trc2.backbones.costs import attention_cost, attention_kept, baseline_cost, baseline_kept, experts_kept, swiglu_cost
from trc2.backbones.shell import Backbone
from trc2.config.backbone import at_most
from trc2.config.section import Size
from trc2.nn.cost import Activations, Cost, learned
from trc2.nn.experts import RoutedExperts, load_balance
from trc2.nn.init import init_weights


class MoEConfig(AttentionBaselineConfig):
    """Attention and routed experts, without a shared one."""

    name: Literal["moe"] = "moe"
    num_experts: Size = Field(8, description="routed experts of a block")
    num_active_experts: Size = Field(2, description="routed experts that work on a token")

    def _check(self) -> None:
        at_most("num_active_experts", self.num_active_experts, "num_experts", self.num_experts)

    @property
    def num_parts(self) -> int:
        return self.num_layers * self.num_experts


class ExpertFeedForward(RoutedExperts):
    """Top-k experts with renormalised weights, and TRC²'s balance loss."""

    balance = staticmethod(load_balance)

    def forward(  # type: ignore[override]
        self, u: Float[Tensor, "P D"], counted: Counted
    ) -> tuple[Float[Tensor, "P D"], Float[Tensor, ""] | None]:
        mixed, routing = super().forward(u)
        return mixed, None if counted is None else self.balance(routing, counted)


def build(config: MoEConfig, generator: torch.Generator | None = None) -> Backbone:
    def block() -> Block:
        sizes = config.d_model, config.ff_dim, config.num_experts, config.num_active_experts
        return Block(config, AttentionMixer(config), ExpertFeedForward(*sizes, has_shared=False))

    trunk = BlockTrunk(config, block)
    init_weights(trunk, config.num_layers, generator)
    return Backbone(config, trunk)


def cost(config: MoEConfig, rows: int, length: int, *, slots: int = 0, is_replay: bool = False) -> dict[str, Cost]:
    """Only the selected experts cost anything."""
    tokens, d = rows * length, config.d_model
    experts = swiglu_cost(d, config.ff_dim, tokens) * config.num_active_experts + learned(
        2.0 * tokens * d * config.num_experts
    )
    return baseline_cost(config, rows, length, attention_cost(config, rows, length) + experts)


def activations(config: MoEConfig, length: int, *, on_cpu: bool) -> Activations:
    experts = experts_kept(config.d_model, config.ff_dim, config.num_active_experts, config.num_experts)
    return baseline_kept(config, attention_kept(config, length, on_cpu), experts)


Config = MoEConfig
