"""The slots of an episodic memory: a circle of recent events and, beside it, a sample of those that left its view."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from trc2.nn.host import HostState
from trc2.nn.keyed import keyed_generator
from trc2.nn.provenance import ORIGIN_FIELDS, UNKNOWN
from trc2.replay.reservoirs import last_for_each, uniform_slots


class Cursor(HostState):
    """How many slots of the circle hold an event, and which is written next; how many events left the reader's view."""

    count: Tensor
    pointer: Tensor
    left: Tensor | None
    updates: Tensor | None

    def __init__(self, *, counts_left: bool, counts_updates: bool) -> None:
        """Counters that only some settings need are absent without them, so that saved models of before fit."""
        super().__init__()
        self.register_buffer("count", _zero())
        self.register_buffer("pointer", _zero())
        self.register_buffer("left", _zero() if counts_left else None)
        self.register_buffer("updates", _zero() if counts_updates else None)

    def set(self, count: int, pointer: int) -> None:
        self.count.fill_(count)
        self.pointer.fill_(pointer)

    def reset(self) -> None:
        for counter in self.buffers():
            counter.zero_()


class EventStore(nn.Module):
    """N_s slots in a circle, then `reservoir` further ones; all of a slot's tensors have its number.

    The reader sees the `window` most recent events of the circle. An event that leaves this view is offered to the
    reservoir, which keeps an even sample of all that ever did: no event is seen twice, and none has a better chance to
    stay than another.
    """

    keys: Tensor
    values: Tensor
    origins: Tensor

    def __init__(
        self,
        slots: int,
        key_dim: int,
        d_model: int,
        *,
        window: int,
        reservoir: int = 0,
        seed: int = 0,
        notes: Mapping[str, tuple[int, ...]] | None = None,
        counts_updates: bool = False,
    ) -> None:
        """`notes` are further whole numbers of every slot, by name with the shape of one; −1 where unknown."""
        super().__init__()
        self.num_slots, self.num_reservoir, self.seed = slots, reservoir, seed
        self.window = min(slots, window)
        total = slots + reservoir
        self.register_buffer("keys", torch.zeros(total, key_dim))
        self.register_buffer("values", torch.zeros(total, d_model))
        self.register_buffer("origins", torch.full((total, len(ORIGIN_FIELDS)), UNKNOWN, dtype=torch.int64))
        self.notes = dict(notes or {})
        for name, shape in self.notes.items():
            self.register_buffer(name, torch.full((total, *shape), UNKNOWN, dtype=torch.int64))
        self.cursor = Cursor(counts_left=reservoir > 0, counts_updates=counts_updates)

    @property
    def count(self) -> int:
        """Slots of the circle that hold an event."""
        return int(self.cursor.count)

    @property
    def pointer(self) -> int:
        """The slot of the circle the next event goes to."""
        return int(self.cursor.pointer)

    @property
    def num_sampled(self) -> int:
        """Slots of the reservoir that hold an event."""
        return 0 if self.cursor.left is None else min(int(self.cursor.left), self.num_reservoir)

    @property
    def num_events(self) -> int:
        """Slots that hold an event."""
        return self.count + self.num_sampled

    def read_ranges(self) -> list[range]:
        """I_read, the n_read = min(n, S_max) most recent slots, as one or two contiguous ranges; then the reservoir."""
        pointer = self.pointer
        first = pointer - min(self.count, self.window)  # slots before 0 are the end of the circle
        ranges = (
            [range(first % self.num_slots, self.num_slots), range(pointer)] if first < 0 else [range(first, pointer)]
        )
        ranges.append(range(self.num_slots, self.num_slots + self.num_sampled))
        return [part for part in ranges if len(part) > 0]

    def in_view(self) -> Bool[Tensor, " S"]:
        """Which slots the reader sees, by arithmetic on the counters: a compiled graph cannot look at them."""
        device = self.keys.device
        age = (self.cursor.pointer.to(device) - 1 - torch.arange(self.num_slots, device=device)) % self.num_slots
        circle = age < self.cursor.count.clamp_max(self.window).to(device)
        if self.cursor.left is None:
            return circle
        return torch.cat((circle, torch.arange(self.num_reservoir, device=device) < self.cursor.left.to(device)))

    def readable(self) -> Int[Tensor, " n"]:
        """The numbers of all slots the reader sees, in order."""
        return torch.tensor(sorted(slot for part in self.read_ranges() for slot in part), dtype=torch.int64)

    @torch.no_grad()
    def insert(self, rows: Mapping[str, Tensor], total: int) -> None:
        """Insert events into the circle: slot(n) = (pointer + n) mod N_s, in place.

        `rows` are their tensors by name, of all `total` events or of the last of them: no more than the circle holds
        if there is no reservoir.
        """
        self._offer(rows, total)
        # Of more events than slots only the last ones would survive: write just those.
        kept = min(total, self.num_slots)
        where = (self.pointer + torch.arange(total - kept, total, device=self.keys.device)) % self.num_slots
        for name, new in rows.items():
            self.get_buffer(name)[where] = new[new.shape[0] - kept :]
        self.cursor.set(min(self.count + total, self.num_slots), (self.pointer + total) % self.num_slots)

    def _offer(self, rows: Mapping[str, Tensor], total: int) -> None:
        """Let the reservoir choose among the events that `total` new ones push out of the reader's view."""
        in_view = min(self.count, self.window)
        num_leaving = in_view + total - self.window
        if self.cursor.left is None or num_leaving <= 0:
            return
        oldest = torch.arange(min(num_leaving, in_view), device=self.keys.device)
        oldest = (self.pointer - in_view + oldest) % self.num_slots
        first = int(self.cursor.left)
        chance = keyed_generator("memory reservoir", self.seed, first)
        draws = torch.rand(num_leaving, dtype=torch.float64, generator=chance)
        slots, chosen = last_for_each(uniform_slots(first, self.num_reservoir, draws))
        slots, chosen = slots[slots < self.num_reservoir], chosen[slots < self.num_reservoir]
        for name, new in rows.items():
            store = self.get_buffer(name)
            leaving = torch.cat((store[oldest], new[: num_leaving - len(oldest)]))
            store[(self.num_slots + slots).to(store.device)] = leaving[chosen.to(store.device)]
        self.cursor.left += num_leaving

    @torch.no_grad()
    def replace(self, slots: Int[Tensor, " n"], rows: Mapping[str, Tensor]) -> None:
        """Give slots other tensors, whatever else they hold; of several for one slot the last stays."""
        where, chosen = last_for_each(slots)
        for name, new in rows.items():
            store = self.get_buffer(name)
            store[where.to(store.device)] = new[chosen.to(store.device)]


def _zero() -> Tensor:
    return torch.zeros((), dtype=torch.int64, device="cpu")
