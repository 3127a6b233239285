"""Averaged gradient episodic memory."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from trc2.config import BackboneConfig, StrategyConfig, TrainConfig
from trc2.config.section import Size
from trc2.distributed.sharded import number
from trc2.replay.stores import read_chunks
from trc2.strategies.base import Sequences, Strategy


class Settings(StrategyConfig):
    name: Literal["agem"] = "agem"
    chunks: Size = Field(8, description="stored chunks whose gradient the update must not oppose")

    def replayed_tokens(self, model: BackboneConfig, train: TrainConfig) -> int:
        return self.chunks * (model.replay_chunk_length - 1)  # from the second task on


class AveragedGradientMemory(Strategy):
    """A-GEM: a step may not point against the gradient on stored chunks.

    g ← g − (gᵀg_ref / g_refᵀg_ref) g_ref  wherever gᵀg_ref < 0. The chunks come from the reservoir of the backbone's
    replay stores, as it was at the start of the step. The correction begins with the second task.
    """

    settings: Settings

    def correct_gradients(self, step: int) -> dict[str, float]:
        stores = self.model.replay
        if not self.tensors or stores is None:
            return {}
        chunks = stores.draw(self.settings.chunks, 1.0, "agem", step)
        if chunks is None:
            return {}
        old, device = read_chunks(chunks), self.model.get_input_embeddings().weight.device
        reference = self.language_gradients(old.x.contiguous().to(device), old.targets.contiguous().to(device))
        gradients = {name: p.grad for name, p in self.learning().items() if p.grad is not None}
        pairs = [(gradient, reference[name]) for name, gradient in gradients.items() if name in reference]
        along = sum(number((g.double() * r.double()).sum()) for g, r in pairs)
        size = sum(number(r.double().square().sum()) for _, r in pairs)
        conflict = along < 0.0 and size > 0.0
        if conflict:
            with torch.no_grad():
                for g, r in pairs:
                    g.sub_(r.to(g.dtype), alpha=along / size)
        return {"strategy/conflict": float(conflict)}

    def end_task(self, sequences: Sequences) -> None:
        """Count the task: the correction begins with the second one."""
        self.tensors["tasks"] = self.tensors.get("tasks", torch.zeros((), dtype=torch.int64)) + 1


build = AveragedGradientMemory
