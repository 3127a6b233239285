from __future__ import annotations

import pytest
import torch

from tests.backbones.common import (
    tiny_baseline,
)
from trc2.backbones.mamba import MambaConfig, MambaMixer, build


def tiny(**changes: object) -> MambaConfig:
    settings = {"d_model": 8, "state_dim": 3, "dt_rank": 2, "scan_chunk": 4, "vocab_size": 13}
    return tiny_baseline(MambaConfig, **{**settings, **changes})


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
