"""CortexNet: TRC² with its memory's queue of pending writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trc2.config import TRC2Config
from trc2.model.backbone import Backbone
from trc2.model.cortex import Cortex, CortexOutput
from trc2.model.hippocampus import Origin, Proposal, WriteReport
from trc2.nn.decoding import Decoding
from trc2.nn.segments import Packed


class CortexNet(Backbone):
    """TRC² as the paper calls it; see `Backbone` for the calling convention.

    A training forward with targets queues writes and stages replay chunks; only `flush_pending_write` commits them.
    An evaluation forward empties the write queue without committing, and never touches memory or stores.
    """

    def __init__(self, config: TRC2Config, generator: torch.Generator | None = None) -> None:
        super().__init__(config)
        self.cortex = Cortex(config, generator)
        self.pending: deque[Proposal] = deque(maxlen=config.max_pending)

    @property
    def body(self) -> Cortex:
        return self.cortex

    def _run(
        self, packed: Packed, origin: Origin | None, step: int, *, with_losses: bool, read_memory: bool = True
    ) -> CortexOutput:
        return self.cortex(packed, origin, step, appraise=with_losses, read_memory=read_memory)

    def _decode(self, packed: Packed, decoding: Decoding, *, read_memory: bool) -> CortexOutput:
        return self.cortex(packed, appraise=False, read_memory=read_memory, decoding=decoding)

    def _own_losses(self, out: CortexOutput) -> Iterable[tuple[str, float, Tensor]]:
        """λ_td L_td + λ_pred L_pred"""
        zero, appraisal = out.hidden.new_zeros(()), out.appraisal
        yield "loss_td", self.config.lambda_td, zero if appraisal is None else appraisal.loss_td
        yield "loss_predictor", self.config.lambda_predictor, zero if appraisal is None else appraisal.loss_predictor

    def _queue(self, out: CortexOutput, x: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None) -> None:
        super()._queue(out, x, valid)
        if out.proposal is not None:
            self.pending.append(out.proposal)

    def _num_pending(self) -> int:
        return max(len(self.pending), super()._num_pending())

    def _drop_pending_events(self) -> None:
        self.pending.clear()

    def flush_pending_write(self) -> WriteReport:
        """Commit queued events and staged replay chunks; once per optimizer step, before `optimizer.step()`."""
        proposals = list(self.pending)
        self.pending.clear()
        super().flush_pending_write()
        hippocampus = self.cortex.hippocampus
        return WriteReport() if hippocampus is None else hippocampus.commit(proposals)

    def update_slow_targets(self) -> None:
        """Move the slow heads towards the fast ones and end the step; once per step, after `optimizer.step()`."""
        if self.cortex.hippocampus is not None:
            self.cortex.hippocampus.critic.update_slow()
        super().update_slow_targets()

    @property
    def has_memory(self) -> bool:
        return self.cortex.hippocampus is not None

    @property
    def num_events(self) -> int:
        return 0 if self.cortex.hippocampus is None else self.cortex.hippocampus.count

    def tensors_without_reader(self) -> list[str]:
        """Names of trainable tensors that no loss can reach, see `Cortex.tensors_without_reader`."""
        return [f"cortex.{name}" for name in self.cortex.tensors_without_reader()]
