"""The paper's seven baselines. `docs/baselines.md` says what is certain about each and what is our reading."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trc2.config.backbone import BackboneConfig, at_most, divides, round_up
from trc2.config.section import Fraction, NonNegative, Positive, Size


class BaselineConfig(BackboneConfig):
    """Embedding plus positions, pre-norm blocks of a mixer and a feed-forward part, tied head."""

    num_layers: Size = Field(20, description="blocks on top of each other")
    num_heads: Size = Field(8, description="attention heads of a block")
    d_ff: Size | None = Field(None, description="feed-forward width; None means the paper's width of this baseline")

    @model_validator(mode="after")
    def _shapes_fit(self) -> BaselineConfig:
        divides("d_model", self.d_model, "num_heads", self.num_heads)
        self._check()
        return self

    def _check(self) -> None:
        """What else must fit, raised as ValueError."""

    @property
    def depth(self) -> int:
        return self.num_layers

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def rotation_base(self) -> float | None:
        """Base of the rotary positions; None: a learned vector per position is added to the embedding."""
        return None

    @property
    def ff_dim(self) -> int:
        return round_up(8 * self.d_model / 3, 256) if self.d_ff is None else self.d_ff


class AttentionBaselineConfig(BaselineConfig):
    """A baseline whose mixer is attention. The paper does not say how its baselines encode positions."""

    positions: Literal["learned", "rotary"] = Field(
        "learned", description="a learned vector per position, or rotary positions as in TRC²"
    )
    rotary_base: Positive = Field(10_000.0, description="base of the rotary positions")

    @model_validator(mode="after")
    def _heads_can_rotate(self) -> AttentionBaselineConfig:
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"d_model={self.d_model} with num_heads={self.num_heads} gives odd heads of width {self.head_dim}: "
                "rotary positions need an even width, so change num_heads."
            )
        return self

    @property
    def rotation_base(self) -> float | None:
        return self.rotary_base if self.positions == "rotary" else None


class TransformerConfig(AttentionBaselineConfig):
    """Attention and SwiGLU; the width defaults to 4 d_model."""

    name: Literal["transformer"] = "transformer"

    @property
    def ff_dim(self) -> int:
        return 4 * self.d_model if self.d_ff is None else self.d_ff


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


class MambaConfig(BaselineConfig):
    """Mamba-1 and SwiGLU. The paper's counts need state 128 and rank 64; its authors' defaults are 16 and d/16."""

    name: Literal["mamba"] = "mamba"
    expand: Size = Field(2, description="inner width as a multiple of d_model")
    state_dim: Size = Field(128, description="N")
    dt_rank: Size | None = Field(64, description="R; None means ⌈d_model/16⌉")
    conv_width: Size = Field(4, description="tokens the short convolution sees")
    scan_chunk: Size = Field(32, description="tokens whose states are held at once")

    @property
    def inner_dim(self) -> int:
        return self.expand * self.d_model

    @property
    def rank(self) -> int:
        return -(-self.d_model // 16) if self.dt_rank is None else self.dt_rank


class DeepSeekMoEConfig(AttentionBaselineConfig):
    """Fine-grained routed experts beside shared ones; gates are the raw softmax scores."""

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


class BlkAttnResConfig(AttentionBaselineConfig):
    """The transformer with attention over the outputs of earlier blocks instead of a residual stream."""

    name: Literal["blk_attn_res"] = "blk_attn_res"
    num_residual_blocks: Size = Field(8, description="N: groups of sub-layers; 2·num_layers gives the full version")

    def _check(self) -> None:
        at_most("num_residual_blocks", self.num_residual_blocks, "2·num_layers", 2 * self.num_layers)

    @property
    def ff_dim(self) -> int:
        return 4 * self.d_model if self.d_ff is None else self.d_ff


class FalconConfig(BaselineConfig):
    """Fast-weight attention and SwiGLU."""

    name: Literal["falcon"] = "falcon"
    variant: Literal["falcon1", "falcon2"] = Field("falcon2", description="falcon1: one step size per head")
    conv_width: Size = Field(4, description="tokens the short convolution sees")
    chunk: Annotated[int, Field(ge=1, le=16)] = Field(16, description="tokens solved at once")
    ridge_scale: NonNegative = Field(1.0, description="λ_scale: the ridge is λ_scale · σ(·) · |x|²")
    output_norm: bool = Field(False, description="a norm per head on what is read, if training is unstable")


class LoraDRSConfig(BaselineConfig):
    """A transformer whose later tasks train low-rank maps on keys and values, in a drift-resistant space."""

    name: Literal["lora_drs"] = "lora_drs"
    rank: Size = Field(4, description="rank of the maps that later tasks train")
    num_adapters: Size = Field(2, description="tasks after the first")
    freeze_backbone: bool = Field(True, description="true: as the method says; false: as the paper's numbers suggest")
    normalize_projector: bool = Field(True, description="true: divide by the Frobenius norm, as the method's code does")
    drs_threshold: Fraction = Field(0.99, description="share of singular values the space keeps")
    drs_batches: Size = Field(64, description="batches of a new task that define its space")

    @property
    def num_parts(self) -> int:
        return self.num_layers * (1 + self.num_adapters)
