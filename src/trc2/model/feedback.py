"""From memory readout to the feedback that shifts the queries of all late columns."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from trc2.config import TRC2Config
from trc2.nn.linear import JoinedLinear, ScaledLinear
from trc2.ops.gates import sparse_gate


class FeedbackGate(nn.Module):
    """G = σ([stopgrad(H); M] W_gate + b_gate), sparsified;  F_hip = σ(a_hip) ((G ⊙ M) W_hip→thal)."""

    def __init__(self, config: TRC2Config) -> None:
        super().__init__()
        d_model = config.d_model
        self.num_kept = math.ceil(config.gate_top_fraction * d_model - 1e-9)  # 0.07 · 100 is 7, not 8
        self.gate = JoinedLinear(2 * d_model, d_model)
        self.gate_bias = nn.Parameter(torch.zeros(d_model))
        self.to_thalamus = ScaledLinear(d_model, d_model)
        self.strength = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Float[Tensor, "P D"], readout: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        drive = self.gate(hidden.detach(), readout, self.gate_bias)
        return self.to_thalamus(sparse_gate(drive, readout, self.num_kept), torch.sigmoid(self.strength))
