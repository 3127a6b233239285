"""Read a store while a model predicts: p = (1 − g) p_model + g p_store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from trc2.nn.head import Head
from trc2.ops.head_loss import IGNORE_INDEX, chunk_rows, cross_entropy_sum
from trc2.ops.modes import at_least_float32
from trc2.ops.selection import top_k
from trc2.recall.counts import Counts, FloatType, Ints, Match
from trc2.recall.gate import Gate, gate_features
from trc2.recall.store import Store, read_store


class Recall:
    """Counts of stored documents and the gate that mixes them into a model's predictions. Reading changes nothing."""

    def __init__(self, counts: Counts, gate: Gate, identity: str = "") -> None:
        """`identity` differs between stores that predict differently."""
        self.counts, self.gate, self.identity = counts, gate, identity

    @classmethod
    def of(cls, store: Store) -> Recall | None:
        """A reader of a store. None where it has no documents."""
        if store.gate is None or not store.documents:
            return None
        return cls(store.counts(), store.gate, store.identity())

    def follow(
        self, x: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None, earlier: Int[Tensor, "B O"] | None = None
    ) -> Int[Tensor, "B T O"]:
        """The stored contexts that end at every token, on the host. `earlier` holds those at the token before."""
        nodes = self.counts.follow(
            x.cpu().numpy(),
            None if valid is None else valid.bool().cpu().numpy(),
            None if earlier is None else earlier.numpy(),
        )
        return torch.from_numpy(nodes)

    def mix(self, logits: Float[Tensor, "P V"], contexts: Int[Tensor, "P O"]) -> Float[Tensor, "P V"]:
        """Log-probabilities with the store where a context was found. Other rows stay as they are."""
        scores = at_least_float32(logits)
        nodes = contexts.numpy()
        match = self.counts.match(nodes)
        rows = np.flatnonzero(match.length)
        if len(rows) == len(nodes):  # the usual case of a single token
            return self._mix(scores, nodes, match)
        if not len(rows):
            return scores
        places = torch.from_numpy(rows).to(scores.device)
        return scores.index_copy(0, places, self._mix(scores.index_select(0, places), nodes[rows], match.at(rows)))

    def _mix(self, scores: Float[Tensor, "P V"], nodes: Ints, match: Match) -> Float[Tensor, "P V"]:
        network = scores.log_softmax(dim=1)
        log_odds = self.gate.log_odds(gate_features(match, network)).unsqueeze(1)
        dtype: FloatType = np.float64 if scores.dtype == torch.float64 else np.float32
        stored = torch.from_numpy(self.counts.log_distribution(nodes, dtype)).to(network)
        return torch.logaddexp(F.logsigmoid(-log_odds) + network, F.logsigmoid(log_odds) + stored)


class RecallingHead(Head):
    """A head whose logits are mixed with the store, chunk by chunk. `contexts` are those of all its positions."""

    def __init__(self, head: Head, recall: Recall, contexts: Int[Tensor, "*P O"]) -> None:
        super().__init__(head.weight)
        self.head, self.recall, self.contexts = head, recall, contexts.flatten(0, -2)

    def _mixed(self, hidden: Float[Tensor, "P D"]) -> Iterator[Float[Tensor, "C V"]]:
        """Log-probabilities of one chunk after the other."""
        rows = chunk_rows(self.weight)
        for part, contexts in zip(hidden.split(rows), self.contexts.split(rows), strict=True):
            yield self.recall.mix(self.head.logits(part), contexts)

    def logits(self, hidden: Float[Tensor, "*P D"]) -> Float[Tensor, "*P V"]:
        return torch.cat(list(self._mixed(hidden.flatten(0, -2)))).unflatten(0, hidden.shape[:-1])

    def loss_sum(self, hidden: Float[Tensor, "P D"], targets: Int[Tensor, " P"]) -> Float[Tensor, ""]:
        labels = targets.split(chunk_rows(self.weight))
        return torch.stack([cross_entropy_sum(*pair) for pair in zip(self._mixed(hidden), labels, strict=True)]).sum()

    @torch.no_grad()
    def predict(
        self, hidden: Float[Tensor, "P D"], targets: Int[Tensor, " P"]
    ) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"]]:
        nll, best = [], []
        for scores, labels in zip(self._mixed(hidden), targets.split(chunk_rows(self.weight)), strict=True):
            nll.append(F.cross_entropy(scores, labels, ignore_index=IGNORE_INDEX, reduction="none"))
            best.append(top_k(scores, 1).squeeze(1))
        return torch.cat(nll), torch.cat(best)


def open_recall(folder: Path, vocabulary: int, tokenizer: str) -> Recall | None:
    """A reader of what a saved model was taught. None if it was taught nothing. `tokenizer` is its fingerprint."""
    store = read_store(folder, vocabulary, tokenizer)
    return None if store is None else Recall.of(store)
