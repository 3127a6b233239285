"""What a learning pass keeps for its backward pass, counted: floats per token, by formula.

A test compares these with what torch is really given to keep, for every backbone.
"""

from __future__ import annotations

from dataclasses import dataclass

from trc2.config import BackboneConfig, TRC2Config
from trc2.config.baselines import (
    BaselineConfig,
    BlkAttnResConfig,
    DeepSeekMoEConfig,
    FalconConfig,
    MambaConfig,
    MoEConfig,
)
from trc2.ops.staircase import LONGEST, SHORTEST, STEPS


@dataclass(frozen=True)
class Kept:
    """Floats per token. The residual stream is float32 in every precision; the rest follows the products."""

    stream: float = 0.0
    inner: float = 0.0

    def __add__(self, other: Kept) -> Kept:
        return Kept(self.stream + other.stream, self.inner + other.inner)

    def __mul__(self, factor: float) -> Kept:
        return Kept(self.stream * factor, self.inner * factor)

    def bytes(self, width: int) -> float:
        """Bytes per token, where a product's float takes `width` bytes."""
        return 4 * self.stream + width * self.inner


def kept_by_unit(config: BackboneConfig, length: int, *, on_cpu: bool) -> tuple[Kept, int]:
    """What one column or block keeps of every token of rows of this length, and how many of them there are."""
    if isinstance(config, TRC2Config):
        return _column(config, length, on_cpu), config.num_columns
    assert isinstance(config, BaselineConfig)
    return _block(config, length, on_cpu), config.num_layers


def kept_between(config: BackboneConfig) -> Kept:
    """What is kept once, beside the units: last norm, head; TRC²'s router, critic, memory; sources over depth."""
    d = config.d_model
    once = Kept(stream=d, inner=d)
    if isinstance(config, BlkAttnResConfig):
        layers = 2 * config.num_layers
        groups = -(-layers // -(-layers // config.num_residual_blocks))
        once += Kept(stream=d * ((groups + 1) * (groups + 2) / 2 + 2 * layers))
    if isinstance(config, TRC2Config):
        if config.has_router:
            once += Kept(inner=d + 12 * config.rank) * (config.num_columns - 1)
        if config.memory:
            once += Kept(stream=5 * d)
        if config.has_readout:
            once += Kept(inner=6 * d + (config.memory_top_k + 2) * config.memory_key_dim)
    return once


def kept_inputs(config: BackboneConfig) -> Kept:
    """What recomputing keeps of a unit: its inputs, the residual stream and, of a column, its feedback."""
    has_feedback = isinstance(config, TRC2Config) and (config.has_router or config.has_readout)
    return Kept(stream=config.d_model, inner=config.d_model if has_feedback else 0)


def _column(config: TRC2Config, length: int, on_cpu: bool) -> Kept:
    d, kv = config.d_model, config.num_kv_heads * config.head_dim
    attention = _attention(d, kv, config.num_heads, length, on_cpu)
    routed = _experts(d, config.expert_dim, config.num_active_experts, config.num_experts)
    shared = Kept(inner=_swiglu(config.expert_dim) * config.num_shared_experts)
    shift = Kept(inner=d if config.has_router or config.has_readout else 0)
    return _norms(d) + attention + shift + routed + shared


def _block(config: BaselineConfig, length: int, on_cpu: bool) -> Kept:
    d = config.d_model
    if isinstance(config, MambaConfig):
        inner, states = config.inner_dim, config.state_dim
        entering = inner * states / min(config.scan_chunk, length)
        mixer = Kept(inner=10 * inner + 2 * states + config.rank + entering)
    elif isinstance(config, FalconConfig):
        mixer = Kept(inner=20 * d + d * config.head_dim / min(config.chunk, length) + 4 * config.num_heads)
    else:
        mixer = _attention(d, d, config.num_heads, length, on_cpu)
    if isinstance(config, MoEConfig):
        feed_forward = _experts(d, config.ff_dim, config.num_active_experts, config.num_experts)
    elif isinstance(config, DeepSeekMoEConfig):
        feed_forward = _experts(d, config.expert_dim, config.num_active_experts, config.num_experts)
        feed_forward += Kept(inner=_swiglu(config.expert_dim) * config.num_shared_experts)
    else:
        feed_forward = Kept(inner=_swiglu(config.ff_dim))
    return _norms(d) + mixer + feed_forward


def _norms(d_model: int) -> Kept:
    """Two norms keep what they read, and the products after them what they wrote."""
    return Kept(stream=2 * d_model, inner=2 * d_model)


def _attention(d_model: int, kv: int, heads: int, length: int, on_cpu: bool) -> Kept:
    """Queries, keys and values and what the output map reads; short rows on a CPU also keep their weights."""
    if on_cpu and SHORTEST <= length <= LONGEST:
        return Kept(inner=2 * d_model + 2 * kv + heads * length * (STEPS + 1) / (2 * STEPS))
    return Kept(inner=3 * d_model + 2 * kv + heads)


def _swiglu(d_ff: int) -> float:
    """Both halves of the first map, the gate's sigmoid and SiLU, and the product."""
    return 5.0 * d_ff


def _experts(d_model: int, d_ff: int, active: int, total: int) -> Kept:
    """Every token is copied to its experts, and their outputs are kept to weigh them; the gate keeps its softmax."""
    return Kept(inner=active * (2 * d_model + _swiglu(d_ff) + 6) + 4 * total)
