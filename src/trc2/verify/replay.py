"""D: replay stores grow in training only, and never replay the batch being optimized."""

from __future__ import annotations

import torch

from trc2.backbones.shell import Backbone
from trc2.replay.stores import cut_chunks
from trc2.verify.check import Check, ModelUnderTest, changed, skipped, state_of, train_forward, train_step


def _counts(model: Backbone) -> tuple[int, int, int]:
    """Chunks in the recency buffer, in the reservoir, and ever seen: the last still grows when both stores are full."""
    stores = model.replay
    assert stores is not None
    return stores.num_recent, stores.num_long, stores.num_seen


def counts(tested: ModelUnderTest) -> list[Check]:
    """A training forward with targets stores every chunk of the batch. Nothing else stores any."""
    name, claim = (
        "stores grow in training",
        "chunks missing or surplus after a training forward with targets, and after its flush",
    )
    if not tested.has_replay:
        return skipped("D", name, claim, "no replay")
    model = tested.fresh()
    stores = model.replay
    assert stores is not None
    x, y = tested.tokens("batch"), tested.tokens("targets")
    offered = cut_chunks(x, stores.chunk_length).shape[0]
    train_forward(model, x, y)
    expected = (min(offered, stores.recent.shape[0]), min(offered, stores.long.shape[0]), offered)
    missing = sum(abs(a - b) for a, b in zip(_counts(model), expected, strict=True))
    model.flush_pending_write()
    held, before = _counts(model), state_of(stores)
    missing += sum(abs(a - b) for a, b in zip(held, expected, strict=True))
    model.train()
    model(x)
    without_targets = sum(abs(a - b) for a, b in zip(_counts(model), held, strict=True))
    model.eval()
    with torch.no_grad():
        model(x)
        model(x, targets=y)
    in_eval = sum(abs(a - b) for a, b in zip(_counts(model), held, strict=True))
    return [
        Check("D", name, claim, float(missing), "==", 0.0),
        Check("D", "no targets, no chunks", "chunks a training forward without targets adds",
              float(without_targets), "==", 0.0),
        Check("D", "stores rest in eval", "chunks evaluation adds", float(in_eval), "==", 0.0),
        Check("D", "store content after eval", "tensors of the stores an evaluation changed",
              changed(before, state_of(stores)), "==", 0.0),
    ]  # fmt: skip


def never_the_current_batch(tested: ModelUnderTest) -> list[Check]:
    """The first step has nothing to replay. The second replays chunks of the first only."""
    name, claim = "replay before insertion", "replayed chunks that are not from an earlier step"
    if not tested.has_replay:
        return skipped("D", name, claim, "no replay")
    model = tested.fresh()
    stores = model.replay
    assert stores is not None
    drawn: list[torch.Tensor] = []
    original = stores.draw

    def spy(total: int, long_fraction: float, *key: int | str) -> torch.Tensor | None:
        chunks = original(total, long_fraction, *key)
        if chunks is not None:
            drawn.append(chunks)
        return chunks

    stores.draw = spy  # type: ignore[method-assign]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    first = [(tested.tokens(f"first {i}"), tested.tokens("targets")) for i in range(2)]
    second = [(tested.tokens(f"second {i}"), tested.tokens("targets")) for i in range(2)]
    train_step(model, first, optimizer)
    too_early = sum(chunks.shape[0] for chunks in drawn)
    drawn.clear()
    train_step(model, second, optimizer)
    earlier = {tuple(c) for x, _ in first for c in cut_chunks(x, stores.chunk_length).tolist()}
    foreign = sum(tuple(chunk) not in earlier for chunks in drawn for chunk in chunks.tolist())
    return [
        Check("D", name, claim, float(too_early + foreign), "==", 0.0),
        Check("D", "replay happens", "chunks replayed in the second step",
              float(sum(chunks.shape[0] for chunks in drawn)), ">", 0.0),
    ]  # fmt: skip
