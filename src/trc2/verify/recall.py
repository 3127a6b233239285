"""F: a model that reads its replay stores is causal, reads only what was committed, and writes nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.evaluation.recall import reading_stores
from trc2.verify.check import Check, ModelUnderTest, changed, gap, largest, skipped, state_of, train_forward


def _with_probe(tested: ModelUnderTest, x: Tensor) -> Backbone:
    """A model whose stores hold the beginning of every row of x, so that its contexts are found."""
    model = tested.fresh().eval()
    assert model.replay is not None
    model.replay.commit(x[:, : model.replay.chunk_length].int())
    return model


def reads_the_past_only(tested: ModelUnderTest) -> list[Check]:
    """Logits that are mixed with stored text ignore later tokens, and are log-probabilities."""
    name, claim = "recall, eval", "logits at t ignore tokens after t while stored text is read"
    if not tested.has_replay:
        return skipped("F", name, claim, "no replay")
    x = tested.tokens("probe")
    model = _with_probe(tested, x)
    before, (alone, _) = state_of(model), model(x)
    with torch.no_grad(), reading_stores(model, (), torch.device("cpu")):
        full, _ = model(x)
        others = {t: model(tested.with_other_suffix(x, t))[0] for t in tested.positions()}
        decoding = model.start_decoding()
        pieces = torch.cat([model.decode(x[:, t : t + 1], decoding) for t in range(x.shape[1])], dim=1)
    leak = largest([gap(full[:, t], other[:, t]) for t, other in others.items()])
    found = (full - alone).abs().amax(dim=2) > 1e-6  # elsewhere the logits are those of the network
    total = full[found].exp().sum(dim=1)
    return [
        Check("F", name, claim, leak, "<=", tested.rounding),
        Check("F", "recall happens", "positions whose prediction stored text changes", float(found.sum()), ">", 0.0),
        Check("F", "recall, decoding", "decoding token by token gives the same logits",
              gap(full, pieces), "<=", tested.rounding),
        Check("F", "recall, probabilities", "distance of the sum of all probabilities from 1",
              gap(total, torch.ones_like(total)), "<=", max(1e-9, tested.rounding)),
        Check("F", "state after recall", "tensors of the model that reading changed",
              changed(before, state_of(model)), "==", 0.0),
    ]  # fmt: skip


def reads_what_was_committed(tested: ModelUnderTest) -> list[Check]:
    """The chunks of a micro-step are read after the flush only."""
    name, claim = "recall before flush", "stored rows that a micro-step without a flush adds to what is read"
    if not tested.has_replay:
        return skipped("F", name, claim, "no replay")
    model = tested.fresh()
    stores = model.replay
    assert stores is not None
    train_forward(model, tested.tokens("batch"), tested.tokens("targets"))
    early = len(stores.stored())
    model.flush_pending_write()
    return [
        Check("F", name, claim, float(early), "==", 0.0),
        Check("F", "recall after flush", "stored rows that are read after the flush", float(len(stores.stored())), ">",
              0.0),
    ]  # fmt: skip
