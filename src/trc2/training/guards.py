"""Checks that an evaluation leaves the state of training unchanged, and that all ranks hold the same state."""

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
from trc2.runs.checkpoint import pack_optimizer
from trc2.system.rng import rng_state, rng_tensors


class EvaluationMovedState(RuntimeError):
    """An evaluation changed something that training depends on."""


def fingerprints(model: Backbone, optimizer: torch.optim.Optimizer | None) -> dict[str, bytes]:
    """A hash of every part of the state: weights, buffers, optimizer, queues and random number generators."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    state: dict[str, Any] = {f"model.{name}": tensor for name, tensor in tensors}
    if optimizer is not None:
        state |= pack_optimizer(optimizer)
    state["mode"] = [module.training for module in model.modules()]
    state["pending"] = len(model.pending)
    state["staged"] = 0 if model.replay is None else model.replay.num_staged
    state |= rng_tensors() | rng_state()
    return {name: _digest(own_rows(value) if isinstance(value, Tensor) else value) for name, value in state.items()}


@contextmanager
def no_side_effects(is_on: bool, model: Backbone, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Fail if the state differs after the block. If off, do nothing."""
    if not is_on:
        yield
        return
    before = fingerprints(model, optimizer)
    yield
    after = fingerprints(model, optimizer)
    moved = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if moved:
        raise EvaluationMovedState(f"an evaluation changed {', '.join(moved[:5])}")


class RanksDiffer(RuntimeError):
    """The ranks hold different values of something that must be the same."""


def check_ranks_agree(ranks: Ranks, model: Backbone, others: dict[str, Tensor]) -> None:
    """Compare hashes of weights, memory, stores, clock and `others` over all ranks. Name what differs.

    A divided tensor is its own on every rank, so it is left out.
    """
    state = dict(itertools.chain(model.named_parameters(), model.named_buffers(), others.items()))
    names = sorted(name for name, tensor in state.items() if not hasattr(tensor, "placements"))
    hashes = [int.from_bytes(_digest(state[name]), "little", signed=True) for name in names]
    own = torch.tensor([hashes], dtype=torch.int64)
    (everyones,) = ranks.gather(own)
    different = (everyones != everyones[:1]).any(dim=0).nonzero().flatten().tolist()
    if different:
        raise RanksDiffer(f"the ranks hold different {', '.join(names[index] for index in different[:5])}")


def _digest(value: Any) -> bytes:
    content = bytes_of(value).cpu().numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode()
    return hashlib.blake2b(content, digest_size=8).digest()
