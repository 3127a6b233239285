"""Tests that every baseline must pass: append a case and the rows of the paper's table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backbones.common import (
    compare_segments_with_passes_of_their_own,
    compare_with_reference,
    counted_flops,
    excited,
    tiny_baseline,
)
from tests.conftest import tokens
from trc2 import UserError
from trc2.backbones.blk_attn_res import BlkAttnResConfig
from trc2.backbones.blocks import BaselineConfig
from trc2.backbones.deepseek_moe import DeepSeekMoEConfig
from trc2.backbones.falcon import FalconConfig
from trc2.backbones.lora_drs import LoraDRSConfig
from trc2.backbones.mamba import MambaConfig
from trc2.backbones.moe import MoEConfig
from trc2.backbones.registry import build_model, step_cost
from trc2.backbones.shell import Backbone
from trc2.backbones.transformer import TransformerConfig
from trc2.nn.cost import Cost
from trc2.reference import baselines, falcon, mamba
from trc2.reference.baselines import Forward


@dataclass(frozen=True)
class Case:
    config: Any
    variant: str = ""
    task: int = 0

    def build(self, **changes: object) -> Backbone:
        return build_model(self.config.replace(**changes))

    @property
    def name(self) -> str:
        return self.config.name + self.variant


CASES = [
    Case(tiny_baseline(TransformerConfig)),
    Case(tiny_baseline(MoEConfig, num_experts=4)),
    Case(tiny_baseline(DeepSeekMoEConfig, num_experts=6, num_active_experts=3)),
    Case(tiny_baseline(BlkAttnResConfig, num_layers=3, num_residual_blocks=2)),
    Case(tiny_baseline(MambaConfig, state_dim=3, dt_rank=2, scan_chunk=4)),
    Case(tiny_baseline(FalconConfig, chunk=3)),
    Case(tiny_baseline(LoraDRSConfig, rank=2)),
]
VARIANTS = [
    Case(tiny_baseline(TransformerConfig, positions="rotary"), "+rotary"),
    Case(tiny_baseline(DeepSeekMoEConfig, num_experts=6, positions="rotary"), "+rotary"),
    Case(tiny_baseline(MambaConfig, state_dim=3, dt_rank=2, scan_chunk=4, conv_width=1), "+narrow"),
    Case(tiny_baseline(FalconConfig, variant="falcon1", chunk=3), "+falcon1"),
    Case(tiny_baseline(FalconConfig, conv_width=1, chunk=16), "+narrow"),
]
AT_A_LATER_TASK = Case(tiny_baseline(LoraDRSConfig, rank=2), "+adapters", task=2)

# (config, d_model, layers, the paper's millions, ours minus the paper's), see docs/baselines.md
PAPER_ROWS = [
    (TransformerConfig, 512, 28, 144, -0.27),
    (TransformerConfig, 768, 20, 228, +0.16),
    (TransformerConfig, 1024, 16, 321, -0.02),
    (MoEConfig, 512, 16, 345, +0.11),
    (MoEConfig, 768, 10, 441, -0.46),
    (MoEConfig, 1024, 6, 493, -0.02),
    (DeepSeekMoEConfig, 512, 14, 338, +0.34),
    (DeepSeekMoEConfig, 768, 6, 308, +0.43),
    (DeepSeekMoEConfig, 1024, 6, 545, -0.07),
    (BlkAttnResConfig, 512, 28, 144, -0.22),
    (BlkAttnResConfig, 768, 16, 190, +0.45),
    (BlkAttnResConfig, 1024, 8, 187, -0.22),
    (MambaConfig, 512, 28, 151, +0.27),
    (MambaConfig, 768, 18, 202, +0.40),
    (MambaConfig, 1024, 12, 245, -0.40),
    (FalconConfig, 512, 32, 144, +0.07),
    (FalconConfig, 768, 20, 193, +0.09),
    (FalconConfig, 1024, 12, 220, -0.48),
]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_variant = pytest.mark.parametrize("case", [*CASES, *VARIANTS], ids=lambda case: case.name)
every_network = pytest.mark.parametrize("case", [*CASES, *VARIANTS, AT_A_LATER_TASK], ids=lambda case: case.name)


@cache
def excited_net(case_name: str, dtype: torch.dtype) -> Backbone:
    case = next(case for case in (*CASES, *VARIANTS, AT_A_LATER_TASK) if case.name == case_name)
    net = excited(case.build()).to(dtype).eval()
    if case.task:
        net.begin_task(case.task, [tokens(case.config, 2, 9)])
    return net


@pytest.mark.parametrize(("kind", "d_model", "layers", "reported", "residual"), PAPER_ROWS)
def test_parameter_counts_are_the_papers(
    kind: type[Any], d_model: int, layers: int, reported: int, residual: float
) -> None:
    with torch.device("meta"):
        net = build_model(kind(d_model=d_model, num_layers=layers, vocab_size=50257))
    millions = sum(parameter.numel() for parameter in net.parameters()) / 1e6
    assert round(millions - reported, 2) == residual


# ------------------------------------------------------------------------------------------------------ the reference

SIZES = [(1, 1), (2, 5), (1, 13)]
REPLAY = {"replay": True, "replay_coefficient": 0.7}
BALANCE = {"lambda_load_balance": 0.8, "lambda_router": 0.9}  # as heavy as the other losses, so that gradients show it
MAMBA = {"d_model": 8, "state_dim": 3, "dt_rank": 2, "scan_chunk": 4, "vocab_size": 13, "num_layers": 1}
FALCON = {"d_model": 8, "num_heads": 2, "vocab_size": 13, "chunk": 4, "num_layers": 1}
# (config, reference, settings of all its networks, what else differs in the networks that run at one size only)
REFERENCES: list[tuple[type[BaselineConfig], Callable[[Any], Forward], dict[str, Any], list[dict[str, Any]]]] = [
    (TransformerConfig, baselines.transformer, {}, [
        {"num_heads": 1}, {"num_heads": 16}, {"num_layers": 1}, {"d_ff": None}, {"positions": "rotary"},
    ]),
    (MoEConfig, baselines.moe, {"num_experts": 4, **BALANCE}, [{"num_active_experts": 1}, {"num_active_experts": 4}]),
    (DeepSeekMoEConfig, baselines.deepseek_moe, {"num_experts": 6, "num_active_experts": 3, **BALANCE}, [
        {"num_shared_experts": 0}, {"num_shared_experts": 1, "expert_split": 1},
        {"num_shared_experts": 3, "expert_split": 4}, {"num_active_experts": 1}, {"num_active_experts": 6},
        {"num_experts": 16, "num_active_experts": 4},
    ]),
    (BlkAttnResConfig, baselines.blk_attn_res, {"num_layers": 3, "num_residual_blocks": 2}, [
        {"num_layers": layers, "num_residual_blocks": groups}
        for layers, groups in ((1, 1), (1, 2), (3, 1), (3, 3), (3, 6), (5, 4), (3, 4))
    ]),
    (MambaConfig, mamba.mamba, MAMBA, [
        {"num_layers": 2}, {"expand": 1}, {"state_dim": 1}, {"dt_rank": None}, {"conv_width": 1}, {"conv_width": 6},
        {"scan_chunk": 64},
    ]),
    (FalconConfig, falcon.falcon, FALCON, [
        {"num_layers": 2}, {"conv_width": 1}, {"conv_width": 6}, {"chunk": 1}, {"chunk": 16}, {"num_heads": 8},
        {"num_heads": 1}, {"output_norm": True}, {"ridge_scale": 0.0}, {"ridge_scale": 40.0},
        {"ridge_scale": 40.0, "variant": "falcon1", "output_norm": True},
    ]),
    (FalconConfig, falcon.falcon, {**FALCON, "variant": "falcon1"}, []),
]  # fmt: skip
COMPARISONS = [
    pytest.param(tiny_baseline(kind, **{**base, **changes}), forward, *size, id=f"{forward.__name__}-{changes}-{size}")
    for kind, forward, base, options in REFERENCES
    for changes, size in [*(({}, size) for size in SIZES), *((changes, (1, 5)) for changes in (REPLAY, *options))]
]


@pytest.mark.parametrize(("config", "forward", "rows", "length"), COMPARISONS)
def test_outputs_losses_and_gradients_equal_the_reference(
    config: BaselineConfig, forward: Callable[[Any], Forward], rows: int, length: int
) -> None:
    """With replay, the reference runs the replayed chunks in a pass of their own."""
    compare_with_reference(build_model(config), forward(config), rows, length)


# ------------------------------------------------------------------------------------------------- what a token sees


@every_network
@pytest.mark.parametrize("cut", [1, 6, 10])
def test_no_token_sees_a_later_one(case: Case, cut: int) -> None:
    net = excited_net(case.name, torch.float64)
    x = tokens(case.config, 2, 11)
    other = x.clone()
    other[:, cut:] = (x[:, cut:] + 1) % case.config.vocab_size
    before, after = net(x)[0], net(other)[0]
    torch.testing.assert_close(before[:, :cut], after[:, :cut], atol=1e-12, rtol=1e-12)
    assert (before[:, cut:] - after[:, cut:]).abs().amax(dim=-1).min() > 1e-6


@every_network
def test_every_token_sees_the_first_one(case: Case) -> None:
    net = excited_net(case.name, torch.float64)
    x = tokens(case.config, 2, 11)
    other = x.clone()
    other[:, 0] = (x[:, 0] + 1) % case.config.vocab_size
    assert (net(x)[0] - net(other)[0]).abs().amax(dim=-1).min() > 1e-9


@every_network
@pytest.mark.parametrize("where", ["left", "right", "both", "inside"])
def test_padding_changes_nothing_for_real_tokens(case: Case, where: str) -> None:
    net = excited_net(case.name, torch.float64)
    x, y = tokens(case.config, 1, 9), tokens(case.config, 1, 9, seed=1)
    real = {
        "left": range(4, 13),
        "right": range(9),
        "both": range(2, 11),
        "inside": [0, 1, 3, 4, 5, 8, 9, 11, 12],
    }[where]
    padded, labels = torch.full((1, 13), 3), torch.full((1, 13), 5)
    valid = torch.zeros(1, 13, dtype=torch.bool)
    padded[:, real], labels[:, real], valid[:, real] = x, y, True
    logits, aux = net(x, targets=y)
    padded_logits, padded_aux = net(padded, targets=labels, valid=valid)
    torch.testing.assert_close(padded_logits[:, real], logits, atol=1e-11, rtol=1e-10)
    for name in ("loss", "loss_lm", "loss_load_balance"):
        torch.testing.assert_close(padded_aux[name], aux[name], atol=1e-12, rtol=1e-10)


@every_network
@pytest.mark.parametrize("is_padded", [False, True])
def test_replayed_chunks_and_the_batch_do_not_see_each_other(case: Case, is_padded: bool) -> None:
    compare_segments_with_passes_of_their_own(excited_net(case.name, torch.float64), is_padded=is_padded)


@every_network
@settings(max_examples=8, deadline=None)
@given(
    pieces=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    is_padded=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_decoding_in_pieces_equals_the_whole(
    case: Case, pieces: list[int], seed: int, is_padded: bool, dtype: torch.dtype
) -> None:
    """Rows are reordered between the pieces, some continued twice, as a beam search does."""
    close = 1e-10 if dtype == torch.float64 else 1e-5
    net = excited_net(case.name, dtype)
    rng = torch.Generator().manual_seed(seed)
    decoding = net.start_decoding()
    past = torch.empty(3, 0, dtype=torch.int64)
    past_valid = torch.empty(3, 0, dtype=torch.bool)
    for length in pieces:
        x = torch.randint(case.config.vocab_size, (3, length), generator=rng)
        valid = torch.rand(3, length, generator=rng) < 0.7 if is_padded else torch.ones_like(x, dtype=torch.bool)
        past, past_valid = torch.cat((past, x), dim=1), torch.cat((past_valid, valid), dim=1)
        with torch.no_grad():
            logits = net.decode(x, decoding, valid=valid if is_padded else None)
            whole = net(past, valid=past_valid)[0][:, -length:]
        torch.testing.assert_close(logits[valid], whole[valid], atol=close, rtol=close)
        rows = torch.randint(3, (3,), generator=rng)
        decoding.reorder(rows)
        past, past_valid = past[rows], past_valid[rows]


PIECES = ((0, 3), (3, 6), (6, 7), (7, 12))
HOLES = [[0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0], [0] * 9 + [1, 1, 1]]


@every_network
def test_padding_between_pieces_is_as_if_it_were_not_there(case: Case) -> None:
    """Windows and states span holes, pieces, and a piece without any real token."""
    net = excited_net(case.name, torch.float64)
    x, valid = tokens(case.config, 3, 12), torch.tensor(HOLES).bool()
    decoding = net.start_decoding()
    with torch.no_grad():
        pieces = [net.decode(x[:, a:b], decoding, valid=valid[:, a:b]) for a, b in PIECES]
        padded, whole = torch.cat(pieces, dim=1), net(x, valid=valid)[0]
        for row in range(3):
            alone = net(x[row, valid[row]].unsqueeze(0))[0][0]
            torch.testing.assert_close(padded[row, valid[row]], alone, atol=1e-11, rtol=1e-10)
            torch.testing.assert_close(whole[row, valid[row]], alone, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("name", ["mamba", "falcon"])
def test_gradients_flow_through_decoded_pieces_and_padding_of_a_recurrent_state(name: str) -> None:
    """A loss on decoded pieces with holes has the gradients of the loss on the real tokens alone."""
    net = excited_net(name, torch.float64)
    x, valid = tokens(net.config, 1, 12), torch.tensor(HOLES[:1]).bool()
    decoding = net.start_decoding()
    pieces = torch.cat([net.decode(x[:, a:b], decoding, valid=valid[:, a:b]) for a, b in PIECES], 1)
    parameters = list(net.parameters())
    ours = torch.autograd.grad(pieces[valid].square().sum(), parameters)
    expected = torch.autograd.grad(net(x[valid].unsqueeze(0))[0].square().sum(), parameters)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mamba", {"inputs": (2, 3, 32), "state": (2, 32, 3)}),
        ("falcon", {"inputs": (2, 3, 48), "key": (2, 1, 16), "has_key": (2, 1), "weights": (2, 4, 4, 4)}),
    ],
)
def test_what_a_recurrent_block_remembers_does_not_grow(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    net = excited_net(name, torch.float64)
    decoding = net.start_decoding()
    for length in (5, 1, 9):
        with torch.no_grad():
            net.decode(tokens(net.config, 2, length), decoding)
        for state in decoding.states:
            assert {tensor: tuple(value.shape) for tensor, value in state.tensors.items()} == shapes


# ------------------------------------------------------------------------------------------------------------ training


@every_case
def test_training_with_replay_learns_and_stores(case: Case) -> None:
    net = case.build(replay=True, vocab_size=11)
    assert net.replay is not None
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=2e-2)
    x = (torch.arange(12) % 11).expand(4, -1)
    losses, replayed = [], []
    for _ in range(16):
        _, aux = net(x[:, :-1], targets=x[:, 1:], return_logits=False)
        aux["loss"].backward()
        net.flush_pending_write()
        optimizer.step()
        optimizer.zero_grad()
        net.update_slow_targets()
        losses.append(aux["loss_lm"].item())
        replayed.append(aux["loss_replay"].item())
    assert losses[-1] < 0.2 * losses[0]
    assert replayed[0] == 0.0, "nothing was stored before the first flush"
    assert 0.0 < replayed[-1] < 0.5 * replayed[1]
    assert net.replay.num_seen == 16 * 4 * (11 // case.config.replay_chunk_length)
    assert net.replay.num_staged == 0


@every_case
def test_every_trainable_tensor_has_a_reader(case: Case) -> None:
    net = case.build()
    _, aux = net(tokens(case.config, 1, 2), targets=tokens(case.config, 1, 2, 1))
    aux["loss"].backward()
    without = [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]
    assert sorted(without) == sorted(net.unused_parameters() + net.untrained_parameters())


@every_variant
@pytest.mark.parametrize("length", [1, 9, 11])
def test_the_formulas_equal_torchs_counter(case: Case, length: int) -> None:
    total = sum(step_cost(case.config, 2, length, with_replay=False).values(), Cost())
    assert counted_flops(case.build(), 2, length) == (total.forward, total.training)


@every_case
def test_building_draws_from_the_generator_only(case: Case) -> None:
    rng = torch.get_rng_state()
    nets = [build_model(case.config, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    first, same, other = (torch.cat([p.flatten() for p in net.parameters()]) for net in nets)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    torch.set_rng_state(rng)


@every_case
def test_mixed_precision_stays_close_and_double_stays_double(case: Case) -> None:
    x, y = tokens(case.config, 2, 11), tokens(case.config, 2, 11, 1)
    net = excited(case.build())
    _, plain = net(x, targets=y)
    with torch.autocast("cpu", torch.bfloat16):
        _, mixed = net(x, targets=y)
    torch.testing.assert_close(mixed["loss"], plain["loss"], atol=0.0, rtol=0.1)
    mixed["loss"].backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)
    logits, aux = net.double()(x, targets=y)
    assert {logits.dtype} | {aux[name].dtype for name in ("loss", "loss_load_balance")} == {torch.float64}


@every_case
@pytest.mark.parametrize("silent", ["mixer", "feed_forward"])
def test_dropout_acts_on_both_parts_in_training_only(case: Case, silent: str) -> None:
    net = excited(case.build(dropout=0.5))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if f".{silent}." in name:
                parameter.zero_()  # what differs now is the other part's doing
    x = tokens(case.config, 2, 11)
    assert not torch.equal(net.train()(x)[0], net(x)[0])
    assert torch.equal(net.eval()(x)[0], net(x)[0])


@every_case
def test_a_network_of_half_numbers_stays_close(case: Case) -> None:
    net = build_model(case.config, torch.Generator().manual_seed(0))
    x = tokens(case.config, 2, 9)
    wide = net(x)[0].detach()
    logits = net.bfloat16()(x)[0]
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), wide, atol=0.02, rtol=0.05)


# ---------------------------------------------------------------------------------------------------------- positions


@pytest.mark.parametrize("name", ["transformer", "blk_attn_res"])
def test_silent_blocks_leave_token_and_position(name: str) -> None:
    """With attention over depth the blocks are sources of zeros, and the final norm removes the share's size."""
    case = next(case for case in CASES if case.name == name)
    net = excited(case.build(norm_eps=1e-12)).double()
    trunk: Any = net.trunk
    with torch.no_grad():
        for block in trunk.blocks:
            block.mixer.output.weight.zero_()
            block.feed_forward.down.weight.zero_()
    x = tokens(net.config, 2, 7)
    hidden = trunk.embedding.weight[x] + trunk.positions.weight[:7]
    torch.testing.assert_close(net(x)[0], trunk.final_norm(hidden) @ trunk.embedding.weight.T)


def test_rotary_positions_need_no_table_and_an_even_head() -> None:
    net = build_model(tiny_baseline(TransformerConfig, positions="rotary"))
    assert not any("positions" in name for name, _ in net.named_parameters())
    with pytest.raises(UserError, match="num_heads=16"):
        tiny_baseline(TransformerConfig, positions="rotary", num_heads=16)
