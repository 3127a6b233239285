"""CortexNet: TRC² in the shell, under the paper's names."""

from __future__ import annotations

import torch

from trc2.backbones.costs import attention_kept, experts_kept, norms_kept, swiglu_kept
from trc2.backbones.shell import Backbone
from trc2.config import TRC2Config
from trc2.model.cortex import Cortex
from trc2.model.flops import pass_cost
from trc2.nn.cost import Activations, Cost, Kept


class CortexNet(Backbone[TRC2Config, Cortex]):
    """TRC² as the paper calls it. See `Backbone` for the calling convention.

    A training forward with targets queues writes and stages replay chunks. Only `flush_pending_write` commits them.
    An evaluation forward empties the write queue without committing, and never touches memory or stores.
    """

    cortex: Cortex

    def __init__(self, config: TRC2Config, generator: torch.Generator | None = None) -> None:
        super().__init__(config, Cortex(config, generator), name="cortex")

    @property
    def trunk(self) -> Cortex:  # type: ignore[override]
        return self.cortex


def build(config: TRC2Config, generator: torch.Generator | None = None) -> CortexNet:
    return CortexNet(config, generator)


def cost(config: TRC2Config, rows: int, length: int, *, slots: int = 0, is_replay: bool = False) -> dict[str, Cost]:
    """FLOPs of one pass over rows × length tokens with `slots` filled memory slots."""
    modulated = not is_replay or config.replay_path == "full"
    return pass_cost(config, rows, length, slots=slots, is_batch=not is_replay, modulated=modulated)


def activations(config: TRC2Config, length: int, *, on_cpu: bool) -> Activations:
    d, has_feedback = config.d_model, config.has_router or config.has_readout
    attention = attention_kept(config, length, on_cpu)
    routed = experts_kept(d, config.expert_dim, config.num_active_experts, config.num_experts)
    shared = swiglu_kept(config.expert_dim) * config.num_shared_experts
    feedback = Kept(inner=d if has_feedback else 0)
    once = Kept(stream=d, inner=d)
    if config.has_router:
        once += Kept(inner=d + 12 * config.rank) * (config.num_columns - 1)
    if config.memory:
        once += Kept(stream=5 * d)
    if config.has_readout:
        once += Kept(inner=6 * d + (config.memory_top_k + 2) * config.memory_key_dim)
    column = norms_kept(d) + attention + feedback + routed + shared
    return Activations(column, config.num_columns, Kept(stream=d) + feedback, once)
