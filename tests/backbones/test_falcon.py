from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.backbones.common import (
    excited,
    tiny_baseline,
)
from tests.conftest import tokens
from trc2.backbones.falcon import FalconConfig, FalconMixer, build
from trc2.backbones.shell import Backbone
from trc2.nn.segments import pack

both = pytest.mark.parametrize("variant", ["falcon1", "falcon2"])


def tiny(**changes: object) -> FalconConfig:
    settings = {"d_model": 8, "num_heads": 2, "vocab_size": 13, "chunk": 4, "num_layers": 1}
    return tiny_baseline(FalconConfig, **{**settings, **changes})


def excited_net(dtype: torch.dtype = torch.float64, **changes: object) -> Backbone:
    return excited(build(tiny(**{"num_layers": 2, **changes}))).to(dtype).eval()


def mixer_of(net: Backbone) -> FalconMixer:
    mixer: Any = net.trunk.blocks[0].mixer
    return mixer


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


def test_half_precision_keeps_the_fast_weights_wide() -> None:
    net = build(tiny(), torch.Generator().manual_seed(0))
    decoding = net.start_decoding()
    with torch.autocast("cpu", torch.bfloat16):
        net.decode(tokens(net.config, 2, 9), decoding)
    state = decoding.states[0].tensors
    assert {state[name].dtype for name in ("inputs", "key", "weights")} == {torch.float32}
