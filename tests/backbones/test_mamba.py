from __future__ import annotations

import pytest
import torch

from tests.backbones.common import (
    compare_gradients_of_pieces,
    compare_with_reference,
    counted_flops,
    excited,
    remembered_shapes,
    tiny_baseline,
)
from tests.conftest import tokens
from trc2.backbones.mamba import MambaConfig, MambaMixer, build, cost
from trc2.nn.cost import Cost
from trc2.reference import mamba as reference


def tiny(**changes: object) -> MambaConfig:
    settings = {"d_model": 8, "state_dim": 3, "dt_rank": 2, "scan_chunk": 4, "vocab_size": 13}
    return tiny_baseline(MambaConfig, **{**settings, **changes})


def excited_net(**changes: object) -> torch.nn.Module:
    return excited(build(tiny(**changes))).double().eval()


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (2, 7), (1, 21)])
def test_outputs_losses_and_gradients_equal_the_reference(rows: int, length: int) -> None:
    config = tiny(num_layers=1 if length > 7 else 2)
    compare_with_reference(build(config), reference.mamba(config), rows, length)


@pytest.mark.parametrize(
    "changes",
    [{"expand": 1}, {"state_dim": 1}, {"dt_rank": None}, {"conv_width": 1}, {"conv_width": 6}, {"scan_chunk": 64}],
    ids=str,
)
def test_every_shape_equals_the_reference(changes: dict[str, object]) -> None:
    config = tiny(num_layers=1, **changes)
    compare_with_reference(build(config), reference.mamba(config), rows=1, length=5)


def test_replay_in_the_same_pass_equals_the_reference_in_two() -> None:
    config = tiny(num_layers=1, replay=True, replay_coefficient=0.7)
    compare_with_reference(build(config), reference.mamba(config), rows=1, length=5)


@pytest.mark.parametrize("conv_width", [1, 4])
def test_padding_between_pieces_does_not_reach_the_convolution_or_the_state(conv_width: int) -> None:
    """The window of the convolution spans the holes, two pieces, and a piece without any real token."""
    net = excited_net(conv_width=conv_width)
    x = tokens(net.config, 2, 12)
    valid = torch.tensor([[0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0]]).bool()
    decoding = net.start_decoding()
    with torch.no_grad():
        pieces = [net.decode(x[:, a:b], decoding, valid=valid[:, a:b]) for a, b in ((0, 3), (3, 6), (6, 8), (8, 12))]
        padded, whole = torch.cat(pieces, dim=1), net(x, valid=valid)[0]
        for row in range(2):
            alone = net(x[row, valid[row]].unsqueeze(0))[0][0]
            torch.testing.assert_close(padded[row, valid[row]], alone, atol=1e-11, rtol=1e-10)
            torch.testing.assert_close(whole[row, valid[row]], alone, atol=1e-11, rtol=1e-10)


def test_what_decoding_remembers_does_not_grow() -> None:
    assert remembered_shapes(excited_net()) == [[{"inputs": (2, 3, 16), "state": (2, 16, 3)}] * 2] * 3


def test_gradients_flow_through_decoded_pieces_and_padding() -> None:
    compare_gradients_of_pieces(excited_net(), 1e-10)


@pytest.mark.parametrize(
    ("d_model", "layers", "reported", "residual"), [(512, 28, 151, 0.27), (768, 18, 202, 0.40), (1024, 12, 245, -0.40)]
)
def test_parameter_counts_are_the_papers(d_model: int, layers: int, reported: int, residual: float) -> None:
    with torch.device("meta"):
        net = build(MambaConfig(d_model=d_model, num_layers=layers, vocab_size=50257))
    assert round(sum(parameter.numel() for parameter in net.parameters()) / 1e6 - reported, 2) == residual
    mixer = sum(parameter.numel() for parameter in net.trunk.blocks[0].mixer.parameters())
    assert mixer == 6 * d_model**2 + d_model * (4 * 64 + 6 * 128 + 14)


def test_a_fresh_mixer_starts_as_mamba_does() -> None:
    config = tiny(d_model=64, num_layers=8, expand=16, state_dim=16, dt_rank=None)
    block = build(config, torch.Generator().manual_seed(0)).trunk.blocks[0]
    mixer: MambaMixer = block.mixer
    step = torch.nn.functional.softplus(mixer.step_bias.detach())
    assert 1e-3 * (1 - 1e-5) <= step.min() < 1.1e-3
    assert 0.0975 < step.max() <= 0.1 * (1 + 1e-5)
    assert 0.4 < (step < 0.01).float().mean() < 0.6, "log-uniform: half lie below the geometric mean"
    expected = torch.arange(1, 17, dtype=torch.float32).expand(1024, 16)
    torch.testing.assert_close(mixer.decay_log.detach().exp(), expected)
    assert torch.equal(mixer.skip, torch.ones(1024))
    bounds = {
        mixer.step.weight: 4**-0.5,
        mixer.input.weight: 64**-0.5,
        mixer.conv_weight: 4**-0.5,
        mixer.conv_bias: 4**-0.5,
        mixer.selection.weight: 1024**-0.5,
        mixer.output.weight: 1024**-0.5 / 4,
        block.feed_forward.down.weight: config.ff_dim**-0.5 / 4,
    }
    for parameter, bound in bounds.items():
        assert 0.9 * bound < parameter.abs().max() <= bound
        assert abs(parameter.mean()) < 0.1 * bound
    first = next(p for n, p in block.feed_forward.named_parameters() if "down" not in n)
    assert first.std().item() == pytest.approx(0.02, rel=0.05)  # not Mamba's: as in every SwiGLU here
    assert first.abs().max() > 0.05, "normal, not uniform"


def test_decay_step_bias_and_skip_are_spared_from_weight_decay() -> None:
    net = build(tiny()).double()
    spared = {name.rpartition(".")[2] for name in net.tensors_without_decay()}
    assert spared == {"decay_log", "step_bias", "skip"}


@pytest.mark.parametrize("length", [1, 9])
def test_the_formulas_equal_torchs_counter_contractions_of_the_scan_included(length: int) -> None:
    total = sum(cost(tiny(), 2, length).values(), Cost())
    assert counted_flops(build(tiny()), 2, length) == (total.forward, total.training)


def test_a_model_in_bfloat16_runs_its_scan_in_float32() -> None:
    net = build(tiny(), torch.Generator().manual_seed(0))
    x = tokens(net.config, 2, 9)
    wide = net(x)[0].detach()
    logits = net.bfloat16()(x)[0]
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), wide, atol=0.02, rtol=0.05)
