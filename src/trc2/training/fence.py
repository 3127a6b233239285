"""Proof that watching does not change what is watched."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trc2.backbones.shell import Backbone
from trc2.ranks.divided import own_rows
from trc2.training.chance import chance_state, chance_tensors


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
    state |= chance_tensors() | chance_state()
    return {name: _hash(value) for name, value in state.items()}


@contextmanager
def fence(is_on: bool, model: Backbone, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
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
