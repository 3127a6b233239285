"""Rotary positions, half-split convention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from trc2.ops.rotate import Rotation


class RotaryTable(nn.Module):
    """[cos cos] and [−sin sin] of position · base^(-2i/K), one table for all columns."""

    cos: Tensor
    sin: Tensor

    def __init__(self, max_positions: int, head_dim: int, base: float) -> None:
        super().__init__()
        self.max_positions, self.head_dim, self.base = max_positions, head_dim, base
        # Derived from the config, hence not part of any checkpoint.
        for name, table in zip(("cos", "sin"), self._tables(), strict=True):
            self.register_buffer(name, table.to(torch.get_default_dtype()), persistent=False)

    def _tables(self) -> tuple[Tensor, Tensor]:
        inverse = self.base ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angles = torch.arange(self.max_positions, dtype=torch.float64)[:, None] * inverse
        return angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), dim=1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryTable:
        """A change of type starts again from exact angles: float32 values widened to float64 would stay wrong."""
        super()._apply(fn, recurse)
        self.derive()
        return self

    def derive(self) -> None:
        """Fill the tables from the config, exact to the type's last digit."""
        if self.cos.device.type != "meta":
            self.cos, self.sin = (table.to(self.cos.device, self.cos.dtype) for table in self._tables())

    def forward(self, positions: Int[Tensor, " P"]) -> Rotation:
        return Rotation(self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1))
