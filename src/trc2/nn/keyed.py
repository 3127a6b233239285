"""Random generators that depend on their purpose and not on earlier draws."""

from __future__ import annotations

import hashlib

import torch


def keyed_generator(*key: int | str) -> torch.Generator:
    """A CPU generator seeded by hashing the key, e.g. `("replay", seed, step, micro_step)`.

    Two different keys give unrelated streams, so a draw does not depend on rank, worker or resume point.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
