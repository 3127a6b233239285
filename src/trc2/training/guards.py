"""Proof that an evaluation changes nothing training depends on, and that all ranks hold the same state."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.distributed.group import Ranks, bytes_of
from trc2.distributed.sharded import own_rows
from trc2.system.rng import rng_state, rng_tensors


class EvaluationMovedState(RuntimeError):
    """An evaluation changed something that training depends on."""


def fingerprints(model: Backbone, optimizer: torch.optim.Optimizer | None) -> dict[str, str]:
    """A hash of every piece of state: weights and buffers, optimizer, queues, and all sources of chance."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    state: dict[str, Any] = {f"model.{name}": tensor for name, tensor in tensors}
    if optimizer is not None:
        for index, values in optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
    state["mode"] = [module.training for module in model.modules()]
    state["pending"] = len(model.pending)
    state["staged"] = 0 if model.replay is None else model.replay.num_staged
    state |= rng_tensors() | rng_state()
    return {name: _hash(value) for name, value in state.items()}


@contextmanager
def no_side_effects(is_on: bool, model: Backbone, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Fail if anything differs after the block; off, it costs nothing."""
    if not is_on:
        yield
        return
    before = fingerprints(model, optimizer)
    yield
    after = fingerprints(model, optimizer)
    moved = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if moved:
        raise EvaluationMovedState(f"an evaluation changed {', '.join(moved[:5])}")


def _hash(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        content = own_rows(value.detach()).cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    else:
        content = repr(value).encode()
    return hashlib.sha256(content).hexdigest()


class RanksDiffer(RuntimeError):
    """Something that must be the same on all ranks is not."""


def check_ranks_agree(ranks: Ranks, model: Backbone, others: dict[str, Tensor]) -> None:
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
