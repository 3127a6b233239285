"""Which optimizer step and micro-step comes next."""

from __future__ import annotations

import torch
from torch import Tensor

from trc2.nn.host import HostState


class Clock(HostState):
    """The key of all replay draws. Only the shell moves it: a micro-step with every batch it learns from, a step at its
    end.
    """

    step: Tensor
    micro_step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device="cpu"))
        self.register_buffer("micro_step", torch.zeros((), dtype=torch.int64, device="cpu"))

    def set(self, step: int, micro_step: int) -> None:
        self.step.fill_(step)
        self.micro_step.fill_(micro_step)

    def tick(self) -> None:
        """One more micro-batch of this step."""
        self.micro_step += 1

    def end_step(self) -> None:
        self.set(int(self.step) + 1, 0)
