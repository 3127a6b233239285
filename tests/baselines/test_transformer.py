from __future__ import annotations

import pytest
import torch

from tests.baselines.common import compare_with_reference, excited, tiny_baseline
from tests.conftest import tokens
from trc2.baselines.transformer import build
from trc2.config.baselines import TransformerConfig
from trc2.reference import baselines as reference


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (2, 5), (1, 13)])
def test_outputs_losses_and_gradients_equal_the_reference(rows: int, length: int) -> None:
    config = tiny_baseline(TransformerConfig)
    compare_with_reference(build(config), reference.transformer(config), rows, length)


@pytest.mark.parametrize("changes", [{"num_heads": 1}, {"num_heads": 16}, {"num_layers": 1}, {"d_ff": None}], ids=str)
def test_every_shape_equals_the_reference(changes: dict[str, object]) -> None:
    config = tiny_baseline(TransformerConfig, **changes)
    compare_with_reference(build(config), reference.transformer(config))


def test_replay_in_the_same_pass_equals_the_reference_in_two() -> None:
    config = tiny_baseline(TransformerConfig, replay=True, replay_coefficient=0.7)
    compare_with_reference(build(config), reference.transformer(config))


def test_silent_blocks_leave_token_and_position() -> None:
    net = excited(build(tiny_baseline(TransformerConfig))).double()
    trunk = net.trunk
    with torch.no_grad():
        for block in trunk.blocks:
            block.mixer.output.weight.zero_()
            block.feed_forward.down.weight.zero_()
    x = tokens(net.config, 2, 7)
    hidden = trunk.embedding.weight[x] + trunk.positions.weight[:7]
    torch.testing.assert_close(net(x)[0], trunk.final_norm(hidden) @ trunk.embedding.weight.T)


def test_the_width_defaults_to_four_times_the_models() -> None:
    net = build(tiny_baseline(TransformerConfig, d_ff=None))
    assert net.trunk.blocks[0].feed_forward.down.weight.shape == (16, 64)
    assert net.trunk.blocks[0].mixer.qkv.weight.shape == (48, 16), "as many key heads as query heads"
