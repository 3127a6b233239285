"""A cortical column."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from trc2.config import TRC2Config
from trc2.nn.attention import CausalAttention
from trc2.nn.decoding import KeyValues
from trc2.nn.experts import RoutedExperts, Routing
from trc2.nn.norm import RMSNorm
from trc2.nn.segments import Segment
from trc2.ops.rotate import Rotation


@dataclass(frozen=True)
class ColumnOutput:
    hidden: Float[Tensor, "P D"]
    routing: Routing


class CorticalColumn(nn.Module):
    """Causal attention, then routed experts, each added to the residual stream. L5 reports to the thalamus.

    H̃ = H + Attn(RMSNorm(H), Z);  H⁺ = H̃ + MoE(RMSNorm(H̃));  C = W_L5 H⁺
    """

    def __init__(self, config: TRC2Config, index: int) -> None:
        super().__init__()
        d_model = config.d_model
        self.attention_norm = RMSNorm(d_model, config.norm_eps)
        self.attention = CausalAttention(
            d_model, config.num_heads, config.num_kv_heads, has_query_shift=config.has_query_shift(index)
        )
        self.expert_norm = RMSNorm(d_model, config.norm_eps)
        self.experts = RoutedExperts(
            d_model,
            config.expert_dim,
            config.num_experts,
            config.num_active_experts,
            has_shared=config.num_shared_experts > 0,
        )
        # The last column's L5 has no reader. The paper's parameter counts contain it.
        self.layer5 = nn.Linear(d_model, d_model, bias=False) if config.thalamus else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        hidden: Float[Tensor, "P D"],
        feedback: Float[Tensor, "Q D"] | None,
        rotation: Rotation,
        segments: tuple[Segment, ...],
        past: KeyValues | None = None,
    ) -> ColumnOutput:
        attended = self.attention(self.attention_norm(hidden), feedback, rotation, segments, past)
        hidden = hidden + self.dropout(attended)
        mixed, routing = self.experts(self.expert_norm(hidden))
        return ColumnOutput(hidden + self.dropout(mixed), routing)

    def report(self, hidden: Float[Tensor, "P D"]) -> Float[Tensor, "P D"]:
        """C = W_L5 H⁺. Computed only if a router follows."""
        assert self.layer5 is not None, "a column reports only to a thalamus"
        return self.layer5(hidden)
