"""Rules of a reservoir: each gives the slot of every new chunk, as a function of its arguments only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


def uniform_slots(first: int, size: int, draws: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Keep every chunk ever seen with the same probability.

    Chunk number `first + i` takes the slot of its number while there is room, later slot r ~ U{0..number}. A slot of
    `size` or more means that the chunk is dropped.
    """
    numbers = torch.arange(first, first + len(draws))
    return torch.where(numbers < size, numbers, (draws * (numbers + 1)).long())


def last_for_each(slots: Int[Tensor, " n"]) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """Every slot once, and the index of its last chunk, which plain indexing does not ensure."""
    winner: dict[int, int] = dict(zip(slots.tolist(), range(len(slots)), strict=True))
    return torch.tensor(list(winner), dtype=torch.int64), torch.tensor(list(winner.values()), dtype=torch.int64)


def weighted_slots(
    keys: Float[Tensor, " M"], weights: Float[Tensor, " n"], draws: Float[Tensor, " n"]
) -> Int[Tensor, " n"]:
    """A chunk's chance to be kept grows with its weight (Efraimidis and Spirakis); `keys` is updated in place.

    Its key is log(u) / w, and the M largest keys stay: as if M had been drawn one by one, without replacement, each
    with probability proportional to its weight. −∞ marks an empty slot; the answer is M for what is dropped.

    Empty slots are filled from the first on: who draws from a store that is not full draws from its first slots.
    """
    size = len(keys)
    new_keys = draws.clamp_min(1e-300).log() / weights.clamp_min(1e-12)
    together = torch.cat((keys, new_keys))
    stays = torch.zeros(len(together), dtype=torch.bool)
    stays[together.topk(size).indices] = True
    is_empty = keys == -torch.inf
    pushed_out = ~stays[:size] & ~is_empty
    taken = stays[size:].nonzero().squeeze(1)
    free = torch.cat((is_empty.nonzero(), pushed_out.nonzero())).squeeze(1)[: len(taken)]
    slots = torch.full((len(weights),), size, dtype=torch.int64)
    slots[taken] = free
    keys[free] = new_keys[taken]
    return slots


@dataclass
class Stretches:
    """A stream cut where its loss jumps, without task labels: the stretch of every slot, and how long each was.

    `of_slot` is −1 where a slot is empty. `lengths[s]` counts the chunks stretch s has offered.
    """

    of_slot: Int[Tensor, " M"]
    lengths: Int[Tensor, " S"]
    current: Int[Tensor, ""]
    loss_mean: Float[Tensor, ""]
    since_jump: Int[Tensor, ""]

    MARGIN = 0.5  # nats above the running mean
    REST = 20  # steps after a jump, or the start, in which no other one counts
    MEMORY = 0.95  # of the running mean

    def observe_loss(self, loss: float) -> None:
        """A step had this loss: a jump begins a new stretch; the last one goes on if there is no room for more."""
        mean = float(self.loss_mean)
        is_jump = int(self.since_jump) >= self.REST and loss > mean + self.MARGIN
        if is_jump and int(self.current) + 1 < len(self.lengths):
            self.current += 1
        if is_jump:
            self.since_jump.zero_()
        self.since_jump += 1
        self.loss_mean.fill_(loss if math.isnan(mean) or is_jump else self.MEMORY * mean + (1 - self.MEMORY) * loss)

    def slots(self, draws: Float[Tensor, "n 2"]) -> Int[Tensor, " n"]:
        """Equal room for every stretch, whatever their lengths: a chunk takes the place of one of the largest.

        While its own stretch is among the largest, it takes one of its own places, with the chance that keeps them a
        uniform sample of the stretch. M means dropped.
        """
        size, current = len(self.of_slot), int(self.current)
        found = []
        for keep, which in draws.tolist():
            self.lengths[current] += 1
            held = torch.bincount(self.of_slot.clamp_min(-1) + 1, minlength=len(self.lengths) + 1)
            empty, per_stretch = int(held[0]), held[1:]
            largest = int(per_stretch.argmax())
            if empty:
                places = (self.of_slot == -1).nonzero().squeeze(1)[:1]
            elif per_stretch[current] < per_stretch[largest]:
                places = (self.of_slot == largest).nonzero().squeeze(1)
            elif keep < float(per_stretch[current]) / float(self.lengths[current]):
                places = (self.of_slot == current).nonzero().squeeze(1)
            else:
                found.append(size)
                continue
            slot = int(places[int(which * len(places))])
            self.of_slot[slot] = current
            found.append(slot)
        return torch.tensor(found, dtype=torch.int64)
