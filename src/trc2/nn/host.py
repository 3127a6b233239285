"""State that stays on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class HostState(nn.Module):
    """Buffers that neither `.to(device)` nor `.double()` concerns: counters and settings that Python code reads.

    On the device every look at them would wait for all queued work.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return self
