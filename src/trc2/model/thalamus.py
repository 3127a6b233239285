"""The thalamic router: one column's report becomes the next column's query shift."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.config import TRC2Config
from trc2.nn.decoding import RunningSum
from trc2.nn.linear import ScaledLinear
from trc2.nn.norm import RMSNorm
from trc2.nn.segments import Segment, rejoin
from trc2.ops.means import mean_of_earlier, sums_of_earlier
from trc2.ops.modes import at_least_float32


class ThalamicRouter(nn.Module):
    """A local and a diffuse pathway through a narrow bottleneck, with divisive competition.

    Z₀ = RMSNorm(C W_c)                       μ^{<t} = mean of Z₀ over strictly earlier tokens
    s  = ‖Z₀ − μ‖² / r                        g_state = σ(Z₀ w_state + b_state + α_s s)
    Z₁ = SiLU(Z₀ W_loc) + σ(a_diff) g_state ⊙ SiLU(μ W_diff)
    Z₂ = Z₁ ⊙ compete(σ(Z₁ W_trn + b_trn))    F_thal = (Z₂ W_back) ⊙ σ(g_mod)

    One router serves all pairs of adjacent columns.
    """

    def __init__(self, config: TRC2Config) -> None:
        super().__init__()
        d_model, rank = config.d_model, config.rank
        self.groups, self.inhibition = config.thalamic_groups, config.thalamic_inhibition
        self.compress = nn.Linear(d_model, rank, bias=False)
        self.norm = RMSNorm(rank, config.norm_eps)
        self.local = nn.Linear(rank, rank, bias=False)
        self.diffuse = nn.Linear(rank, rank, bias=False)
        self.state_weight = nn.Linear(rank, 1, bias=False)
        self.state_bias = nn.Parameter(torch.zeros(1))
        self.surprise_gain = nn.Parameter(torch.full((1,), 0.1))
        self.diffuse_gain = nn.Parameter(torch.zeros(1))
        self.competition = nn.Linear(rank, rank, bias=False)
        self.competition_bias = nn.Parameter(torch.zeros(rank))
        self.back = ScaledLinear(rank, d_model)
        self.modulation = nn.Parameter(torch.zeros(d_model))

    def forward(
        self, report: Float[Tensor, "P D"], segments: tuple[Segment, ...], before: RunningSum | None = None
    ) -> Float[Tensor, "P D"]:
        """`before` is this pair's running sum over tokens run earlier, while decoding."""
        z0 = self.norm(self.compress(report))
        past = rejoin([past_mean(segment.of(z0), segment, before) for segment in segments])
        surprise = (at_least_float32(z0) - past).square().mean(dim=-1, keepdim=True)
        state = torch.sigmoid(self.state_weight(z0) + self.state_bias + self.surprise_gain * surprise.to(z0.dtype))
        diffuse = F.silu(self.diffuse(past.to(z0.dtype)))
        z1 = (F.silu(self.local(z0)) + torch.sigmoid(self.diffuse_gain) * state * diffuse).to(z0.dtype)
        gate = torch.sigmoid(self.competition(z1) + self.competition_bias)
        z2 = z1 * compete(gate, self.groups, self.inhibition)
        return self.back(z2, torch.sigmoid(self.modulation))


def past_mean(z: Float[Tensor, "B T R"], segment: Segment, before: RunningSum | None = None) -> Float[Tensor, "B T R"]:
    """μ^{<t}: mean over strictly earlier real tokens, 0 where there is none.

    While decoding, `before` holds the sum over the tokens before this segment. The sum over these is added to it.
    """
    z = at_least_float32(z)
    return mean_of_earlier(z, segment.valid) if before is None else _continued_mean(z, segment, before)


def _continued_mean(z: Float[Tensor, "B T R"], segment: Segment, before: RunningSum) -> Float[Tensor, "B T R"]:
    """While decoding: sums and counts inside the segment, plus those of the tokens before it."""
    num_before = segment.num_earlier()
    if z.shape[1] == 1 and segment.valid is None:
        # The usual step, one real token in every row: all of its past lies before the segment.
        count = max(1, num_before) if isinstance(num_before, int) else num_before.unsqueeze(1).clamp_min(1)
        return before.add(z[:, 0]).unsqueeze(1) / count
    inside = sums_of_earlier(z, segment.valid)
    sum_before = before.add(inside.total).unsqueeze(1)
    counts = inside.counts + (num_before if isinstance(num_before, int) else num_before.unsqueeze(1))
    return (inside.sums + sum_before) / counts.clamp_min(1.0)


def compete(gate: Float[Tensor, "P R"], groups: int, inhibition: float) -> Float[Tensor, "P R"]:
    """g̃ = g / (1 + η · mean of g over its group): channels of one group suppress each other."""
    grouped = gate.unflatten(-1, (groups, -1))
    return (grouped / (1.0 + inhibition * grouped.mean(dim=-1, keepdim=True))).flatten(-2)
