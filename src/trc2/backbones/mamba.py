"""Mamba: selective state spaces (Mamba-1) and SwiGLU."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.backbones.blocks import BaselineConfig, Block, BlockTrunk, DenseFeedForward, dense_block
from trc2.backbones.costs import baseline_cost, baseline_kept, swiglu_cost, swiglu_kept
from trc2.backbones.shell import Backbone
from trc2.config.section import Size
from trc2.nn.convolution import depthwise, in_order, last_real, real_first
from trc2.nn.cost import Activations, Cost, Kept, learned
from trc2.nn.decoding import State
from trc2.nn.init import init_weights
from trc2.nn.segments import Segment, rejoin
from trc2.ops.modes import at_least_float32
from trc2.ops.scan import selective_scan


class MambaConfig(BaselineConfig):
    """Mamba-1 and SwiGLU. The paper's counts need state 128 and rank 64. Mamba's own defaults are 16 and d/16."""

    name: Literal["mamba"] = "mamba"
    expand: Size = Field(2, description="inner width as a multiple of d_model")
    state_dim: Size = Field(128, description="N: size of the state")
    dt_rank: Size | None = Field(64, description="R: rank of the step size Δ. None means ⌈d_model/16⌉.")
    conv_width: Size = Field(4, description="tokens the short convolution sees")
    scan_chunk: Size = Field(32, description="tokens whose states are held at once")

    @property
    def inner_dim(self) -> int:
        return self.expand * self.d_model

    @property
    def rank(self) -> int:
        return -(-self.d_model // 16) if self.dt_rank is None else self.dt_rank


LEAST_STEP, LARGEST_STEP, STEP_FLOOR = 1e-3, 0.1, 1e-4  # Δ of a fresh mixer is log-uniform


class MambaMixer(nn.Module):
    """[x, z] = W_in u;  x ← SiLU(conv(x));  [δ, B, C] = W_x x;  Δ = softplus(W_dt δ + b_dt);
    y = scan(x, Δ, −exp(A_log), B, C) + D ∘ x;  out = W_out (y ∘ SiLU(z)).

    The convolution has one kernel per channel and reads the last tokens only. Padding has no effect: the convolution
    skips it, and the scan gets Δ = 0, which leaves its state alone.
    """

    def __init__(self, config: MambaConfig) -> None:
        super().__init__()
        inner, self.sizes = config.inner_dim, [config.rank, config.state_dim, config.state_dim]
        self.chunk = config.scan_chunk
        self.input = nn.Linear(config.d_model, 2 * inner, bias=False)
        self.conv_weight = nn.Parameter(torch.zeros(inner, config.conv_width))
        self.conv_bias = nn.Parameter(torch.zeros(inner))
        self.selection = nn.Linear(inner, sum(self.sizes), bias=False)
        self.step = nn.Linear(config.rank, inner, bias=False)
        self.step_bias = nn.Parameter(torch.zeros(inner))
        self.decay_log = nn.Parameter(torch.zeros(inner, config.state_dim))
        self.skip = nn.Parameter(torch.ones(inner))
        self.output = nn.Linear(inner, config.d_model, bias=False)

    def forward(
        self, u: Float[Tensor, "P D"], segments: tuple[Segment, ...], state: State | None = None
    ) -> Float[Tensor, "P D"]:
        x, z = self.input(u).chunk(2, dim=-1)
        x = F.silu(rejoin([self.convolve(segment.of(x), segment.valid, state) for segment in segments]))
        low, B, C = self.selection(x).split(self.sizes, dim=-1)
        delta = F.softplus(at_least_float32(self.step(low)) + self.step_bias)
        y = rejoin([self.scan(s.of(x), s.of(delta), s.of(B), s.of(C), s.valid, state) for s in segments])
        return self.output(((y + self.skip * x) * F.silu(z)).to(z.dtype))

    def convolve(
        self, x: Float[Tensor, "B T I"], valid: Bool[Tensor, "B T"] | None, state: State | None
    ) -> Float[Tensor, "B T I"]:
        """The convolution over each token and the real tokens just before it, those of an earlier piece included."""
        rows, _, inner = x.shape
        window = self.conv_weight.shape[1] - 1
        past = None if state is None else state.tensors.get("inputs")
        past = x.new_zeros(rows, window, inner) if past is None else past
        order = None if valid is None else real_first(valid)
        seen = torch.cat((past, x if order is None else in_order(x, order)), dim=1)
        if state is not None:
            state.tensors["inputs"] = last_real(seen, window, valid)
        with torch.autocast(x.device.type, enabled=False):  # a float32 island
            mixed = depthwise(*(at_least_float32(t) for t in (seen, self.conv_weight, self.conv_bias))).to(x.dtype)
        return mixed if order is None else in_order(mixed, order.argsort(dim=1))

    def scan(
        self,
        x: Float[Tensor, "B T I"],
        delta: Float[Tensor, "B T I"],
        B: Float[Tensor, "B T N"],
        C: Float[Tensor, "B T N"],
        valid: Bool[Tensor, "B T"] | None,
        state: State | None,
    ) -> Float[Tensor, "B T I"]:
        before = None if state is None else state.tensors.get("state")
        delta = delta if valid is None else delta * valid.unsqueeze(-1)
        A = -torch.exp(at_least_float32(self.decay_log))
        y, last = selective_scan(x, delta, A, B, C, before, chunk=self.chunk)
        if state is not None:
            state.tensors["state"] = last
        return y

    def new_state(self) -> State:
        """Will hold the convolution's window and the state of the scan, whose size does not grow."""
        return State()


