"""A control for memories of text: what followed the same few tokens before, in a table of so many bytes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trc2.nn.fingerprint import fingerprints
from trc2.nn.keyed import keyed_generator
from trc2.replay.reservoirs import last_for_each, uniform_slots

ENTRY_BYTES = 12  # a context's fingerprint and a token
ORDERS = (1, 2, 3, 4)
WEIGHTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


class NGramCache:
    """An even sample of all (context, next token) pairs offered; a context is the last `order` tokens."""

    def __init__(self, order: int, num_bytes: int, seed: int = 0) -> None:
        self.order, self.seed, self.offered = order, seed, 0
        self.contexts = torch.zeros(max(1, num_bytes // ENTRY_BYTES), dtype=torch.int64)
        self.tokens = torch.zeros_like(self.contexts, dtype=torch.int32)

    @property
    def num_entries(self) -> int:
        return min(self.offered, len(self.contexts))

    def offer(self, x: Tensor, y: Tensor) -> None:
        """Text (B, T), and the token after every one."""
        contexts, following = self._contexts(x).flatten(), y[:, self.order - 1 :].flatten().int()
        chance = keyed_generator("n-gram cache", self.order, self.seed, self.offered)
        draws = torch.rand(len(contexts), dtype=torch.float64, generator=chance)
        slots, chosen = last_for_each(uniform_slots(self.offered, len(self.contexts), draws))
        kept = slots < len(self.contexts)
        slots, chosen = slots[kept], chosen[kept]
        self.contexts[slots], self.tokens[slots] = contexts[chosen], following[chosen]
        self.offered += len(contexts)

    def probability(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """p(y | context) among the entries, and whether the context has any; both (B, T)."""
        asked = self._contexts(x)
        held, tokens = self.contexts[: self.num_entries], self.tokens[: self.num_entries]
        of_context = _count(held, asked)
        of_pair = _count(_pair(held, tokens), _pair(asked, y[:, self.order - 1 :]))
        known = torch.zeros(x.shape, dtype=torch.bool)
        known[:, self.order - 1 :] = of_context > 0
        p = torch.zeros(x.shape, dtype=torch.float64)
        p[:, self.order - 1 :] = of_pair / of_context.clamp_min(1)
        return p, known

    def _contexts(self, x: Tensor) -> Tensor:
        if x.shape[1] < self.order:
            return torch.zeros(x.shape[0], 0, dtype=torch.int64)
        windows = x.unfold(1, self.order, 1)
        return fingerprints(windows.flatten(0, 1)).view(windows.shape[:2])


def mixed_nll(nll: Tensor, p: Tensor, known: Tensor, weight: float) -> Tensor:
    """−log((1 − λ) p_model + λ p_cache) where the cache knows the context, else the model's own."""
    return torch.where(known, -((1.0 - weight) * (-nll.double()).exp() + weight * p).log(), nll.double())


def perplexity(total: float, tokens: int) -> float:
    return math.exp(min(700.0, total / max(1, tokens)))


def _pair(contexts: Tensor, tokens: Tensor) -> Tensor:
    return contexts * 6_364_136_223_846_793_005 + tokens.long()  # wraps around, as hashes do


def _count(held: Tensor, asked: Tensor) -> Tensor:
    """How often each asked number is among the held ones."""
    ordered = held.sort().values
    return torch.searchsorted(ordered, asked, right=True) - torch.searchsorted(ordered, asked, right=False)
