"""One number for a row of tokens, by which the same tokens are known again."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from trc2.nn.keyed import keyed_generator


def fingerprints(tokens: Int[Tensor, "n L"]) -> Int[Tensor, " n"]:
    """Σ_i (token_i + 1) r_i mod 2^63 with fixed random r_i; never negative, so that −1 can mean none.

    Two different rows collide about once in 2^62.
    """
    chance = keyed_generator("fingerprint", tokens.shape[1])
    factors = torch.randint(-(2**63), 2**63 - 1, (tokens.shape[1],), generator=chance) | 1
    return ((tokens.long() + 1) * factors.to(tokens.device)).sum(dim=1) & (2**63 - 1)