class MambaTrunk(BlockTrunk):
    """Blocks of MambaMixer and SwiGLU. Weight decay spares A_log, which is a matrix by its shape only, D and b_dt."""

    def tensors_without_decay(self) -> list[str]:
        return [name for name, _ in self.named_parameters() if name.endswith((".decay_log", ".skip", ".step_bias"))]


def build(config: MambaConfig, generator: torch.Generator | None = None) -> Backbone:
    """6d² + d(4R + 6N + 14) of mixer and 3·d·d_ff of SwiGLU per block, by default."""
    trunk = MambaTrunk(config, lambda: dense_block(config, MambaMixer(config)))
    init_weights(trunk, config.num_layers, generator)
    for block in trunk.blocks:
        init_block(block, config.num_layers, generator)
    return Backbone(config, trunk)


@torch.no_grad()
def init_block(block: Block, num_layers: int, generator: torch.Generator | None) -> None:
    """Mamba's own start: uniform ±1/√fan_in, less in both maps to the residual stream; small steps; decays of −1 … −N.

    The first map of SwiGLU keeps the N(0, 0.02) of `init_weights`.
    """
    mixer, feed_forward = block.mixer, block.feed_forward
    assert isinstance(mixer, MambaMixer)
    assert isinstance(feed_forward, DenseFeedForward)
    for tensor in (mixer.input.weight, mixer.conv_weight, mixer.selection.weight, mixer.step.weight):
        uniform_(tensor, tensor.shape[1] ** -0.5, generator)
    uniform_(mixer.conv_bias, mixer.conv_weight.shape[1] ** -0.5, generator)
    for tensor in (mixer.output.weight, feed_forward.down.weight):
        uniform_(tensor, (2 * num_layers * tensor.shape[1]) ** -0.5, generator)
    step = mixer.step_bias.uniform_(math.log(LEAST_STEP), math.log(LARGEST_STEP), generator=generator)
    step.exp_().clamp_min_(STEP_FLOOR)
    step.add_(torch.log(-torch.expm1(-step)))  # the inverse of softplus
    mixer.decay_log.copy_(torch.arange(1, mixer.decay_log.shape[1] + 1).log())
    mixer.skip.fill_(1.0)


def uniform_(tensor: Tensor, bound: float, generator: torch.Generator | None) -> None:
    tensor.uniform_(-bound, bound, generator=generator)


def cost(config: MambaConfig, rows: int, length: int, *, slots: int = 0, is_replay: bool = False) -> dict[str, Cost]:
    """The scan counts with its contractions: one per token forward, over states, and three backward.

    Its element-wise work (decays, recurrence) is not counted, as everywhere, but takes most of its time.
    """
    tokens, d, inner, states = rows * length, config.d_model, config.inner_dim, config.state_dim
    maps = 3 * d * inner + inner * (config.rank + 2 * states) + config.rank * inner + inner * config.conv_width
    contraction = 2.0 * tokens * inner * states
    block = learned(2.0 * tokens * maps) + Cost(contraction, 4 * contraction)
    return baseline_cost(config, rows, length, block + swiglu_cost(d, config.ff_dim, tokens))


def activations(config: MambaConfig, length: int, *, on_cpu: bool) -> Activations:
    entering = config.inner_dim * config.state_dim / min(config.scan_chunk, length)
    mixer = Kept(inner=10 * config.inner_dim + 2 * config.state_dim + config.rank + entering)
    return baseline_kept(config, mixer, swiglu_kept(config.ff_dim))


Config = MambaConfig
