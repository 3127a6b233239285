"""The parts that baselines share: embedding plus positions, pre-norm blocks, final norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from trc2.config.backbone import BackboneConfig, divides, even_heads, round_up
from trc2.config.section import Positive, Size
from trc2.nn.attention import CausalAttention
from trc2.nn.decoding import Decoding, KeyValues, State
from trc2.nn.experts import SwiGLU
from trc2.nn.norm import RMSNorm
from trc2.nn.rope import RotaryTable
from trc2.nn.segments import Packed, Segment, positions_of
from trc2.nn.trunk import Loss, Trunk, TrunkOutput


class BaselineConfig(BackboneConfig):
    """Embedding plus positions, pre-norm blocks of a mixer and a feed-forward part, tied head."""

    num_layers: Size = Field(20, description="blocks on top of each other")
    num_heads: Size = Field(8, description="attention heads of a block")
    d_ff: Size | None = Field(None, description="feed-forward width. None means the paper's width of this baseline.")

    @model_validator(mode="after")
    def _shapes_fit(self) -> BaselineConfig:
        divides("d_model", self.d_model, "num_heads", self.num_heads)
        self._check()
        return self

    def _check(self) -> None:
        """Raise a ValueError if other settings do not fit each other."""

    @property
    def depth(self) -> int:
        return self.num_layers

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def rotation_base(self) -> float | None:
        """Base of the rotary positions. None: a learned vector per position is added to the embedding."""
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
        if self.positions == "rotary":
            even_heads(self.d_model, self.num_heads)
        return self

    @property
    def rotation_base(self) -> float | None:
        return self.rotary_base if self.positions == "rotary" else None


Counted = Bool[Tensor, " P"] | slice | None  # the packed tokens that a balance loss counts, the batch's. None: no loss


class Mixer(Protocol):
    """The part of a block that reads earlier tokens. While decoding, `state` keeps what it needs of them."""

    def __call__(self, u: Tensor, segments: tuple[Segment, ...], state: State | None) -> Tensor: ...

    def new_state(self) -> State: ...


class FeedForward(Protocol):
    """The part of a block that works on each token alone. The second value is its balance loss, None without one."""

    def __call__(self, u: Tensor, counted: Counted) -> tuple[Tensor, Tensor | None]: ...


class AttentionMixer(CausalAttention):
    """Full multi-head attention. It rotates queries and keys unless the trunk adds learned positions."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config.d_model, config.num_heads, config.num_heads, has_query_shift=False)
        base = config.rotation_base
        self.rotary = None if base is None else RotaryTable(config.max_positions, config.head_dim, base)

    def forward(  # type: ignore[override]
        self, u: Float[Tensor, "P D"], segments: tuple[Segment, ...], state: KeyValues | None = None
    ) -> Float[Tensor, "P D"]:
        rotation = None if self.rotary is None else self.rotary(positions_of(segments, u.device))
        return super().forward(u, None, rotation, segments, state)

    def new_state(self) -> KeyValues:
        return KeyValues()


class DenseFeedForward(SwiGLU):
    """SwiGLU as a feed-forward part, without routing and therefore without a balance loss."""

    def forward(self, u: Float[Tensor, "P D"], counted: Counted) -> tuple[Float[Tensor, "P D"], None]:  # type: ignore[override]
        return super().forward(u), None


class Block(nn.Module):
    """h ← h + Mixer(RMSNorm(h));  h ← h + FFN(RMSNorm(h))"""

    def __init__(self, config: BaselineConfig, mixer: Mixer, feed_forward: FeedForward) -> None:
        super().__init__()
        self.mixer_norm = RMSNorm(config.d_model, config.norm_eps)
        self.mixer: Mixer = mixer
        self.ff_norm = RMSNorm(config.d_model, config.norm_eps)
        self.feed_forward: FeedForward = feed_forward
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        hidden: Float[Tensor, "P D"],
        segments: tuple[Segment, ...],
        counted: Counted,
        state: State | None,
    ) -> tuple[Float[Tensor, "P D"], Float[Tensor, ""] | None]:
        hidden = hidden + self.dropout(self.mixer(self.mixer_norm(hidden), segments, state))
        mixed, balance = self.feed_forward(self.ff_norm(hidden), counted)
        return hidden + self.dropout(mixed), balance


def dense_block(config: BaselineConfig, mixer: Mixer) -> Block:
    """A block whose feed-forward part is one SwiGLU."""
    return Block(config, mixer, DenseFeedForward(config.d_model, config.ff_dim))


class BlockTrunk(Trunk):
    """x_0 = E[token] + P[position] → L blocks → RMSNorm. Subclasses may wire the blocks differently.

    With rotary positions the mixers rotate instead of adding P.
    """

    def __init__(self, config: BaselineConfig, build_block: Callable[[], Block]) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        has_table = config.rotation_base is None
        self.positions = nn.Embedding(config.max_positions, config.d_model) if has_table else None
        self.blocks: Sequence[Block] = nn.ModuleList(build_block() for _ in range(config.num_layers))  # type: ignore[assignment]
        self.final_norm = RMSNorm(config.d_model, config.norm_eps)

    def forward(
        self, packed: Packed, *, with_losses: bool = True, read_memory: bool = True, decoding: Decoding | None = None
    ) -> TrunkOutput:
        hidden = self.embed(packed)
        hidden, balance = self.run_blocks(hidden, packed.segments, packed.counted if with_losses else None, decoding)
        losses = (Loss("load_balance", self.config.lambda_load_balance * balance, self.config.lambda_router),)
        return TrunkOutput(self.final_norm(hidden), losses if with_losses else ())

    def embed(self, packed: Packed) -> Float[Tensor, "P D"]:
        tokens = self.embedding(packed.tokens)
        return tokens if self.positions is None else tokens + self.positions(packed.positions)

    def run_blocks(
        self,
        hidden: Float[Tensor, "P D"],
        segments: tuple[Segment, ...],
        counted: Counted,
        decoding: Decoding | None,
    ) -> tuple[Float[Tensor, "P D"], Float[Tensor, ""]]:
        total = zero_balance(hidden)
        for index, block in enumerate(self.blocks):
            state = None if decoding is None else decoding.states[index]
            hidden, balance = self.run(block, hidden, segments, counted, state)
            total = total if balance is None else total + balance
        return hidden, total

    def subsystems(self) -> dict[str, list[nn.Module]]:
        positions = [] if self.positions is None else [self.positions]
        return {"embedding and head": [self.embedding, *positions, self.final_norm], "blocks": list(self.blocks)}

    def units(self) -> list[nn.Module]:
        return list(self.blocks)

    def layers(self) -> list[nn.Module]:
        """The first norm of every block: a block does not run as a whole in every wiring."""
        return [block.mixer_norm for block in self.blocks]

    def new_states(self) -> list[State]:
        return [block.mixer.new_state() for block in self.blocks]


def zero_balance(hidden: Float[Tensor, "P D"]) -> Float[Tensor, ""]:
    return hidden.new_zeros((), dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32)
