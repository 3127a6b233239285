"""What every baseline must do, whatever it computes: append a case and the rows of the paper's table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backbones.common import compare_segments_with_passes_of_their_own, counted_flops, excited, tiny_baseline
from tests.conftest import tokens
from trc2.backbones import blk_attn_res, deepseek_moe, falcon, lora_drs, mamba, moe, transformer
from trc2.backbones.blk_attn_res import BlkAttnResConfig
from trc2.backbones.deepseek_moe import DeepSeekMoEConfig
from trc2.backbones.falcon import FalconConfig
from trc2.backbones.lora_drs import LoraDRSConfig
from trc2.backbones.mamba import MambaConfig
from trc2.backbones.moe import MoEConfig
from trc2.backbones.registry import step_cost
from trc2.backbones.shell import Backbone
from trc2.backbones.transformer import TransformerConfig
from trc2.nn.cost import Cost


@dataclass(frozen=True)
class Case:
    module: ModuleType
    config: Any
    variant: str = ""

    def build(self, **changes: object) -> Backbone:
        return self.module.build(self.config.replace(**changes))

    @property
    def name(self) -> str:
        return self.config.name + self.variant


CASES = [
    Case(transformer, tiny_baseline(TransformerConfig)),
    Case(moe, tiny_baseline(MoEConfig, num_experts=4)),
    Case(deepseek_moe, tiny_baseline(DeepSeekMoEConfig, num_experts=6, num_active_experts=3)),
    Case(blk_attn_res, tiny_baseline(BlkAttnResConfig, num_layers=3, num_residual_blocks=2)),
    Case(mamba, tiny_baseline(MambaConfig, state_dim=3, dt_rank=2, scan_chunk=4)),
    Case(falcon, tiny_baseline(FalconConfig, chunk=3)),
    Case(lora_drs, tiny_baseline(LoraDRSConfig, rank=2)),
    Case(transformer, tiny_baseline(TransformerConfig, positions="rotary"), "+rotary"),
    Case(deepseek_moe, tiny_baseline(DeepSeekMoEConfig, num_experts=6, positions="rotary"), "+rotary"),
]

# (module, config, d_model, layers, the paper's millions, ours minus the paper's), see docs/baselines.md
PAPER_ROWS = [
    (transformer, TransformerConfig, 512, 28, 144, -0.27),
    (transformer, TransformerConfig, 768, 20, 228, +0.16),
    (transformer, TransformerConfig, 1024, 16, 321, -0.02),
    (moe, MoEConfig, 512, 16, 345, +0.11),
    (moe, MoEConfig, 768, 10, 441, -0.46),
    (moe, MoEConfig, 1024, 6, 493, -0.02),
    (deepseek_moe, DeepSeekMoEConfig, 512, 14, 338, +0.34),
    (deepseek_moe, DeepSeekMoEConfig, 768, 6, 308, +0.43),
    (deepseek_moe, DeepSeekMoEConfig, 1024, 6, 545, -0.07),
    (blk_attn_res, BlkAttnResConfig, 512, 28, 144, -0.22),
    (blk_attn_res, BlkAttnResConfig, 768, 16, 190, +0.45),
    (blk_attn_res, BlkAttnResConfig, 1024, 8, 187, -0.22),
]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@cache
def excited_net(case_name: str, dtype: torch.dtype) -> Backbone:
    case = next(case for case in CASES if case.name == case_name)
    return excited(case.build()).to(dtype).eval()


@pytest.mark.parametrize(
    ("module", "kind", "d_model", "layers", "reported", "residual"),
    PAPER_ROWS,
    ids=lambda value: value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else None,
)
def test_parameter_counts_are_the_papers(
    module: ModuleType, kind: type[Any], d_model: int, layers: int, reported: int, residual: float
) -> None:
    with torch.device("meta"):
        net = module.build(kind(d_model=d_model, num_layers=layers, vocab_size=50257))
    millions = sum(parameter.numel() for parameter in net.parameters()) / 1e6
    assert round(millions - reported, 2) == residual


@every_case
@pytest.mark.parametrize("cut", [1, 6, 10])
def test_no_token_sees_a_later_one(case: Case, cut: int) -> None:
    net = excited_net(case.name, torch.float64)
    x = tokens(case.config, 2, 11)
    other = x.clone()
    other[:, cut:] = (x[:, cut:] + 1) % case.config.vocab_size
    before, after = net(x)[0], net(other)[0]
    torch.testing.assert_close(before[:, :cut], after[:, :cut], atol=1e-12, rtol=1e-12)
    assert (before[:, cut:] - after[:, cut:]).abs().amax(dim=-1).min() > 1e-6


@every_case
def test_every_token_sees_the_first_one(case: Case) -> None:
    net = excited_net(case.name, torch.float64)
    x = tokens(case.config, 2, 11)
    other = x.clone()
    other[:, 0] = (x[:, 0] + 1) % case.config.vocab_size
    assert (net(x)[0] - net(other)[0]).abs().amax(dim=-1).min() > 1e-9


@every_case
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


@every_case
@pytest.mark.parametrize("is_padded", [False, True])
def test_replayed_chunks_and_the_batch_do_not_see_each_other(case: Case, is_padded: bool) -> None:
    compare_segments_with_passes_of_their_own(excited_net(case.name, torch.float64), is_padded=is_padded)


@every_case
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@settings(max_examples=6, deadline=None)
@given(pieces=st.lists(st.integers(1, 5), min_size=1, max_size=5), seed=st.integers(0, 1000), is_padded=st.booleans())
def test_decoding_in_pieces_equals_the_whole(
    case: Case, dtype: torch.dtype, close: float, pieces: list[int], seed: int, is_padded: bool
) -> None:
    """Rows are reordered between the pieces, some continued twice, as a beam search does."""
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


@every_case
def test_training_with_replay_learns_and_stores(case: Case) -> None:
    net = case.build(replay=True, vocab_size=11)
    assert net.replay is not None
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    x = (torch.arange(12) % 11).expand(4, -1)
    losses, replayed = [], []
    for _ in range(30):
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
    assert net.replay.num_seen == 30 * 4 * (11 // case.config.replay_chunk_length)
    assert net.replay.num_staged == 0


@every_case
def test_every_trainable_tensor_has_a_reader(case: Case) -> None:
    net = case.build()
    _, aux = net(tokens(case.config, 1, 2), targets=tokens(case.config, 1, 2, 1))
    aux["loss"].backward()
    without = [name for name, p in net.named_parameters() if p.requires_grad and p.grad is None]
    assert sorted(without) == sorted(net.unused_parameters() + net.untrained_parameters())


@every_case
@pytest.mark.parametrize("length", [1, 11])
def test_the_formulas_equal_torchs_counter(case: Case, length: int) -> None:
    total = sum(step_cost(case.config, 2, length, with_replay=False).values(), Cost())
    assert counted_flops(case.build(), 2, length) == (total.forward, total.training)


@every_case
def test_building_draws_from_the_generator_only(case: Case) -> None:
    rng = torch.get_rng_state()
    nets = [case.module.build(case.config, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
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
