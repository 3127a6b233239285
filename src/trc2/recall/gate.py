"""How much of a prediction comes from the store: a logistic function of few features, fitted when documents are taught.

g = σ(weights · features), and g = 0 where no context was found. The features are the length of the longest stored
context, how often and by how many tokens it was followed, and how sure the network itself is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from trc2.ops.head_loss import IGNORE_INDEX
from trc2.recall.counts import ORDER, Counts, Ints, Match

FEATURES = (
    *(f"context of {n}" for n in range(1, ORDER)),
    "log count",
    "log followers",
    "largest log-probability",
    "entropy",
)
# Set by hand: trust long contexts with few followers, and a network that is sure of itself.
DEFAULT_WEIGHTS = (-5.0, -3.5, -2.0, -0.5, 0.3, -0.7, -0.3, 0.1)
MAX_RISE = 0.005  # nats per token that the loss of the text to keep may rise by
KEEP_WEIGHTS = (1.0, 4.0, 16.0, 64.0, 256.0)
RIDGE = 1e-3
MIN_SCALE = 0.25  # a feature that hardly varies must not get a huge weight


@dataclass(frozen=True)
class Gate:
    """The weights of the features, and how they were found."""

    weights: tuple[float, ...]
    reason: str

    def log_odds(self, features: Float[Tensor, "P F"]) -> Float[Tensor, " P"]:
        """log g/(1 − g)"""
        return features @ torch.tensor(self.weights, dtype=features.dtype, device=features.device)

    def to_json(self) -> dict[str, Any]:
        return {"weights": list(self.weights), "reason": self.reason}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Gate:
        weights = tuple(float(weight) for weight in content["weights"])
        if len(weights) != len(FEATURES) or not all(map(math.isfinite, weights)):
            raise ValueError(f"a gate has {len(FEATURES)} finite weights")
        return cls(weights, str(content["reason"]))


def gate_features(match: Match, log_probabilities: Float[Tensor, "P V"]) -> Float[Tensor, "P F"]:
    """The features of positions where a context was found, in the number format of the network's log-probabilities."""
    lengths = match.length[:, None] == np.arange(1, ORDER)
    logs = np.log1p(np.stack((match.total, match.followers), axis=1))
    of_store = torch.from_numpy(np.concatenate((lengths, logs), axis=1)).to(log_probabilities)
    surest = log_probabilities.amax(dim=1, keepdim=True)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=1, keepdim=True)
    return torch.cat((of_store, surest, entropy), dim=1)


@dataclass(frozen=True)
class Examples:
    """Positions of a text where a context was found, and the number of all its positions.

    `network` and `stored` are log p of the token that follows, by the network and by the counts.
    """

    features: Float[Tensor, "P F"]
    network: Float[Tensor, " P"]
    stored: Float[Tensor, " P"]
    num_positions: int

    @classmethod
    def of(cls, counts: Counts, x: Ints, y: Ints, network: Float[Tensor, "P V"]) -> Examples:
        """Rows x (B, T) and the tokens y (B, T) that follow, −100 where ignored; `network` are log-probabilities."""
        nodes, targets = counts.follow(x).reshape(y.size, -1), y.reshape(-1)
        match = counts.match(nodes)
        is_counted = targets != IGNORE_INDEX
        rows = np.flatnonzero((match.length > 0) & is_counted)
        scores = network[torch.from_numpy(rows)]
        return cls(
            gate_features(match.at(rows), scores).double(),
            scores.gather(1, torch.from_numpy(targets[rows]).unsqueeze(1)).squeeze(1).double(),
            torch.from_numpy(np.log(counts.probabilities(nodes[rows], targets[rows]))),
            int(is_counted.sum()),
        )

    @classmethod
    def join(cls, parts: Sequence[Examples]) -> Examples:
        empty = torch.empty(0, dtype=torch.float64)
        return cls(
            torch.cat([empty.view(0, len(FEATURES)), *(part.features for part in parts)]),
            torch.cat([empty, *(part.network for part in parts)]),
            torch.cat([empty, *(part.stored for part in parts)]),
            sum(part.num_positions for part in parts),
        )

    def rise(self, log_odds: Float[Tensor, " P"]) -> Float[Tensor, ""]:
        """By how much the mean loss of the text rises with the store, in nats per token. Below 0 the store helps."""
        mixed = torch.logaddexp(F.logsigmoid(-log_odds) + self.network, F.logsigmoid(log_odds) + self.stored)
        return (self.network - mixed).sum() / max(1, self.num_positions)

    def rise_with(self, gate: Gate) -> float:
        return float(self.rise(gate.log_odds(self.features)))


def fit_gate(taught: Examples, keep: Examples, reason: str) -> Gate:
    """The weights that predict taught text best, while the loss of the text to keep rises by at most MAX_RISE.

    The text to keep counts more and more until this holds. The last fit is returned if it never does.
    """
    gate = Gate(DEFAULT_WEIGHTS, reason)
    if not len(taught.features) and not len(keep.features):
        return gate  # no context was found, so there is nothing to fit
    for weight in KEEP_WEIGHTS:
        gate = Gate(_fit(taught, keep, weight), reason)
        if keep.rise_with(gate) <= MAX_RISE:
            break
    return gate


def _fit(taught: Examples, keep: Examples, keep_weight: float) -> tuple[float, ...]:
    """L-BFGS in float64 on standardised features, with a small ridge so that the weights stay finite."""
    everything = torch.cat((taught.features, keep.features))
    mean = everything.mean(dim=0)
    scale = everything.std(dim=0, unbiased=False).clamp_min(MIN_SCALE)
    weights = torch.zeros(len(FEATURES), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=200, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        total = RIDGE * (weights.square().sum() + bias.square())
        for examples, share in ((taught, 1.0), (keep, keep_weight)):
            total = total + share * examples.rise((examples.features - mean) / scale @ weights + bias)
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(objective)
    raw = weights.detach() / scale
    offset = float(bias.detach() - (mean * raw).sum())
    # Every position has exactly one length, so the lengths carry the constant.
    return tuple(float(weight) + (offset if number < ORDER - 1 else 0.0) for number, weight in enumerate(raw))
