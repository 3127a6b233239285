"""FALCON: fast weights that learn each token's value from the key before it, and SwiGLU."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.backbones.blocks import BaselineConfig, BlockTrunk, dense_block
from trc2.backbones.costs import baseline_cost, baseline_kept, swiglu_cost, swiglu_kept
from trc2.backbones.shell import Backbone
from trc2.config.section import NonNegative, Size
from trc2.nn.convolution import depthwise, in_order, last_real, real_first
from trc2.nn.cost import Activations, Cost, Kept, learned
from trc2.nn.decoding import State
from trc2.nn.init import STD, init_weights, normal_
from trc2.nn.segments import Segment, rejoin
from trc2.ops.fast_weights import fast_weights, recurrence, ridge_steps
from trc2.ops.modes import at_least_float32


class FalconConfig(BaselineConfig):
    """Fast-weight attention and SwiGLU."""

    name: Literal["falcon"] = "falcon"
    variant: Literal["falcon1", "falcon2"] = Field("falcon2", description="falcon1: one step size per head")
    conv_width: Size = Field(4, description="tokens the short convolution sees")
    chunk: Annotated[int, Field(ge=1, le=16)] = Field(16, description="tokens solved at once")
    ridge_scale: NonNegative = Field(1.0, description="λ_scale: the ridge is λ_scale · σ(·) · |x|²")
    output_norm: bool = Field(
        False, description="whether the output of each head is normalised. Use it if training is unstable."
    )


FIRST_RIDGE_LOGIT = -4.0  # λ̄ ≈ 0.018: a fresh mixer forgets little


class FalconMixer(nn.Module):
    """q, k, v = conv(W u);  q, k ← RMSNorm per head;  o = fast weights that read with q_t and learn k_{t−1} → v_t;
    β = 2σ(W_β u + b_β),  λ̄ = λ_scale σ(W_λ u + b_λ);  out = W_o o.

    β has a value per channel (FALCON-2) or per head (FALCON-1), λ̄ one per head. The convolution has one kernel per
    channel and no bias. A row's first token has no key before it: it neither writes nor forgets. Padding has no effect:
    it is moved behind the real tokens and given β = 0, which leaves the weights alone.
    """

    def __init__(self, config: FalconConfig) -> None:
        super().__init__()
        d, self.num_heads, self.head_dim = config.d_model, config.num_heads, config.head_dim
        self.chunk, self.ridge_scale, self.eps = config.chunk, config.ridge_scale, config.norm_eps
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.conv_weight = nn.Parameter(torch.zeros(3 * d, config.conv_width))
        self.gain = nn.Linear(d, d if config.variant == "falcon2" else config.num_heads)
        self.ridge = nn.Linear(d, config.num_heads)
        self.output_gain = nn.Parameter(torch.ones(d)) if config.output_norm else None
        self.output = nn.Linear(d, d, bias=False)
        nn.init.zeros_(self.gain.bias)
        nn.init.constant_(self.ridge.bias, FIRST_RIDGE_LOGIT)

    def forward(
        self, u: Float[Tensor, "P D"], segments: tuple[Segment, ...], state: State | None = None
    ) -> Float[Tensor, "P D"]:
        qkv = self.qkv(u)
        gain, ridge = 2 * at_least_float32(self.gain(u)).sigmoid(), at_least_float32(self.ridge(u)).sigmoid()
        with torch.autocast(u.device.type, enabled=False):  # a float32 island: convolution, norms and fast weights
            wide = at_least_float32(qkv)
            mixed = rejoin([self.mix(s.of(wide), s.of(gain), s.of(ridge), s.valid, state) for s in segments])
            if self.output_gain is not None:
                mixed = self.normalized(mixed) * at_least_float32(self.output_gain).unflatten(0, mixed.shape[1:])
        return self.output(mixed.flatten(1).to(qkv.dtype))

    def mix(
        self,
        qkv: Float[Tensor, "B T _I"],
        gain: Float[Tensor, "B T _J"],
        ridge: Float[Tensor, "B T H"],
        valid: Bool[Tensor, "B T"] | None,
        state: State | None,
    ) -> Float[Tensor, "B T H K"]:
        """The output of every token, in the rows of one segment."""
        order = None if valid is None else real_first(valid)
        if order is not None:
            qkv, gain, ridge = (in_order(tensor, order) for tensor in (qkv, gain, ridge))
        past = self.start(qkv) if state is None or not state.tensors else state.tensors
        inputs = torch.cat((past["inputs"], qkv), dim=1)
        q, k, v = depthwise(inputs, at_least_float32(self.conv_weight)).chunk(3, dim=-1)
        keys = torch.cat((past["key"], self.normalized(self.by_head(k)).flatten(2)), dim=1)
        x = self.by_head(keys[:, :-1])
        gain = gain * writers(past["has_key"], qkv.shape[1], valid).unsqueeze(-1)
        steps = ridge_steps(self.by_head(gain), x, self.ridge_scale * ridge.unsqueeze(-1))
        tokens = self.normalized(self.by_head(q)), x, self.by_head(v), steps, past["weights"]
        is_single = state is not None and qkv.shape[1] == 1
        reading = recurrence(*tokens) if is_single else fast_weights(*tokens, self.chunk)
        if state is not None:
            state.tensors = {
                "inputs": last_real(inputs, past["inputs"].shape[1], valid),
                "key": last_real(keys, 1, valid),
                "has_key": past["has_key"] | (True if valid is None else valid.any(dim=1, keepdim=True)),
                "weights": reading.state,
            }
        if order is None:
            return reading.output
        return self.by_head(in_order(reading.output.flatten(2), order.argsort(dim=1)))

    def by_head(self, x: Float[Tensor, "B T _I"]) -> Float[Tensor, "B T H _J"]:
        return x.unflatten(-1, (self.num_heads, -1))

    def normalized(self, x: Float[Tensor, "*P H K"]) -> Float[Tensor, "*P H K"]:
        return F.rms_norm(x, x.shape[-1:], eps=self.eps)

    def start(self, like: Float[Tensor, "B T _I"]) -> dict[str, Tensor]:
        """The state before a row's first token."""
        rows, d = like.shape[0], self.num_heads * self.head_dim
        return {
            "inputs": like.new_zeros(rows, self.conv_weight.shape[1] - 1, 3 * d),
            "key": like.new_zeros(rows, 1, d),
            "has_key": torch.zeros(rows, 1, dtype=torch.bool, device=like.device),
            "weights": like.new_zeros(rows, self.num_heads, self.head_dim, self.head_dim),
        }

    def new_state(self) -> State:
        """Will hold the convolution's window, the last key and the weights, whose size does not grow."""
        return State()


