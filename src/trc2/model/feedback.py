"""From memory readout to the fixed feedback that all late columns hear."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trc2.config import TRC2Config
from trc2.nn.linear import JoinedLinear, ScaledLinear
from trc2.ops.selection import top_k_mask


class FeedbackGate(nn.Module):
    """G = σ([stopgrad(H); M] W_gate + b_gate), sparsified;  F_hip = σ(a_hip) ((G ⊙ M) W_hip→thal)."""

    def __init__(self, config: TRC2Config) -> None:
        super().__init__()
        d_model = config.d_model
        self.num_kept = math.ceil(config.gate_top_fraction * d_model - 1e-9)  # 0.07 · 100 is 7, not 8
        self.gate = JoinedLinear(2 * d_model, d_model, bias=False)
        self.gate_bias = nn.Parameter(torch.zeros(d_model))
        self.to_thalamus = ScaledLinear(d_model, d_model, bias=False)
        self.strength = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Float[Tensor, "P D"], readout: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        drive = self.gate(hidden.detach(), readout, self.gate_bias)
        if torch.is_grad_enabled():
            passed = _SparseGate.apply(drive, readout, self.num_kept)
        else:
            passed = sparse_gate(drive, self.num_kept).mul_(readout)
        return self.to_thalamus(passed, torch.sigmoid(self.strength))


def sparse_gate(drive: Float[Tensor, "P D"], num_kept: int) -> Float[Tensor, "P D"]:
    """σ(drive) at the k largest of each row, 0 elsewhere."""
    gate = torch.sigmoid(drive)
    return gate if num_kept >= gate.shape[-1] else gate.mul_(top_k_mask(gate, num_kept))


class _SparseGate(torch.autograd.Function):
    """G ⊙ M with the sparse gate G; σ′ = G (1 − G) is 0 where G is, so that the mask is not needed again."""

    @staticmethod
    def forward(ctx: Any, drive: Tensor, readout: Tensor, num_kept: int) -> Tensor:
        gate = sparse_gate(drive, num_kept)
        ctx.save_for_backward(gate, readout)
        return gate * readout

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, readout = ctx.saved_tensors
        return torch.ops.aten.sigmoid_backward(grad * readout, gate), grad * gate, None
