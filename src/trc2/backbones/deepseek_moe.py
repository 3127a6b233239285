"""DeepSeekMoE: attention, many narrow routed experts, and a few shared ones that every token visits."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from trc2.backbones.blocks import AttentionBaselineConfig, AttentionMixer, Block, BlockTrunk
from trc2.backbones.costs import (
    attention_cost,
    attention_kept,
    baseline_cost,
    baseline_kept,
    experts_kept,
    swiglu_cost,
    swiglu_kept,
)
from trc2.backbones.moe import ExpertFeedForward
from trc2.backbones.shell import Backbone
from trc2.config.backbone import at_most, divides
from trc2.config.section import Size
from trc2.nn.cost import Activations, Cost, learned
from trc2.nn.experts import Routing, SwiGLU
from trc2.nn.init import init_weights


class DeepSeekMoEConfig(AttentionBaselineConfig):
    """Fine-grained routed experts beside shared ones. Gates are the raw softmax scores."""

    name: Literal["deepseek_moe"] = "deepseek_moe"
    num_experts: Size = Field(16, description="routed experts")
    num_active_experts: Size = Field(4, description="routed experts that work on a token")
    num_shared_experts: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        2, description="experts that work on every token"
    )
    expert_split: Size = Field(2, description="m: an expert has 1/m of the full width")

    def _check(self) -> None:
        at_most("num_active_experts", self.num_active_experts, "num_experts", self.num_experts)
        divides("d_ff", self.ff_dim, "expert_split", self.expert_split)

    @property
    def num_parts(self) -> int:
        return self.num_layers * self.num_experts

    @property
    def expert_dim(self) -> int:
        return self.ff_dim // self.expert_split


def expert_balance(routing: Routing, counted: Bool[Tensor, " P"] | slice) -> Float[Tensor, ""]:
    """Σ_i f_i P_i over the counted tokens: f_i = N'/(K' T) · #(tokens that selected i), P_i = mean of s_i.

    Unlike `load_balance`, all K' selections of a token count, not only its first. The sum equals 1 under perfect
    balance. The share f is a count, hence without gradient. α₁ is the config's `lambda_load_balance`.
    """
    scores, selected = routing.probabilities[counted], routing.experts[counted]
    num_tokens, num_experts = scores.shape
    times = torch.bincount(selected.flatten(), minlength=num_experts).to(scores.dtype)
    frequency = times * num_experts / max(1, selected.numel())
    return (frequency * scores.sum(dim=0) / max(1, num_tokens)).sum()


class FineGrainedExperts(ExpertFeedForward):
    """Σ_{i ≤ K_s} FFN_i(u) + Σ_{i ∈ top-K'} s_i FFN_i(u), with s = softmax(W_G u) over the N' routed experts.

    The gates are the raw scores s_i: they sum to less than 1.
    """

    balance = staticmethod(expert_balance)

    def __init__(self, config: DeepSeekMoEConfig) -> None:
        sizes = config.d_model, config.expert_dim, config.num_experts, config.num_active_experts
        super().__init__(*sizes, has_shared=False, renormalise=False)
        # Experts that always run together are one expert of their joint width.
        shared_dim = config.num_shared_experts * config.expert_dim
        self.shared = SwiGLU(config.d_model, shared_dim) if shared_dim else None


def build(config: DeepSeekMoEConfig, generator: torch.Generator | None = None) -> Backbone:
    """4d² of attention and 9 full widths of experts per block, by default, of which a token uses 3."""
    trunk = BlockTrunk(config, lambda: Block(config, AttentionMixer(config), FineGrainedExperts(config)))
    init_weights(trunk, config.num_layers, generator)
    return Backbone(config, trunk)


def cost(
    config: DeepSeekMoEConfig, rows: int, length: int, *, slots: int = 0, is_replay: bool = False
) -> dict[str, Cost]:
    """FLOPs of one pass over rows × length tokens. Only selected and shared experts cost anything."""
    tokens, d = rows * length, config.d_model
    num_visited = config.num_active_experts + config.num_shared_experts
    router = learned(2.0 * tokens * d * config.num_experts)
    experts = router + swiglu_cost(d, config.expert_dim, tokens) * num_visited
    return baseline_cost(config, rows, length, attention_cost(config, rows, length) + experts)


def activations(config: DeepSeekMoEConfig, length: int, *, on_cpu: bool) -> Activations:
    routed = experts_kept(config.d_model, config.expert_dim, config.num_active_experts, config.num_experts)
    shared = swiglu_kept(config.expert_dim) * config.num_shared_experts
    return baseline_kept(config, attention_kept(config, length, on_cpu), routed + shared)


Config = DeepSeekMoEConfig
