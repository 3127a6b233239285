"""The state of decoding between calls: one `State` per part of the network that reads earlier tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trc2.nn.segments import Earlier, Packed, Segment

FIRST_CAPACITY = 64


class State:
    """Named tensors whose first dimension is the row of the batch; empty until the first tokens have run."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def reorder(self, rows: Int[Tensor, " B"]) -> None:
        """Replace row i by row `rows[i]`: a beam search continues some rows twice and drops others."""
        self.tensors = {name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()}


class KeyValues(State):
    """Keys and values of all tokens so far, in buffers that double when they are full."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def append(
        self, k: Float[Tensor, "B T G K"], v: Float[Tensor, "B T G K"]
    ) -> tuple[Float[Tensor, "B S G K"], Float[Tensor, "B S G K"]]:
        """Add T tokens; returns all S ≥ T of them."""
        stop = self.length + k.shape[1]
        for name, new in (("keys", k), ("values", v)):
            if name not in self.tensors or self.tensors[name].shape[2] < stop:
                self._grow(name, new, max(FIRST_CAPACITY, 2 * stop))
            # Heads before tokens: attention then reads every head's keys in one stretch.
            self.tensors[name][:, :, self.length : stop] = new.transpose(1, 2)
        self.length = stop
        return self._all("keys"), self._all("values")

    def _grow(self, name: str, like: Float[Tensor, "B T G K"], capacity: int) -> None:
        rows, _, heads, width = like.shape
        larger = like.new_empty(rows, heads, capacity, width)
        if self.length:
            larger[:, :, : self.length] = self.tensors[name][:, :, : self.length]
        self.tensors[name] = larger

    def _all(self, name: str) -> Float[Tensor, "B S G K"]:
        return self.tensors[name][:, :, : self.length].transpose(1, 2)


class RunningSum(State):
    """Sum over a row's real tokens so far."""

    def add(self, total: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
        """Add a stretch of tokens; returns the sum as it was before it."""
        before = self.tensors.get("total")
        self.tensors["total"] = total if before is None else before + total
        return torch.zeros_like(total) if before is None else before


class Decoding:
    """Rows of tokens that are run piece by piece: how many were run, which were padding, and every part's state."""

    def __init__(self, states: Sequence[State]) -> None:
        self.states = list(states)
        self.length = 0
        self.valid: Bool[Tensor, "B L"] | None = None

    def pack(self, x: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None) -> Packed:
        """The next T tokens of every row as one segment, with a description of the earlier ones."""
        is_compiling = torch.compiler.is_compiling()  # reading values would break the graph
        if not is_compiling and valid is not None and self.valid is None and bool(valid.all()):
            valid = None
        earlier = Earlier(self.length, self.valid) if self.length else None
        if valid is None and self.valid is not None:
            valid = torch.ones_like(x, dtype=torch.bool)
        return Packed(x.reshape(-1), (Segment(0, x.shape[0], x.shape[1], valid, earlier),))

    def advance(self, segment: Segment) -> None:
        """Count a segment's tokens as run."""
        if segment.valid is not None:
            self.valid = segment.valid_so_far()
        self.length += segment.length

    def reorder(self, rows: Int[Tensor, " B"]) -> None:
        """Continue row `rows[i]` as row i."""
        for state in self.states:
            state.reorder(rows)
        self.valid = None if self.valid is None else self.valid.index_select(0, rows)
