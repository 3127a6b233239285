"""Proof that all ranks hold the same state."""

from __future__ import annotations

import hashlib
import itertools

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.ranks.group import Ranks, bytes_of


class RanksDiffer(RuntimeError):
    """Something that must be the same on all ranks is not."""


def check_unison(ranks: Ranks, model: Backbone, others: dict[str, Tensor]) -> None:
    """Compare hashes of weights, memory, stores, clock and `others` over all ranks; name what differs.

    A divided tensor is its own on every rank, so it is left out.
    """
    state = dict(itertools.chain(model.named_parameters(), model.named_buffers(), others.items()))
    names = sorted(name for name, tensor in state.items() if not hasattr(tensor, "placements"))
    own = torch.tensor([[_digest(state[name]) for name in names]], dtype=torch.int64)
    (everyones,) = ranks.gather(own)
    different = (everyones != everyones[:1]).any(dim=0).nonzero().flatten().tolist()
    if different:
        raise RanksDiffer(f"the ranks hold different {', '.join(names[index] for index in different[:5])}")


def _digest(tensor: Tensor) -> int:
    content = bytes_of(tensor).cpu().numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
