"""A model that reads stored documents while it predicts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tests.conftest import excited, fill_memory, tiny_config, tokens
from trc2 import CortexNet
from trc2.recall.counts import Counts
from trc2.recall.gate import DEFAULT_WEIGHTS, FEATURES, Examples, Gate, fit_gate, gate_features
from trc2.recall.reader import Recall

OPEN = Gate((3.0,) * 4 + (0.1, -0.2, 0.3, 0.2), "wide open")


def reading_net(gate: Gate = OPEN, **changes: object) -> CortexNet:
    """A network in float64 with events in its memory and a store of rows like those it is given."""
    net = excited(CortexNet(tiny_config(**changes))).double().eval()
    if net.has_memory:
        fill_memory(net, 6)
    stored = tokens(net.config, 1, 20, seed=1)
    stored[0, :9] = tokens(net.config, 1, 9)[0]  # a stretch that the tests ask for
    net.recall = Recall(Counts.of([row.numpy() for row in stored], net.config.vocab_size), gate)
    return net


def without_store(net: CortexNet) -> CortexNet:
    other = copy.deepcopy(net)
    other.recall = None
    return other


def test_predictions_are_the_mixture_of_network_and_counts() -> None:
    net = reading_net()
    x = tokens(net.config, 1, 12)
    assert net.recall is not None
    counts, mixed, alone = net.recall.counts, net(x)[0][0].softmax(-1), without_store(net)(x)[0][0]
    nodes = counts.follow(x.numpy())[0]
    match = counts.match(nodes)
    assert set(match.length.tolist()) >= {0, 4}
    odds = net.recall.gate.log_odds(gate_features(match, alone.log_softmax(-1)))
    share = torch.where(torch.from_numpy(match.length > 0), odds.sigmoid(), 0.0).unsqueeze(1)
    expected = (1 - share) * alone.softmax(-1) + share * torch.from_numpy(counts.log_distribution(nodes)).exp()
    torch.testing.assert_close(mixed, expected, atol=1e-12, rtol=1e-10)


def test_where_nothing_is_found_logits_are_those_of_the_network_to_the_bit() -> None:
    net = reading_net()
    assert net.recall is not None
    x = tokens(net.config, 2, 12, seed=7)
    unknown = torch.from_numpy(net.recall.counts.match(net.recall.counts.follow(x.numpy()).reshape(-1, 5)).length == 0)
    assert unknown.any()
    alone = without_store(net)(x)[0].flatten(0, 1)
    assert torch.equal(net(x)[0].flatten(0, 1)[unknown], alone[unknown])
    assert not torch.equal(net(x)[0].flatten(0, 1), alone)


def test_memory_off_and_training_leave_the_store_out() -> None:
    net = reading_net()
    x, y = tokens(net.config, 2, 12), tokens(net.config, 2, 12, seed=1)
    alone = without_store(net)
    assert torch.equal(net(x, read_memory=False)[0], alone(x, read_memory=False)[0])
    one, other = net.train()(x, targets=y), alone.train()(x, targets=y)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1]["loss"], other[1]["loss"])


def test_later_tokens_do_not_change_earlier_predictions_and_nothing_is_written() -> None:
    net = reading_net()
    x = tokens(net.config, 2, 12)
    before, recall = copy.deepcopy(net.state_dict()), copy.deepcopy(net.recall)
    first = net(x)[0]
    changed = x.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % net.config.vocab_size
    torch.testing.assert_close(net(changed)[0][:, :7], first[:, :7], atol=1e-12, rtol=1e-10)
    assert torch.equal(net(x)[0], first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert recall is not None
    assert net.recall is not None
    for old, new in zip(recall.counts.levels, net.recall.counts.levels, strict=True):
        assert np.array_equal(old.counts, new.counts)
        assert np.array_equal(old.keys, new.keys)


@pytest.mark.parametrize("pieces", [[12], [1] * 12, [5, 1, 6]])
def test_decoding_equals_one_pass(pieces: list[int]) -> None:
    net = reading_net()
    x = tokens(net.config, 2, 12)
    valid = torch.ones_like(x, dtype=torch.bool)
    valid[1, :3] = False
    whole, state = net(x, valid=valid)[0], net.start_decoding()
    parts = [net.decode(a, state, valid=b) for a, b in zip(x.split(pieces, 1), valid.split(pieces, 1), strict=True)]
    torch.testing.assert_close(torch.cat(parts, 1)[valid], whole[valid], atol=1e-9, rtol=1e-8)
    torch.testing.assert_close(whole[1, 3:], net(x[1:, 3:])[0][0], atol=1e-9, rtol=1e-8)  # padding is not a context


def test_rows_can_be_reordered_while_decoding() -> None:
    net = reading_net()
    x = tokens(net.config, 2, 12)
    joined = torch.cat((x[1:, :6].expand(2, -1), x[:, 6:7]), 1)
    state = net.start_decoding()
    net.decode(x[:, :6], state, read_memory=False)  # contexts are followed all the same
    state.reorder(torch.tensor([1, 1]))
    net.decode(x[:, 6:7], state)
    assert net.recall is not None
    assert torch.equal(state.contexts, net.recall.follow(joined, None)[:, -1])
    state = net.start_decoding()
    net.decode(x[:, :6], state)
    state.reorder(torch.tensor([1, 1]))
    last = net.decode(x[:, 6:7], state, last=1)
    torch.testing.assert_close(last, net(joined)[0][:, -1:], atol=1e-9, rtol=1e-8)


def test_rows_can_join_others_while_decoding() -> None:
    net = reading_net()
    x = tokens(net.config, 2, 12)
    one, other = net.start_decoding(), net.start_decoding()
    net.decode(x[:1, :6], one)
    net.decode(x[1:, 2:6], other)
    one.join(other)
    together = net.decode(x[:, 6:7], one)
    alone = torch.cat((net(x[:1, :7])[0][:, -1:], net(x[1:, 2:7])[0][:, -1:]))
    torch.testing.assert_close(together, alone, atol=1e-9, rtol=1e-8)


def test_losses_and_predictions_agree_with_the_logits() -> None:
    net = reading_net(memory=False)
    x, y = tokens(net.config, 2, 12), tokens(net.config, 2, 12, seed=1)
    y[0, 3] = -100
    logits, aux = net(x, targets=y)
    _, narrow = net(x, targets=y, return_logits=False)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    torch.testing.assert_close(aux["loss_lm"], expected)
    torch.testing.assert_close(narrow["loss_lm"], expected)
    predicted = net.predict(x, y)
    torch.testing.assert_close(predicted.nll.sum() / 23, expected)
    assert torch.equal(predicted.tokens, logits.argmax(-1))
    assert predicted.nll[0, 3] == 0


def invented(num: int, *, store_is_right: bool) -> Examples:
    """Positions at which a long context is right and a short one is not."""
    rng = torch.Generator().manual_seed(0)
    features = torch.zeros(num, len(FEATURES), dtype=torch.float64)
    length = torch.randint(0, 4, (num,), generator=rng)
    features[torch.arange(num), length] = 1
    features[:, 4:6] = torch.rand(num, 2, generator=rng, dtype=torch.float64)
    features[:, 6], features[:, 7] = -2.0, 3.0
    network = torch.full((num,), -3.0, dtype=torch.float64)
    stored = torch.where(length == 3, -0.2, -6.0).double() if store_is_right else torch.full_like(network, -9.0)
    return Examples(features, network, stored, num)


def test_the_gate_opens_where_the_store_is_right() -> None:
    taught, keep = invented(200, store_is_right=True), Examples.join([])
    gate = fit_gate(taught, keep, "test")
    share = gate.log_odds(taught.features).sigmoid()
    assert share[taught.features[:, 3] == 1].min() > 0.9
    assert share[taught.features[:, 3] == 0].max() < 0.1
    assert taught.rise_with(gate) < -0.5
    assert fit_gate(taught, keep, "test") == gate  # to the bit


def test_a_feature_that_hardly_varies_gets_no_huge_weight() -> None:
    taught = invented(200, store_is_right=True)
    taught.features[:, 7] = 3.0 + 1e-4 * taught.stored  # as the entropy of an untrained network that happens to fit
    gate = fit_gate(taught, Examples.join([]), "test")
    assert max(map(abs, gate.weights)) < 50
    assert taught.rise_with(gate) < -0.5


def test_text_to_keep_closes_the_gate_up_to_a_limit() -> None:
    taught, keep = invented(200, store_is_right=True), invented(200, store_is_right=False)
    free, held = fit_gate(taught, Examples.join([]), "test"), fit_gate(taught, keep, "test")
    assert keep.rise_with(free) > 0.3
    assert keep.rise_with(held) <= 0.02
    assert keep.rise_with(Gate(DEFAULT_WEIGHTS, "")) < keep.rise_with(free)
