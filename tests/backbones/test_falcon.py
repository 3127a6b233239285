from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.backbones.common import (
    compare_gradients_of_pieces,
    compare_segments_with_passes_of_their_own,
    compare_with_reference,
    counted_flops,
    excited,
    remembered_shapes,
    tiny_baseline,
)
from tests.conftest import tokens
from trc2.backbones.falcon import FalconConfig, FalconMixer, build, cost
from trc2.backbones.shell import Backbone
from trc2.nn.cost import Cost
from trc2.nn.segments import pack
from trc2.reference import falcon as reference

both = pytest.mark.parametrize("variant", ["falcon1", "falcon2"])


def tiny(**changes: object) -> FalconConfig:
    settings = {"d_model": 8, "num_heads": 2, "vocab_size": 13, "chunk": 4, "num_layers": 1}
    return tiny_baseline(FalconConfig, **{**settings, **changes})


def excited_net(dtype: torch.dtype = torch.float64, **changes: object) -> Backbone:
    return excited(build(tiny(**{"num_layers": 2, **changes}))).to(dtype).eval()


def mixer_of(net: Backbone) -> FalconMixer:
    mixer: Any = net.trunk.blocks[0].mixer
    return mixer


@both
@pytest.mark.parametrize(("rows", "length", "layers"), [(1, 1, 2), (2, 7, 2), (1, 21, 1)])
def test_outputs_losses_and_gradients_equal_the_reference(rows: int, length: int, layers: int, variant: str) -> None:
    config = tiny(num_layers=layers, variant=variant)
    compare_with_reference(build(config), reference.falcon(config), rows, length)


@pytest.mark.parametrize(
    "changes",
    [
        {"conv_width": 1},
        {"conv_width": 6},
        {"chunk": 1},
        {"chunk": 16},
        {"num_heads": 8},
        {"num_heads": 1},
        {"output_norm": True},
        {"ridge_scale": 0.0},
        {"ridge_scale": 40.0},
        {"ridge_scale": 40.0, "variant": "falcon1", "output_norm": True},
    ],
    ids=str,
)
def test_every_option_equals_the_reference(changes: dict[str, object]) -> None:
    config = tiny(**changes)
    compare_with_reference(build(config), reference.falcon(config), rows=1, length=6)


@both
def test_replay_in_the_same_pass_equals_the_reference_in_two(variant: str) -> None:
    config = tiny(replay=True, replay_coefficient=0.7, variant=variant)
    compare_with_reference(build(config), reference.falcon(config), rows=1, length=5)


@both
@pytest.mark.parametrize("cut", [1, 6, 10])
def test_no_token_sees_a_later_one(variant: str, cut: int) -> None:
    net = excited_net(variant=variant)
    x = tokens(net.config, 2, 11)
    other = x.clone()
    other[:, cut:] = (x[:, cut:] + 1) % net.config.vocab_size
    before, after = net(x)[0], net(other)[0]
    torch.testing.assert_close(before[:, :cut], after[:, :cut], atol=1e-12, rtol=1e-12)
    assert (before[:, cut:] - after[:, cut:]).abs().amax(dim=-1).min() > 1e-6


def test_the_first_token_reads_nothing_and_the_second_reads_what_it_wrote_under_the_first_ones_key() -> None:
    net = excited_net(num_layers=1, num_heads=1, conv_width=1)
    mixer = mixer_of(net)
    u = torch.randn(2, 8, dtype=torch.float64)
    out = mixer(u, pack([torch.zeros(1, 2, dtype=torch.int64)]).segments)
    assert torch.equal(out[0], torch.zeros(8, dtype=torch.float64))
    with torch.no_grad():
        q, k, v = (mixer.qkv(u) * mixer.conv_weight[:, 0]).chunk(3, dim=-1)
        q, k = (x / x.square().mean(dim=-1, keepdim=True).add(1e-6).sqrt() for x in (q, k))
        energy = k[0] @ k[0]
        ridge = torch.sigmoid(mixer.ridge(u[1])) * energy
        step = 2 * torch.sigmoid(mixer.gain(u[1])) / (energy + ridge + 1e-6)
        expected = mixer.output(step * v[1] * (k[0] @ q[1]))
    torch.testing.assert_close(out[1], expected, atol=1e-12, rtol=1e-10)


@both
@pytest.mark.parametrize("conv_width", [1, 4])
def test_padding_is_as_if_it_were_not_there(variant: str, conv_width: int) -> None:
    """Anywhere, in the whole or in pieces, one of which has no real token in a row."""
    net = excited_net(variant=variant, conv_width=conv_width)
    x = tokens(net.config, 3, 12)
    valid = torch.tensor(
        [
            [0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1],
            [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1],
        ]
    ).bool()
    decoding = net.start_decoding()
    with torch.no_grad():
        cuts = ((0, 3), (3, 6), (6, 7), (7, 12))
        pieces = [net.decode(x[:, a:b], decoding, valid=valid[:, a:b]) for a, b in cuts]
        padded, whole = torch.cat(pieces, dim=1), net(x, valid=valid)[0]
        for row in range(3):
            alone = net(x[row, valid[row]].unsqueeze(0))[0][0]
            torch.testing.assert_close(padded[row, valid[row]], alone, atol=1e-11, rtol=1e-10)
            torch.testing.assert_close(whole[row, valid[row]], alone, atol=1e-11, rtol=1e-10)


