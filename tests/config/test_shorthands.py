"""Shorthands of `strategy`, and what a change of strategy keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from trc2 import RunConfig, UserError, load_recipe
from trc2.config import recipe_names


def replay_of(run: RunConfig) -> tuple[bool, str, str]:
    return run.model.replay, run.control.mode, run.strategy.name


def strengths(run: RunConfig) -> tuple[float, int, float]:
    return run.model.replay_coefficient, run.model.replay_batch_size, run.model.replay_long_fraction


@pytest.mark.parametrize(
    ("model", "strategy", "expected"),
    [
        ("transformer", "replay", (True, "fixed", "none")),
        ("transformer", "replay_controlled", (True, "closed_loop", "none")),
        ("transformer", "agem", (True, "off", "agem")),
        ("transformer", "ewc", (False, "closed_loop", "ewc")),
        ("trc2", "replay", (True, "fixed", "none")),
        ("trc2", "agem", (True, "closed_loop", "agem")),
        ("trc2", "none", (True, "closed_loop", "none")),
    ],
)
def test_a_shorthand_is_written_out(model: str, strategy: str, expected: tuple[bool, str, str], tmp_path: Path) -> None:
    run = load_recipe(f"lab_{model}", [f"strategy={strategy}"])
    assert replay_of(run) == expected
    assert run == RunConfig(**run.model_dump(mode="json"))  # and means the same when it is read again
    recipe = tmp_path / "mine.yaml"
    for written in (strategy, f"{{name: {strategy}}}"):
        recipe.write_text(f"base: lab_{model}\nstrategy: {written}\n")
        assert load_recipe(str(recipe)) == run


def test_a_shorthand_refuses_another_mode_of_control() -> None:
    values = load_recipe("lab_transformer").model_dump(mode="json") | {"strategy": {"name": "replay"}}
    with pytest.raises(UserError, match=r"strategy=replay means control\.mode=fixed, but control\.mode=off is set"):
        RunConfig(**{**values, "control": {"mode": "off"}})


def test_another_strategy_does_not_inherit_the_strength_of_the_one_before(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("base: demo\nstrategy: {name: ewc, strength: 5}")
    assert load_recipe(str(recipe), ["strategy=ewc"]).strategy.strength == 5
    assert load_recipe(str(recipe), ["strategy=l2"]).strategy.strength == 0.01
    above = tmp_path / "above.yaml"
    above.write_text(f"base: {recipe}\nstrategy: l2")
    assert load_recipe(str(above)).strategy.strength == 0.01
    assert load_recipe("demo", ["strategy.strength=3", "strategy=l2"]).strategy.strength == 3


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("paper_")])
def test_the_recipes_of_the_paper_replay_with_its_strengths(name: str) -> None:
    run = load_recipe(name)
    assert strengths(run) == (0.05, 4, 0.5)  # λ₀, B₀ and ρ₀
    assert run.strategy.model_dump() == {"name": "none"}
    assert run.control.mode == "closed_loop"
