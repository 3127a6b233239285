"""Packed tokens: several blocks of rows laid end to end, so that position-wise work runs once over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """`rows` sequences of `length` tokens that occupy packed positions `start … stop-1`.

    `valid` marks real tokens where some are padding; None means that all are real.
    """

    start: int
    rows: int
    length: int
    valid: Bool[Tensor, "B T"] | None = None

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.length

    def of(self, packed: Tensor) -> Tensor:
        """This segment's part of a packed tensor (P, …) as (B, T, …)."""
        return packed[self.start : self.stop].unflatten(0, (self.rows, self.length))

    def positions(self, device: torch.device) -> Int[Tensor, "B T"]:
        """Positions inside each row; padding does not advance them, so left-padding changes nothing."""
        if self.valid is None:
            return torch.arange(self.length, device=device).expand(self.rows, -1)
        return (self.valid.cumsum(1) - 1).clamp_min(0)


@dataclass(frozen=True)
class Packed:
    """Token ids of all segments, end to end, and where each segment lies."""

    tokens: Int[Tensor, " P"]
    segments: tuple[Segment, ...]

    @property
    def positions(self) -> Int[Tensor, " P"]:
        device = self.tokens.device
        return torch.cat([segment.positions(device).reshape(-1) for segment in self.segments])


def pack(blocks: Sequence[Int[Tensor, "_B _T"]], valid: Bool[Tensor, "B T"] | None = None) -> Packed:
    """Lay blocks of token rows end to end; `valid` belongs to the first one."""
    segments: list[Segment] = []
    start = 0
    for block in blocks:
        segments.append(Segment(start, block.shape[0], block.shape[1], valid if not segments else None))
        start = segments[-1].stop
    return Packed(torch.cat([block.reshape(-1) for block in blocks]), tuple(segments))


def rejoin(parts: Sequence[Tensor]) -> Tensor:
    """The inverse of `Segment.of` over all segments: (B, T, …) parts back to packed (P, …)."""
    flat = [part.flatten(0, 1) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)
