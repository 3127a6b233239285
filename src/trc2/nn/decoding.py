"""The state of decoding between calls: one `State` per part of the network that reads earlier tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from trc2.nn.segments import Earlier, Packed, Segment, Step

FIRST_CAPACITY = 64


class State:
    """Named tensors whose first dimension is the row of the batch. Empty until the first tokens have run."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    @property
    def can_join(self) -> bool:
        """Whether rows of another state can be added to these."""
        return True

    def join(self, other: State, padding: tuple[int, int]) -> None:
        """Add the rows of another state. `padding` is how many empty tokens come before these rows, and before those.

        A state without a tensor per token has nothing to pad.
        """
        self.tensors = {name: torch.cat((tensor, other.tensors[name])) for name, tensor in self.tensors.items()}

    def drop_first(self, tokens: int) -> None:
        """Forget the first tokens, which are padding in all rows."""

    def reorder(self, rows: Int[Tensor, " B"]) -> None:
        """Replace row i by row `rows[i]`: a beam search continues some rows twice and drops others."""
        self.tensors = {name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()}


class KeyValues(State):
    """Keys and values of all tokens so far, in buffers that double when they are full."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self.slot: Int[Tensor, " 1"] | None = None  # in a compiled graph, where the next token goes

    def append(
        self, k: Float[Tensor, "B T G K"], v: Float[Tensor, "B T G K"]
    ) -> tuple[Float[Tensor, "B S G K"], Float[Tensor, "B S G K"]]:
        """Add T tokens. Returns all S ≥ T of them, in a compiled graph the whole buffers."""
        if self.slot is not None:
            for name, new in (("keys", k), ("values", v)):
                self.tensors[name].index_copy_(2, self.slot, new.transpose(1, 2))
            return self.tensors["keys"].transpose(1, 2), self.tensors["values"].transpose(1, 2)
        stop = self.length + k.shape[1]
        for name, new in (("keys", k), ("values", v)):
            if name not in self.tensors or self.tensors[name].shape[2] < stop:
                self._grow(name, new, max(FIRST_CAPACITY, 2 * stop))
            # Heads before tokens: attention then reads every head's keys in one stretch.
            self.tensors[name][:, :, self.length : stop] = new.transpose(1, 2)
        self.length = stop
        return self._all("keys"), self._all("values")

    def make_room(self) -> None:
        """Have room for one more token, in buffers without gaps."""
        for name, tensor in self.tensors.items():
            if tensor.shape[2] <= self.length:
                self._grow(name, tensor.transpose(1, 2), max(FIRST_CAPACITY, 2 * self.length))
            elif not tensor.is_contiguous():
                self.tensors[name] = tensor.contiguous()

    def join(self, other: State, padding: tuple[int, int]) -> None:
        assert isinstance(other, KeyValues)
        pairs = list(zip((self, other), padding, strict=True))
        for name in self.tensors:
            # Padding is zeros: attention multiplies it by a weight of 0, and an old NaN there would stay NaN.
            rows = [F.pad(state.tensors[name][:, :, : state.length], (0, 0, pad, 0)) for state, pad in pairs]
            self.tensors[name] = torch.cat(rows)
        self.length += padding[0]

    def drop_first(self, tokens: int) -> None:
        self.tensors = {name: tensor[:, :, tokens:] for name, tensor in self.tensors.items()}
        self.length -= tokens

    def _grow(self, name: str, like: Float[Tensor, "B T G K"], capacity: int) -> None:
        rows, _, heads, width = like.shape
        larger = like.new_zeros(rows, heads, capacity, width)  # a compiled step multiplies the empty part by 0
        if self.length:
            larger[:, :, : self.length] = self.tensors[name][:, :, : self.length]
        self.tensors[name] = larger

    def _all(self, name: str) -> Float[Tensor, "B S G K"]:
        return self.tensors[name][:, :, : self.length].transpose(1, 2)


class RunningSum(State):
    """Sum over a row's real tokens so far."""

    def add(self, total: Float[Tensor, "B R"]) -> Float[Tensor, "B R"]:
        """Add a stretch of tokens. Returns the sum as it was before it."""
        before = self.tensors.get("total")
        self.tensors["total"] = total if before is None else before + total
        return torch.zeros_like(total) if before is None else before


class Decoding:
    """Rows of tokens that are run piece by piece: how many were run, which were padding, and every part's state.

    `contexts` are the contexts in stored documents that end at the newest token of each row, on the host.
    """

    def __init__(self, states: Sequence[State]) -> None:
        self.states = list(states)
        self.rows = 0
        self.length = 0
        self.valid: Bool[Tensor, "B L"] | None = None
        self.seen: Bool[Tensor, "B S"] | None = None  # `valid` with room for more tokens, in compiled steps
        self.contexts: Int[Tensor, "B O"] | None = None

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
        self.rows = segment.rows
        self.length += segment.length

    def reorder(self, rows: Int[Tensor, " B"]) -> None:
        """Continue row `rows[i]` as row i."""
        self.seen = None
        for state in self.states:
            state.reorder(rows)
        self.rows = len(rows)
        self.valid = None if self.valid is None else self.valid.index_select(0, rows)
        self.contexts = None if self.contexts is None else self.contexts.index_select(0, rows.cpu())

    @property
    def can_join(self) -> bool:
        """Whether rows of another decoding can be added to these."""
        return all(state.can_join for state in self.states)

    def join(self, other: Decoding) -> None:
        """Add the rows of another decoding of the same network. The shorter one gets padding before its tokens."""
        self.seen = None
        length = max(self.length, other.length)
        padding = (length - self.length, length - other.length)
        for state, added in zip(self.states, other.states, strict=True):
            state.join(added, padding)
        if any(padding) or self.valid is not None or other.valid is not None:
            marks = [F.pad(one._marked(), (pad, 0)) for one, pad in zip((self, other), padding, strict=True)]
            self.valid = torch.cat(marks)
        contexts = [one.contexts for one in (self, other) if one.contexts is not None]
        self.contexts = torch.cat(contexts) if contexts else None
        self.rows, self.length = self.rows + other.rows, length

    def drop_padding(self) -> None:
        """Remove the first tokens as far as they are padding in all rows, for example after the longest row left."""
        if self.valid is None:
            return
        self.seen = None
        first = int(self.valid.any(dim=0).int().argmax())
        for state in self.states if first else ():
            state.drop_first(first)
        self.length -= first
        self.valid = None if bool(self.valid[:, first:].all()) else self.valid[:, first:]

    def next_step(self) -> Step:
        """The next token of every row for a compiled step: room in all caches, and which of their tokens are real."""
        caches = [state for state in self.states if isinstance(state, KeyValues)]
        for cache in caches:
            cache.make_room()
        room = caches[0].tensors["keys"].shape[2] if caches else self.length + FIRST_CAPACITY
        if self.seen is None or self.seen.shape[1] <= self.length or (caches and self.seen.shape[1] != room):
            self.seen = F.pad(self._marked(), (0, room - self.length))
        self.seen[:, self.length] = True
        return Step(0, self.rows, 1, seen=self.seen, slot=torch.tensor([self.length], device=self.seen.device))

    def _marked(self) -> Bool[Tensor, "B L"]:
        if self.valid is not None:
            return self.valid
        tensor = next((t for state in self.states for t in state.tensors.values()), None)
        return torch.ones(self.rows, self.length, dtype=torch.bool, device=None if tensor is None else tensor.device)
