from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.backbones.common import (
    excited,
    tiny_baseline,
)
from tests.conftest import tokens
from trc2.backbones.blk_attn_res import BlkAttnResConfig, DepthTrunk, build, recall, residual_blocks
from trc2.backbones.shell import Backbone
from trc2.reference import baselines as reference


def tiny(num_layers: int = 3, num_residual_blocks: int = 2, **changes: object) -> BlkAttnResConfig:
    return tiny_baseline(BlkAttnResConfig, num_layers=num_layers, num_residual_blocks=num_residual_blocks, **changes)


def trunk_of(net: Backbone) -> DepthTrunk:
    assert isinstance(net.trunk, DepthTrunk)
    return net.trunk


def read(values: Tensor, query: Tensor, *, running: bool) -> Tensor:
    """One sub-layer's input from sources (n, P, D), the last of which may be the block's running sum."""
    trunk = trunk_of(build(tiny()))
    sources = [trunk.source(value) for value in values]
    if not running:
        (recalled,) = recall(sources, [query])
        return recalled.mixture
    (recalled,) = recall(sources[:-1], [query])
    return recalled.with_source(sources[-1], query)


def aggregated(values: Tensor, query: Tensor) -> Tensor:
    weights = {"query": query, "key_gain": torch.ones_like(query)}
    return reference.aggregate([value.unsqueeze(0) for value in values], weights, 1e-6).squeeze(0)


@settings(max_examples=50, deadline=None)
@given(layers=st.integers(1, 40), data=st.data())
def test_blocks_are_runs_of_equal_length_with_the_remainder_last(layers: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 2 * layers))
    runs = residual_blocks(tiny(layers, number))
    assert [index for run in runs for index in run] == list(range(2 * layers))
    size = -(-2 * layers // number)
    assert all(len(run) == size for run in runs[:-1])
    assert 1 <= len(runs[-1]) <= size
    assert len(runs) <= number


@pytest.mark.parametrize(("layers", "size"), [(28, 7), (16, 4), (8, 2)])
def test_the_papers_depths_divide_evenly(layers: int, size: int) -> None:
    assert [len(run) for run in residual_blocks(BlkAttnResConfig(num_layers=layers))] == [size] * 8


@settings(max_examples=25, deadline=None)
@given(
    sources=st.integers(2, 6), running=st.booleans(), scale=st.sampled_from([0.1, 3.0, 300.0]), seed=st.integers(0, 99)
)
def test_reading_in_two_parts_is_one_softmax(sources: int, running: bool, scale: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(sources, 3, 16, generator=rng, dtype=torch.float64)
    query = scale * torch.randn(16, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(read(values, query, running=running), aggregated(values, query), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("running", [False, True])
def test_a_source_of_zeros_and_huge_scores_keep_everything_finite(running: bool) -> None:
    values = torch.randn(3, 4, 16)
    values[1] = 0.0
    values[2, 0] = 0.0
    values.requires_grad_()
    query = (1e4 * torch.randn(16)).requires_grad_()
    mixed = read(values, query, running=running)
    gradients = torch.autograd.grad(mixed.square().sum(), [values, query])
    assert all(torch.isfinite(tensor).all() for tensor in (mixed, *gradients))


def test_queries_start_at_exactly_zero_and_average_all_sources() -> None:
    net = build(tiny(), torch.Generator().manual_seed(5))
    trunk = trunk_of(net)
    assert len(trunk.depth_queries) == 2 * 3 + 1
    for query in trunk.depth_queries:
        assert not query.query.any()
        assert (query.key_gain == 1).all()
        assert query.query.ndim == 1, "the optimizer decays matrices only"
    values = torch.randn(4, 3, 16)
    for running in (False, True):
        torch.testing.assert_close(read(values, trunk.depth_queries[0](), running=running), values.mean(dim=0))


def test_a_sublayer_reads_its_own_query_and_no_other() -> None:
    """The last feed-forward part's query changes the logits. Nothing before that part may notice."""
    net = excited(build(tiny())).double()
    trunk = trunk_of(net)
    seen: list[Tensor] = []
    for block in trunk.blocks:
        for part in (block.mixer_norm, block.ff_norm):
            part.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    x = tokens(net.config, 2, 7)
    before = net(x)[0]
    with torch.no_grad():
        trunk.depth_queries[5].query.add_(1.0)
    after = net(x)[0]
    changed = [not torch.equal(seen[i], seen[i + 6]) for i in range(6)]
    assert changed == [False] * 5 + [True]
    assert not torch.equal(before, after)


@pytest.mark.parametrize("running", [False, True])
def test_reading_is_a_float32_island(running: bool) -> None:
    values, query = torch.randn(4, 3, 16), torch.randn(16)
    with torch.autocast("cpu", torch.bfloat16):
        inside = read(values, query, running=running)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, read(values, query, running=running))


def test_running_sums_stay_float32_where_outputs_are_half() -> None:
    net = excited(build(tiny()))
    trunk = trunk_of(net)
    kinds = set()
    for block in trunk.blocks:
        block.ff_norm.register_forward_hook(lambda module, args, out: kinds.add(args[0].dtype))
        block.mixer.register_forward_hook(lambda module, args, out: kinds.add(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        net(tokens(net.config, 2, 7))
    assert kinds == {torch.float32, torch.bfloat16}
