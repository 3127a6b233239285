from __future__ import annotations

import pytest

from tests.backbones.common import check_silent_blocks_leave_the_embedding, compare_with_reference, tiny_baseline
from trc2.backbones.transformer import TransformerConfig, build
from trc2.errors import UserError
from trc2.reference import baselines as reference


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (2, 5), (1, 13)])
def test_outputs_losses_and_gradients_equal_the_reference(rows: int, length: int) -> None:
    config = tiny_baseline(TransformerConfig)
    compare_with_reference(build(config), reference.transformer(config), rows, length)


@pytest.mark.parametrize(
    "changes",
    [{"num_heads": 1}, {"num_heads": 16}, {"num_layers": 1}, {"d_ff": None}, {"positions": "rotary"}],
    ids=str,
)
def test_every_shape_equals_the_reference(changes: dict[str, object]) -> None:
    config = tiny_baseline(TransformerConfig, **changes)
    compare_with_reference(build(config), reference.transformer(config))


def test_replay_in_the_same_pass_equals_the_reference_in_two() -> None:
    config = tiny_baseline(TransformerConfig, replay=True, replay_coefficient=0.7)
    compare_with_reference(build(config), reference.transformer(config))


def test_silent_blocks_leave_token_and_position() -> None:
    check_silent_blocks_leave_the_embedding(build(tiny_baseline(TransformerConfig)))


def test_the_width_defaults_to_four_times_the_models() -> None:
    net = build(tiny_baseline(TransformerConfig, d_ff=None))
    assert net.trunk.blocks[0].feed_forward.down.weight.shape == (16, 64)
    assert net.trunk.blocks[0].mixer.qkv.weight.shape == (48, 16), "as many key heads as query heads"


def test_rotary_positions_need_no_table_and_an_even_head() -> None:
    net = build(tiny_baseline(TransformerConfig, positions="rotary"))
    assert not any("positions" in name for name, _ in net.named_parameters())
    with pytest.raises(UserError, match="num_heads=16"):
        tiny_baseline(TransformerConfig, positions="rotary", num_heads=16)