def writers(has_key: Bool[Tensor, "B 1"], length: int, valid: Bool[Tensor, "B T"] | None) -> Bool[Tensor, "B T"]:
    """Which tokens write: real tokens, which come first in their rows, with a key before them."""
    position = torch.arange(length, device=has_key.device)
    is_later = (position > 0) | has_key
    return is_later if valid is None else is_later & (position < valid.sum(dim=1, keepdim=True))


def build(config: FalconConfig, generator: torch.Generator | None = None) -> Backbone:
    """5d² + 23d of mixer and norms (8 heads, FALCON-2) and 3·d·d_ff of SwiGLU per block, by default."""
    trunk = BlockTrunk(config, lambda: dense_block(config, FalconMixer(config)))
    init_weights(trunk, config.num_layers, generator)
    for block in trunk.blocks:
        mixer = block.mixer
        assert isinstance(mixer, FalconMixer)
        normal_(mixer.output.weight, STD / math.sqrt(2 * config.num_layers), generator)
        with torch.no_grad():
            mixer.conv_weight.uniform_(-(config.conv_width**-0.5), config.conv_width**-0.5, generator=generator)
    return Backbone(config, trunk)


def cost(config: FalconConfig, rows: int, length: int, *, slots: int = 0, is_replay: bool = False) -> dict[str, Cost]:
    """The maps, the convolution, and the products of the chunk form, whose last chunk is filled up.

    Per token and channel, with chunks of C and heads of width K: 6C + 6K forward, 18C + 12K backward.
    """
    tokens, d, heads = rows * length, config.d_model, config.num_heads
    maps = 4 * d * d + d * (d if config.variant == "falcon2" else heads) + d * heads
    convolution = 3 * d * config.conv_width
    chunk, width = min(config.chunk, length), config.head_dim
    filled = rows * -(-length // chunk) * chunk * d
    scan = Cost(filled * 6.0 * (chunk + width), filled * (24.0 * chunk + 18.0 * width))
    block = learned(2.0 * tokens * (maps + convolution)) + scan + swiglu_cost(d, config.ff_dim, tokens)
    return baseline_cost(config, rows, length, block)


def activations(config: FalconConfig, length: int, *, on_cpu: bool) -> Activations:
    entering = config.d_model * config.head_dim / min(config.chunk, length)
    mixer = Kept(inner=20 * config.d_model + entering + 4 * config.num_heads)
    return baseline_kept(config, mixer, swiglu_kept(config.ff_dim))


Config = FalconConfig
