"""Packed tokens: several blocks of rows laid end to end, so that position-wise work runs once over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Earlier:
    """Tokens of the same rows that were run before: how many, and which of them are real (None: all)."""

    length: int
    valid: Bool[Tensor, "B L"] | None = None


@dataclass(frozen=True)
class Segment:
    """`rows` sequences of `length` tokens that occupy packed positions `start … stop-1`.

    `valid` marks real tokens where some are padding. None means that all are real. While decoding, `earlier` describes
    the tokens of the same rows before these.
    """

    start: int
    rows: int
    length: int
    valid: Bool[Tensor, "B T"] | None = None
    earlier: Earlier | None = None

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.length

    def of(self, packed: Tensor) -> Tensor:
        """This segment's part of a packed tensor (P, …) as (B, T, …)."""
        rows = packed if self.stop - self.start == packed.shape[0] else packed[self.start : self.stop]
        return rows.unflatten(0, (self.rows, self.length))

    def positions(self, device: torch.device) -> Int[Tensor, "B T"]:
        """Positions inside each row. Padding does not advance them, so left-padding changes nothing."""
        valid = self.valid_so_far()
        if valid is None:
            first = 0 if self.earlier is None else self.earlier.length
            return torch.arange(first, first + self.length, device=device).expand(self.rows, -1)
        return (valid.cumsum(1) - 1).clamp_min(0)[:, -self.length :]

    def num_earlier(self) -> int | Int[Tensor, "B 1"]:
        """How many real tokens of each row were run before."""
        if self.earlier is None:
            return 0
        return self.earlier.length if self.earlier.valid is None else self.earlier.valid.sum(1, keepdim=True)

    def valid_so_far(self) -> Bool[Tensor, "B S"] | None:
        """Which tokens are real, from the first of the row to the last of this segment. None means all."""
        # `Decoding.pack` marks the tokens of a segment if any earlier ones were marked, so None means all so far.
        if self.earlier is None or self.valid is None:
            return self.valid
        earlier = self.earlier.valid
        earlier = self.valid.new_ones(self.rows, self.earlier.length) if earlier is None else earlier
        return torch.cat((earlier, self.valid), dim=1)


@dataclass(frozen=True, kw_only=True)
class Step(Segment):
    """The next token of every row in a compiled graph, where no shape may depend on how many tokens came before.

    Caches have room for S tokens. This one goes to `slot`, and `seen` marks the real tokens so far, this one included.
    """

    seen: Bool[Tensor, "B S"]
    slot: Int[Tensor, " 1"]

    def positions(self, device: torch.device) -> Int[Tensor, "B 1"]:
        return self.num_earlier()

    def num_earlier(self) -> Int[Tensor, "B 1"]:
        return self.seen.sum(1, keepdim=True) - 1

    def valid_so_far(self) -> Bool[Tensor, "B S"]:
        return self.seen


@dataclass(frozen=True)
class Packed:
    """Token ids of all segments, end to end, and where each segment lies."""

    tokens: Int[Tensor, " P"]
    segments: tuple[Segment, ...]

    @property
    def positions(self) -> Int[Tensor, " P"]:
        return positions_of(self.segments, self.tokens.device)

    @property
    def counted(self) -> Bool[Tensor, " P"] | slice:
        """The real tokens of the first segment, the training batch: replayed ones and padding are not counted."""
        main = self.segments[0]
        if main.valid is None:
            return slice(main.start, main.stop)
        return F.pad(main.valid.flatten(), (0, self.tokens.shape[0] - main.stop))


def positions_of(segments: Sequence[Segment], device: torch.device) -> Int[Tensor, " P"]:
    """The position of every packed token inside its own row."""
    return torch.cat([segment.positions(device).reshape(-1) for segment in segments])


def pack(blocks: Sequence[Int[Tensor, "_B _T"]], valid: Bool[Tensor, "B T"] | None = None) -> Packed:
    """Lay blocks of token rows end to end. `valid` belongs to the first one."""
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
