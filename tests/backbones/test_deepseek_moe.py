from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backbones.common import excited, tiny_baseline
from trc2.backbones.deepseek_moe import DeepSeekMoEConfig, FineGrainedExperts, build, expert_balance
from trc2.nn.experts import Routing, route


def tiny(**changes: object) -> DeepSeekMoEConfig:
    """The balance loss weighs as much as the others here, so that its gradient can be seen."""
    settings = {"num_experts": 6, "num_active_experts": 3, "lambda_load_balance": 0.8, "lambda_router": 0.9}
    return tiny_baseline(DeepSeekMoEConfig, **{**settings, **changes})


def experts(**changes: object) -> FineGrainedExperts:
    part = excited(build(tiny(**changes))).double().trunk.blocks[0].feed_forward
    assert isinstance(part, FineGrainedExperts)
    return part


def test_gates_are_raw_scores() -> None:
    """The mixture of equal experts is that expert times the share of the softmax that was selected."""
    part = experts(num_shared_experts=0)
    with torch.no_grad():
        for expert in part.experts[1:]:
            expert.load_state_dict(part.experts[0].state_dict())
    u = torch.randn(9, 16, dtype=torch.float64)
    kept = part.gate(u).softmax(dim=-1).sort(dim=-1).values[:, -3:].sum(dim=-1, keepdim=True)
    torch.testing.assert_close(part(u, slice(None))[0], kept * part.experts[0](u))
    assert kept.max() < 1


def test_shared_experts_see_every_token_with_weight_one() -> None:
    part = experts()
    with torch.no_grad():
        for expert in part.experts:
            expert.down.weight.zero_()
    u = torch.randn(9, 16, dtype=torch.float64)
    assert part.shared is not None
    torch.testing.assert_close(part(u, slice(None))[0], part.shared(u))
    assert part.shared.down.weight.shape == (16, 2 * 6), "two experts of half the width 12"


def test_balance_counts_every_selection_of_every_counted_token() -> None:
    """By hand: N'=4, K'=2, two tokens select {0,1} and {0,2}, so f = 4/(2·2) · (2, 1, 1, 0)."""
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.5, 0.1, 0.3, 0.1], [0.1, 0.2, 0.3, 0.4]])
    routing = Routing(scores, torch.tensor([[0, 1], [0, 2], [3, 2]]), torch.ones(3, 2))
    expected = torch.tensor(2 * 0.45 + 1 * 0.2 + 1 * 0.25)
    torch.testing.assert_close(expert_balance(routing, slice(0, 2)), expected)
    torch.testing.assert_close(expert_balance(routing, torch.tensor([True, True, False])), expected)
    assert expert_balance(routing, torch.zeros(3, dtype=torch.bool)) == 0.0, "no token counts, nothing to balance"


@settings(max_examples=25, deadline=None)
@given(tokens=st.integers(1, 12), num_experts=st.integers(1, 9), seed=st.integers(0, 1000))
def test_balance_is_one_where_nothing_can_be_unbalanced(tokens: int, num_experts: int, seed: int) -> None:
    """If every expert is selected by every token then f_i = 1, and Σ P_i = 1 whatever the scores."""
    rng = torch.Generator().manual_seed(seed)
    gate = 5 * torch.randn(tokens, num_experts, generator=rng, dtype=torch.float64)
    balance = expert_balance(route(gate, num_experts, renormalise=False), slice(None))
    torch.testing.assert_close(balance, torch.ones((), dtype=torch.float64))


def test_balance_falls_when_the_crowded_expert_is_made_less_likely() -> None:
    gate = torch.tensor([[3.0, 1.0, 0.0]] * 5, requires_grad=True)
    balance = expert_balance(route(gate, 1, renormalise=False), slice(None))
    (gradient,) = torch.autograd.grad(balance, gate)
    assert balance > 1
    assert (gradient[:, 0] > 0).all()
    assert (gradient[:, 1:] < 0).all()
