"""Fit the gate of a store: no document may find itself, and text that the model knew before stays as it was."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from trc2.backbones.shell import Backbone
from trc2.generate.sampling import Sampling
from trc2.generate.self_replay import dream
from trc2.ops.modes import at_least_float32
from trc2.recall.counts import Counts, Ints
from trc2.recall.gate import DEFAULT_WEIGHTS, Examples, Gate, fit_gate
from trc2.recall.store import Store
from trc2.stream.tokenizer import Tokenizer

MIN_DOCUMENTS = 8
FIT_TOKENS, KEEP_TOKENS = 8192, 1024
WINDOW = 256  # tokens of a document that are used
DREAM_LENGTH = 128
BY_MODEL, BY_FILES = "model", "files"


@dataclass(frozen=True)
class Fitted:
    """A store with its gate, and what the gate does to the loss, in nats per token.

    `gain` is the fall of the loss of taught documents that were scored by counts of the others, `keep_rise` the rise of
    the loss of the text to keep. Both are None if the gate was not fitted.
    """

    store: Store
    gain: float | None
    keep_rise: float | None


def fit_store(net: Backbone, tokenizer: Tokenizer, store: Store) -> Fitted:
    """Give a store the gate that fits its documents and this network. The result does not depend on their order.

    Documents are divided into halves by their hashes, and each half is scored by counts of the other half. The text to
    keep is that of the store, else text that the model samples from itself.
    """
    if len(store.documents) < MIN_DOCUMENTS:
        reason = (
            f"default weights: {len(store.documents)} documents are fewer than the {MIN_DOCUMENTS} that a fit needs"
        )
        store = replace(store, gate=Gate(DEFAULT_WEIGHTS, reason))
        if store.keep_source == BY_MODEL:  # as if the documents that are gone had never been there
            store = replace(store, keep=(), keep_source="")
        return Fitted(store, None, None)
    if not store.keep:
        store = replace(store, keep=_sampled(net, tokenizer), keep_source=BY_MODEL)
    documents = sorted(store.documents, key=lambda document: document.sha256)
    counts_of_halves = [store.counts(documents[half::2]) for half in (0, 1)]
    taught: list[Examples] = []
    for number, document in enumerate(documents):
        taught.append(examples(net, document.tokens, counts_of_halves[1 - number % 2]))
        if sum(part.num_positions for part in taught) >= FIT_TOKENS:
            break
    of_taught, counts = Examples.join(taught), store.counts()
    of_keep = Examples.join([examples(net, tokens, counts) for tokens in store.keep])
    texts = {BY_MODEL: "text that the model sampled", BY_FILES: "the text to keep"}[store.keep_source]
    reason = f"fitted on {of_taught.num_positions:,} taught tokens and {of_keep.num_positions:,} of {texts}"
    gate = fit_gate(of_taught, of_keep, reason)
    return Fitted(replace(store, gate=gate), -of_taught.rise_with(gate), of_keep.rise_with(gate))


def windows(documents: list[list[int]], limit: int) -> tuple[Ints, ...]:
    """Pieces of at most WINDOW tokens, until they hold `limit` tokens."""
    pieces: list[Ints] = []
    left = limit
    for ids in documents:
        for start in range(0, len(ids), WINDOW):
            piece = np.asarray(ids[start : start + min(WINDOW, left)], dtype=np.int64)
            if len(piece) > 1:
                pieces.append(piece)
                left -= len(piece)
            if left <= 1:
                return tuple(pieces)
    return tuple(pieces)


def _sampled(net: Backbone, tokenizer: Tokenizer) -> tuple[Ints, ...]:
    samples = dream(net, tokenizer, Sampling(DREAM_LENGTH), tokens=KEEP_TOKENS)
    texts = tokenizer.encode_batch([sample.text for sample in samples])
    return windows([[*tokenizer.begin_of_text, *ids] for ids in texts], KEEP_TOKENS)


@torch.no_grad()
def examples(net: Backbone, tokens: Ints, counts: Counts) -> Examples:
    """How the network alone and the counts predict the first tokens of a document."""
    tokens = tokens[: min(WINDOW, net.config.max_positions) + 1]
    if len(tokens) < 2:
        return Examples.join([])
    x, y = tokens[:-1], tokens[1:]
    return Examples.of(counts, x[None], y[None], network_scores(net, x))


@torch.no_grad()
def network_scores(net: Backbone, tokens: Ints) -> torch.Tensor:
    """Log-probabilities (T, V) by the network without its store."""
    recall, net.recall = net.recall, None
    try:
        logits, _ = net.eval()(torch.from_numpy(tokens).unsqueeze(0).to(net.get_input_embeddings().weight.device))
    finally:
        net.recall = recall
    assert logits is not None
    return at_least_float32(logits[0]).log_softmax(dim=1).cpu()
