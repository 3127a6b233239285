from __future__ import annotations

from pathlib import Path

import pytest

from trc2 import RunConfig, TRC2Config, UserError, load_recipe
from trc2.config import recipe_names, round_up


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"d_modl": 3}, "Unknown setting 'd_modl': did you mean 'd_model'?"),
        ({"d_model": 10}, "d_model=10 is not divisible by num_heads=8: choose a multiple of 8."),
        ({"num_kv_heads": 3}, "num_heads=8 is not divisible by num_kv_heads=3: choose a multiple of 3."),
        (
            {"thalamic_rank": 16, "thalamic_groups": 3},
            "thalamic_rank=16 is not divisible by thalamic_groups=3: choose a multiple of 3.",
        ),
        ({"num_experts": 1}, "num_active_experts=2 is more than num_experts=1: choose at most as many."),
        ({"d_model": 24, "num_heads": 8}, "d_model=24 with num_heads=8 gives odd heads of width 3"),
        ({"vocab_size": 0}, "vocab_size=0 is not valid: input should be greater than or equal to 1."),
        ({"dropout": "much"}, "dropout='much' is not valid"),
    ],
)
def test_a_bad_setting_is_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        TRC2Config(**settings)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": {"d_modl": 3}}, "Unknown setting 'model.d_modl': did you mean 'd_model'?"),
        ({"modl": {}}, "Unknown setting 'modl': did you mean 'model'?"),
        ({"model": {"d_model": 10}}, "model: d_model=10 is not divisible by num_heads=8"),
        ({}, "The setting 'model' is missing: add it."),
        (
            {"model": {}, "train": {"sequence_length": 64}},
            "model.replay_chunk_length=128 is longer than train.sequence_length=64",
        ),
        ({"model": {}, "train": {"sequence_length": 2048}}, "train.sequence_length=2048 is longer than model.max_pos"),
    ],
)
def test_a_bad_recipe_names_the_path(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        RunConfig(**settings)
    assert str(caught.value).startswith(sentence)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TRC2Config().d_model = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid(name: str) -> None:
    assert load_recipe(name).model.vocab_size > 0


def test_overrides_change_recipes_and_are_checked() -> None:
    assert load_recipe("paper_compact", ["model.d_model=64", "model.thalamus=false"]).model.thalamus is False
    with pytest.raises(UserError, match="has no value"):
        load_recipe("paper_compact", ["model.d_model"])
    with pytest.raises(UserError, match="did you mean 'd_model'"):
        load_recipe("paper_compact", ["model.d_modell=3"])
    with pytest.raises(UserError, match="has no readable value"):
        load_recipe("paper_compact", ["model.d_model=["])
    with pytest.raises(UserError, match="is a value: shorten the path"):
        load_recipe("paper_compact", ["model.d_model.x=3"])


def test_unknown_recipes_get_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'paper_compact'"):
        load_recipe("paper_compat")
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: [")
    with pytest.raises(UserError, match="is not valid YAML"):
        load_recipe(str(broken))
    broken.write_text("3")
    with pytest.raises(UserError, match="holds int, not settings"):
        load_recipe(str(broken))


def test_derived_sizes_are_those_of_the_paper() -> None:
    assert [round_up(8 * d / 3, 256) for d in (256, 512, 768, 1024)] == [768, 1536, 2048, 2816]
    assert TRC2Config(d_model=768).rank == 96
    assert [TRC2Config(num_columns=n).num_early_columns for n in (1, 2, 3, 4, 6, 8, 10, 24)] == [
        1,
        1,
        2,
        2,
        4,
        5,
        6,
        16,
    ]
