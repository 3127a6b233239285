"""State that stays on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class HostState(nn.Module):
    """Buffers that `.to(device)` and `.double()` leave alone: counters and settings that Python code reads.

    On the device, reading one of them would wait for all queued work. `counters` become integers, 0 at first.
    """

    def __init__(self, *counters: str) -> None:
        super().__init__()
        for name in counters:
            self.register_buffer(name, torch.zeros((), dtype=torch.int64, device="cpu"))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return self