@both
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("pieces", [[1] * 9, [5, 1, 1, 9], [2, 13]], ids=str)
def test_decoding_in_pieces_equals_the_whole(variant: str, dtype: torch.dtype, close: float, pieces: list[int]) -> None:
    """Rows change places between the pieces, as in a beam search."""
    net = excited_net(dtype, variant=variant)
    rng = torch.Generator().manual_seed(0)
    decoding = net.start_decoding()
    past = torch.empty(3, 0, dtype=torch.int64)
    with torch.no_grad():
        for length in pieces:
            x = torch.randint(net.config.vocab_size, (3, length), generator=rng)
            past = torch.cat((past, x), dim=1)
            logits = net.decode(x, decoding)
            torch.testing.assert_close(logits, net(past)[0][:, -length:], atol=close, rtol=close)
            rows = torch.randint(3, (3,), generator=rng)
            decoding.reorder(rows)
            past = past[rows]


def test_gradients_flow_through_decoded_pieces_and_padding() -> None:
    compare_gradients_of_pieces(excited_net(), 1e-9)


def test_what_decoding_remembers_does_not_grow() -> None:
    expected = {"inputs": (2, 3, 24), "key": (2, 1, 8), "has_key": (2, 1), "weights": (2, 2, 4, 4)}
    assert remembered_shapes(excited_net()) == [[expected] * 2] * 3


@both
@pytest.mark.parametrize("is_padded", [False, True])
def test_replayed_chunks_and_the_batch_do_not_see_each_other(variant: str, is_padded: bool) -> None:
    compare_segments_with_passes_of_their_own(excited_net(variant=variant), is_padded=is_padded)


@pytest.mark.parametrize(
    ("d_model", "layers", "reported", "residual"),
    [(512, 32, 144, 0.07), (768, 20, 193, 0.09), (1024, 12, 220, -0.48)],
)
def test_parameter_counts_are_the_papers(d_model: int, layers: int, reported: int, residual: float) -> None:
    with torch.device("meta"):
        net = build(FalconConfig(d_model=d_model, num_layers=layers, vocab_size=50257))
    assert round(sum(parameter.numel() for parameter in net.parameters()) / 1e6 - reported, 2) == residual
    mixer = sum(parameter.numel() for parameter in mixer_of(net).parameters())
    assert mixer == 4 * d_model**2 + (d_model**2 + d_model) + (8 * d_model + 8) + 12 * d_model


def test_falcon1_has_one_gain_per_head_and_an_output_norm_one_per_channel() -> None:
    sizes = {
        name: sum(p.numel() for p in mixer_of(build(tiny(**changes))).parameters())
        for name, changes in {
            "falcon2": {},
            "falcon1": {"variant": "falcon1"},
            "normed": {"output_norm": True},
        }.items()
    }
    assert sizes["falcon2"] - sizes["falcon1"] == (8 * 8 + 8) - (8 * 2 + 2)
    assert sizes["normed"] - sizes["falcon2"] == 8


def test_a_fresh_mixer_writes_fully_and_forgets_little() -> None:
    config = tiny(d_model=64, num_layers=8)
    mixer = mixer_of(build(config, torch.Generator().manual_seed(0)))
    u = torch.randn(50, 64)
    gain, ridge = 2 * torch.sigmoid(mixer.gain(u)), torch.sigmoid(mixer.ridge(u))
    assert abs(gain.mean() - 1.0) < 0.02
    assert abs(ridge.mean() - 0.018) < 0.001
    assert 0.48 < mixer.conv_weight.abs().max() <= 0.5
    assert abs(mixer.output.weight.std() - 0.02 / 4) < 2e-4
    assert abs(mixer.gain.weight.std() - 0.02) < 1e-3


@both
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_saturated_gates_give_finite_gradients_in_float32(variant: str, size: float) -> None:
    """Large logits of either sign: steps of exactly 0 and 2, tokens that forget all they can and none."""
    net = excited_net(torch.float32, variant=variant, chunk=16).train()
    with torch.no_grad():
        for block in net.trunk.blocks:
            for linear in (block.mixer.gain, block.mixer.ridge):  # type: ignore[union-attr]
                linear.weight.mul_(size)  # type: ignore[union-attr, operator]
                linear.bias.mul_(size)  # type: ignore[union-attr, operator]
    x, y = tokens(net.config, 2, 40), tokens(net.config, 2, 40, seed=1)
    parameters = list(net.parameters())
    ours = torch.autograd.grad(net(x, targets=y)[1]["loss"], parameters)
    net.double()
    expected = torch.autograd.grad(net(x, targets=y)[1]["loss"], list(net.parameters()))
    for a, b in zip(ours, expected, strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a.double(), b, atol=1e-4 * max(1e-3, float(b.abs().max())), rtol=0.0)


@both
@pytest.mark.parametrize("length", [1, 3, 4, 11])
def test_the_formulas_equal_torchs_counter(variant: str, length: int) -> None:
    config = tiny(num_layers=2, variant=variant)
    total = sum(cost(config, 2, length).values(), Cost())
    assert counted_flops(build(config), 2, length) == (total.forward, total.training)


def test_half_precision_keeps_the_fast_weights_wide() -> None:
    net = build(tiny(num_layers=2), torch.Generator().manual_seed(0))
    x, y = tokens(net.config, 2, 9), tokens(net.config, 2, 9, seed=1)
    wide = net(x)[0].detach()
    with torch.autocast("cpu", torch.bfloat16):
        _, aux = net(x, targets=y)
        decoding = net.start_decoding()
        net.decode(x, decoding)
    aux["loss"].backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in net.parameters())
    state = decoding.states[0].tensors
    assert {state[name].dtype for name in ("inputs", "key", "weights")} == {torch.float32}
    logits = net.bfloat16()(x)[0]
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), wide, atol=0.02, rtol=0.05)
