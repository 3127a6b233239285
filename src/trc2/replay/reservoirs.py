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
    """Keep chunks with probabilities that grow with their weights (Efraimidis and Spirakis). Updates `keys` in place.

    A chunk's key is log(u) / w, and the M largest keys stay: a sample without replacement by weight. −∞ marks an empty
    slot. Slot M means that the chunk is dropped. Empty slots are filled from the first on, because draws from a store
    that is not full use its first slots.
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
    """A stream cut into stretches where its loss jumps, without task labels.

    `of_slot` is the stretch of every slot, −1 if empty. `lengths[s]` counts the chunks of stretch s.
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
        """Start a new stretch if the loss of a step jumped, unless all stretches are used."""
        mean = float(self.loss_mean)
        is_jump = int(self.since_jump) >= self.REST and loss > mean + self.MARGIN
        if is_jump and int(self.current) + 1 < len(self.lengths):
            self.current += 1
        if is_jump:
            self.since_jump.zero_()
        self.since_jump += 1
        self.loss_mean.fill_(loss if math.isnan(mean) or is_jump else self.MEMORY * mean + (1 - self.MEMORY) * loss)

    def slots(self, draws: Float[Tensor, "n 2"]) -> Int[Tensor, " n"]:
        """Slots that give every stretch equal room: a chunk replaces a chunk of the largest stretch.

        If its own stretch is the largest, it replaces a chunk of its own with the probability that keeps a uniform
        sample. Slot M means that the chunk is dropped.
        """
        size, current = len(self.of_slot), int(self.current)
        slots = []
        for keep, which in draws.tolist():
            self.lengths[current] += 1
            held = torch.bincount(self.of_slot.clamp_min(-1) + 1, minlength=len(self.lengths) + 1)
            empty, per_stretch = int(held[0]), held[1:]
            largest = int(per_stretch.argmax())
            if empty:
                candidates = (self.of_slot == -1).nonzero().squeeze(1)[:1]
            elif per_stretch[current] < per_stretch[largest]:
                candidates = (self.of_slot == largest).nonzero().squeeze(1)
            elif keep < float(per_stretch[current]) / float(self.lengths[current]):
                candidates = (self.of_slot == current).nonzero().squeeze(1)
            else:
                slots.append(size)
                continue
            slot = int(candidates[int(which * len(candidates))])
            self.of_slot[slot] = current
            slots.append(slot)
        return torch.tensor(slots, dtype=torch.int64)
