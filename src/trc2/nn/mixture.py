"""A next-token distribution with a second opinion: a few tokens that a memory names, each with its share.

    p(v) = (1 − Σ_i c_i) p_model(v) + Σ_i c_i [token_i = v]

Shares are what a gate has already let through, so that without any p is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trc2.nn.head import Head
from trc2.ops.choose import with_gradient
from trc2.ops.head_loss import IGNORE_INDEX, chunk_rows
from trc2.ops.islands import at_least_float32
from trc2.ops.selection import top_k


@dataclass(frozen=True)
class Mixture:
    """c_i and token_i of every position; a share of 0 belongs to a token that nobody knows."""

    shares: Float[Tensor, "*P k"]
    tokens: Int[Tensor, "*P k"]

    def of(self, select: Callable[[Tensor], Tensor]) -> Mixture:
        """The mixture of selected positions."""
        return Mixture(select(self.shares), select(self.tokens))

    def flat(self) -> Mixture:
        return self.of(lambda tensor: tensor.reshape(-1, tensor.shape[-1]))

    def keep(self) -> Float[Tensor, "*P"]:
        """1 − Σ_i c_i, what the model's own distribution keeps."""
        return 1.0 - self.shares.sum(dim=-1)


class MixedHead(Head):
    """The head of positions at which a memory has a say; its logits are log-probabilities."""

    def __init__(self, weight: Float[Tensor, "V D"], mixture: Mixture) -> None:
        super().__init__(weight)
        self.mixture = mixture

    def logits(self, hidden: Float[Tensor, "*P D"]) -> Float[Tensor, "*P V"]:
        scores = F.linear(hidden, self.weight)
        mixed = mixed_log_probabilities(scores.reshape(-1, scores.shape[-1]), self.mixture.flat())
        return mixed.view(scores.shape)

    def loss_sum(self, hidden: Float[Tensor, "P D"], targets: Int[Tensor, " P"]) -> Float[Tensor, ""]:
        """Σ −log p(target): of the model's distribution only the target's entry outlives a chunk."""
        mixture = self.mixture.flat()
        parts = [
            with_gradient(_checkpointed, _chunk_loss, *part, self.weight)
            for part in self._chunks(hidden, targets, mixture.keep(), _share_of(mixture, targets))
        ]
        return torch.stack(parts).sum()

    @torch.no_grad()
    def predict(
        self, hidden: Float[Tensor, "P D"], targets: Int[Tensor, " P"]
    ) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"]]:
        mixture = self.mixture.flat()
        nll, best = [], []
        for part, labels, shares, tokens in self._chunks(hidden, targets, mixture.shares, mixture.tokens):
            scores = mixed_log_probabilities(F.linear(part, self.weight), Mixture(shares, tokens))
            nll.append(F.nll_loss(scores, labels, ignore_index=IGNORE_INDEX, reduction="none"))
            best.append(top_k(scores, 1).squeeze(1))
        return torch.cat(nll), torch.cat(best)

    def _chunks(self, *tensors: Tensor) -> zip[tuple[Tensor, ...]]:
        rows = chunk_rows(self.weight)
        return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def mixed_log_probabilities(scores: Float[Tensor, "P V"], mixture: Mixture) -> Float[Tensor, "P V"]:
    """log p(v) of every token, from the model's scores."""
    own = at_least_float32(scores).log_softmax(dim=-1) + mixture.keep().log().unsqueeze(1)
    same = mixture.tokens.unsqueeze(2) == mixture.tokens.unsqueeze(1)
    # A token that several slots name gets their sum once, at the first of them.
    is_first = same.tril(-1).sum(dim=2) == 0
    named = (same * mixture.shares.unsqueeze(1)).sum(dim=2)
    before = own.gather(1, mixture.tokens)
    change = torch.where(is_first & (named > 0), _log_add(before, named) - before, 0.0)
    return own.scatter_add(1, mixture.tokens, change)


def _share_of(mixture: Mixture, targets: Int[Tensor, " P"]) -> Float[Tensor, " P"]:
    """Σ_i c_i [token_i = target]; an ignored target is nobody's token."""
    return (mixture.shares * (mixture.tokens == targets.unsqueeze(1))).sum(dim=1)


def _chunk_loss(hidden: Tensor, targets: Tensor, keep: Tensor, share: Tensor, weight: Tensor) -> Tensor:
    scores = at_least_float32(F.linear(hidden, weight))
    nll = F.cross_entropy(scores, targets, ignore_index=IGNORE_INDEX, reduction="none")
    own = keep.log() - nll
    mixed = torch.where(share > 0, _log_add(own, share), own)
    return -(mixed * (targets != IGNORE_INDEX)).sum()


def _checkpointed(*args: Tensor) -> Tensor:
    loss: Tensor = checkpoint(_chunk_loss, *args, use_reentrant=False)
    return loss


def _log_add(log_p: Tensor, q: Tensor) -> Tensor:
    """log(p + q); finite, with finite gradients, also where q is 0."""
    return torch.logaddexp(log_p, q.clamp_min(torch.finfo(q.dtype).tiny).log())
