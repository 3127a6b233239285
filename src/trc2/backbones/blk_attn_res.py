"""BlkAttnRes: a transformer whose sub-layers read by attention over depth, instead of from a residual stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.backbones.blocks import (
    AttentionBaselineConfig,
    AttentionMixer,
    BlockTrunk,
    Counted,
    dense_block,
    zero_balance,
)
from trc2.backbones.costs import attention_cost, attention_kept, baseline_cost, baseline_kept, swiglu_cost, swiglu_kept
from trc2.backbones.shell import Backbone
from trc2.config.backbone import at_most
from trc2.config.section import Size
from trc2.nn.cost import Activations, Cost, Kept, learned
from trc2.nn.decoding import Decoding
from trc2.nn.init import init_weights
from trc2.nn.segments import Segment
from trc2.ops.modes import at_least_float32


class BlkAttnResConfig(AttentionBaselineConfig):
    """The transformer with attention over the outputs of earlier blocks instead of a residual stream."""

    name: Literal["blk_attn_res"] = "blk_attn_res"
    num_residual_blocks: Size = Field(8, description="N: groups of sub-layers. 2·num_layers gives the full version.")

    def _check(self) -> None:
        at_most("num_residual_blocks", self.num_residual_blocks, "2·num_layers", 2 * self.num_layers)

    @property
    def ff_dim(self) -> int:
        return 4 * self.d_model if self.d_ff is None else self.d_ff


class DepthQuery(nn.Module):
    """The query of one sub-layer for the sources v_i: s_i = w · RMSNorm(v_i) = ((gain ⊙ w) · v_i) / rms(v_i).

    w starts at exactly 0: every source then weighs the same.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(width))
        self.key_gain = nn.Parameter(torch.ones(width))

    def forward(self) -> Float[Tensor, " D"]:
        """gain ⊙ w"""
        return at_least_float32(self.key_gain * self.query)


@dataclass(frozen=True)
class Source:
    """An output that sub-layers attend to, with its 1/rms, which all of them share."""

    value: Float[Tensor, "P D"]
    inverse_rms: Float[Tensor, " P"]


@dataclass(frozen=True)
class Recalled:
    """The completed blocks as one sub-layer reads them: Σ_i softmax_i(s) v_i, and log Σ_i exp(s_i)."""

    mixture: Float[Tensor, "P D"]
    level: Float[Tensor, " P"]

    def with_source(self, source: Source, query: Float[Tensor, " D"]) -> Float[Tensor, "P D"]:
        """The mixture over one more source, whose share of the softmax is σ(s − level)."""
        own = score(source.value, source.inverse_rms, query.unsqueeze(0)).squeeze(-1)
        return torch.lerp(self.mixture, source.value, torch.sigmoid(own - self.level).unsqueeze(-1))


class DepthTrunk(BlockTrunk):
    """h_l = Σ_i softmax_i(s_l) v_i over the sources of sub-layer l. Its output is Sub_l(RMSNorm(h_l)).

    Runs of S sub-layers (an attention or a feed-forward part each) form residual blocks. A block's value is the sum
    of its outputs. The sources are the embedding, the completed blocks, and the running sum of the own block once
    there is one. After the last block one more query reads from the embedding and all blocks.
    """

    def __init__(self, config: BlkAttnResConfig) -> None:
        super().__init__(config, lambda: dense_block(config, AttentionMixer(config)))
        self.residual_blocks = residual_blocks(config)
        self.depth_queries = nn.ModuleList(DepthQuery(config.d_model) for _ in range(2 * config.num_layers + 1))

    def run_blocks(
        self,
        hidden: Float[Tensor, "P D"],
        segments: tuple[Segment, ...],
        counted: Counted,
        decoding: Decoding | None,
    ) -> tuple[Float[Tensor, "P D"], Float[Tensor, ""]]:
        queries = [query() for query in self.depth_queries]
        completed = [self.source(at_least_float32(hidden))]
        for members in self.residual_blocks:
            running: Source | None = None
            for index, recalled in zip(members, recall(completed, [queries[i] for i in members]), strict=True):
                u = recalled.mixture if running is None else recalled.with_source(running, queries[index])
                output = at_least_float32(self.sublayer(index, u.to(hidden.dtype), segments, counted, decoding))
                running = self.source(output if running is None else running.value + output)
            assert running is not None, "no residual block is empty"
            completed.append(running)
        (last,) = recall(completed, queries[-1:])
        return last.mixture.to(hidden.dtype), zero_balance(hidden)

    def sublayer(
        self,
        index: int,
        u: Float[Tensor, "P D"],
        segments: tuple[Segment, ...],
        counted: Counted,
        decoding: Decoding | None,
    ) -> Float[Tensor, "P D"]:
        """Even sub-layers are attention, odd ones feed-forward parts."""
        layer, is_feed_forward = divmod(index, 2)
        block = self.blocks[layer]
        if is_feed_forward:
            output, _ = self.run(block.feed_forward, block.ff_norm(u), counted)
        else:
            state = None if decoding is None else decoding.states[layer]
            output = self.run(block.mixer, block.mixer_norm(u), segments, state)
        return block.dropout(output)

    def units(self) -> list[nn.Module]:
        """The sub-layers: a block never runs as a whole."""
        return [part for block in self.blocks for part in (block.mixer, block.feed_forward)]  # type: ignore[misc]

    def source(self, value: Float[Tensor, "P D"]) -> Source:
        mean_square = torch.linalg.vector_norm(value, dim=-1).square() / value.shape[-1]
        return Source(value, (mean_square + self.config.norm_eps).rsqrt())


