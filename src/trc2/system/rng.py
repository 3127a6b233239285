"""Random generators that depend on their purpose, and all global ones, saved and restored together."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

# numpy's legacy global state is what libraries draw from.
# ruff: noqa: NPY002


def keyed_generator(*key: int | str) -> torch.Generator:
    """A CPU generator seeded by hashing the key, e.g. `("replay", seed, step, micro_step)`.

    Two different keys give unrelated streams, so a draw does not depend on rank, worker or resume point.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def rng_tensors() -> dict[str, Tensor]:
    """States of torch's generators."""
    states = {"rng.torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"rng.cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def rng_state() -> dict[str, Any]:
    """States of Python's and numpy's generators, as JSON."""
    version, numbers, gauss = random.getstate()
    name, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, [int(key) for key in keys], int(place), int(has_gauss), float(cached)],
    }


def restore_rng(tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    torch.set_rng_state(tensors["rng.torch"])
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"rng.cuda.{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"rng.cuda.{index}"], index)
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), None if gauss is None else float(gauss)))  # Python takes anything
    name, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.asarray(keys, dtype=np.uint32), place, has_gauss, cached))


@contextmanager
def rng_unchanged() -> Iterator[None]:
    """Draws inside the block do not change the generators after it."""
    tensors, state = rng_tensors(), rng_state()
    try:
        yield
    finally:
        restore_rng(tensors, state)