def recall(sources: Sequence[Source], queries: Sequence[Float[Tensor, " D"]]) -> Iterable[Recalled]:
    """Mixtures of the same sources for several sub-layers.

    Queries do not depend on the input, so all sub-layers of a block can read the completed blocks at once: sources
    are stacked once per block, not once per sub-layer.
    """
    values = torch.stack([source.value for source in sources])
    scores = score(values, torch.stack([source.inverse_rms for source in sources]), torch.stack(list(queries)))
    with torch.autocast(values.device.type, enabled=False):
        mixtures = torch.bmm(scores.softmax(dim=0).permute(1, 2, 0), values.transpose(0, 1))
    return map(Recalled, mixtures.unbind(1), scores.logsumexp(dim=0).unbind(1))


def score(
    values: Float[Tensor, "*n P D"], inverse_rms: Float[Tensor, "*n P"], queries: Float[Tensor, "Q D"]
) -> Float[Tensor, "*n P Q"]:
    """(gain ⊙ w) · v / rms(v) for every query, in float32 or better."""
    with torch.autocast(values.device.type, enabled=False):
        return F.linear(values, queries) * inverse_rms.unsqueeze(-1)


def residual_blocks(config: BlkAttnResConfig) -> list[range]:
    """The 2L sub-layers in runs of S = ⌈2L/N⌉. The last run holds the rest, so there can be fewer than N runs."""
    total = 2 * config.num_layers
    size = -(-total // config.num_residual_blocks)
    return [range(first, min(first + size, total)) for first in range(0, total, size)]


def build(config: BlkAttnResConfig, generator: torch.Generator | None = None) -> Backbone:
    """The transformer's 16d² per block, and vectors. Depth queries stay 0 whatever the generator."""
    trunk = DepthTrunk(config)
    init_weights(trunk, config.num_layers, generator)
    return Backbone(config, trunk)


def cost(
    config: BlkAttnResConfig, rows: int, length: int, *, slots: int = 0, is_replay: bool = False
) -> dict[str, Cost]:
    """FLOPs of one pass over rows × length tokens.

    A completed block costs each of its readers a score and a share of the mixture, 2d each per token. A running sum
    costs its reader the score only, because it is mixed in by element-wise work, which is not counted.
    """
    tokens, d = rows * length, config.d_model
    groups = residual_blocks(config)
    read_completed = sum((1 + before) * len(members) for before, members in enumerate(groups)) + 1 + len(groups)
    read_running = sum(len(members) - 1 for members in groups)
    block = attention_cost(config, rows, length) + swiglu_cost(d, config.ff_dim, tokens)
    depth = learned(4.0 * tokens * d * read_completed) + learned(2.0 * tokens * d * read_running)
    return {**baseline_cost(config, rows, length, block), "attention over depth": depth}


def activations(config: BlkAttnResConfig, length: int, *, on_cpu: bool) -> Activations:
    groups = len(residual_blocks(config))
    sources = Kept(stream=config.d_model * ((groups + 1) * (groups + 2) / 2 + 4 * config.num_layers))
    return baseline_kept(config, attention_kept(config, length, on_cpu), swiglu_kept(config.ff_dim), once=sources)


Config = BlkAttnResConfig
