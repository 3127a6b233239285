"""Recipes, overrides and run folders of earlier versions mean today what they meant then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trc2 import RunConfig, UserError, load_recipe
from trc2.config import recipe_names

BAG = {
    "ewc_strength": 7.0, "ewc_decay": 0.5, "fisher_sequences": 3, "l2_strength": 0.2, "agem_chunks": 5,
}  # fmt: skip
OWN = {
    "none": {},
    "ewc": {"strength": 7.0, "decay": 0.5, "fisher_sequences": 3},
    "l2": {"strength": 0.2},
    "agem": {"chunks": 5},
}


def replay_of(run: RunConfig) -> tuple[bool, str, str]:
    return run.model.replay, run.control.mode, run.strategy.name


def strengths(run: RunConfig) -> tuple[float, int, float]:
    return run.model.replay_coefficient, run.model.replay_batch_size, run.model.replay_long_fraction


@pytest.mark.parametrize("name", OWN)
def test_of_the_bag_every_strategy_takes_its_own(name: str) -> None:
    run = RunConfig(model={}, strategy={"name": name, **BAG})
    assert run.strategy.model_dump() == {"name": name, **OWN[name]}
    by_overrides = load_recipe("demo", [f"strategy={name}", *(f"strategy.{word}={BAG[word]}" for word in BAG)])
    assert by_overrides.strategy == run.strategy
    assert RunConfig(**run.model_dump(mode="json")) == run


def test_a_misspelt_word_of_the_bag_is_still_an_error() -> None:
    with pytest.raises(UserError, match="fisher_sequence': did you mean 'fisher_sequences'"):
        RunConfig(model={}, strategy={"name": "ewc", "fisher_sequence": 3})
    with pytest.raises(UserError, match=r"Unknown setting 'strategy\.l2_strenth'"):
        RunConfig(model={}, strategy={"name": "none", "l2_strenth": 3})


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


def test_a_run_folder_that_says_replay_is_what_it_was() -> None:
    """As the earlier version wrote it: every section resolved, the shorthand kept, all strengths told twice."""
    values: dict[str, Any] = load_recipe("lab_transformer", ["strategy=replay"]).model_dump(mode="json")
    values["control"] |= {"coefficient": 0.5, "batch_size": 9, "long_fraction": 0.25}
    values["strategy"] = {"name": "replay", **BAG}
    run = RunConfig(**values)
    assert replay_of(run) == (True, "fixed", "none")
    assert strengths(run) == (0.5, 9, 0.25)
    assert "coefficient" not in run.control.model_dump()
    with pytest.raises(UserError, match=r"strategy=replay means control\.mode=fixed, but control\.mode=off is set"):
        RunConfig(**{**values, "control": {"mode": "off"}})


def test_what_control_said_of_strength_the_model_says() -> None:
    words = ["control.coefficient=0.1", "control.batch_size=3", "control.long_fraction=0.75"]
    assert strengths(load_recipe("demo", words)) == (0.1, 3, 0.75)
    assert strengths(load_recipe("demo", [*words, "model=moe"])) == (0.1, 3, 0.75)
    assert strengths(RunConfig(model={"replay_coefficient": 0.02}, control={"coefficient": 0.1})) == (0.1, 4, 0.5)
    with pytest.raises(UserError, match="The setting 'model' is missing"):
        RunConfig(control={"coefficient": 0.1})


def test_of_two_overrides_the_last_one_counts_whatever_its_words() -> None:
    old, new = "control.coefficient=0.1", "model.replay_coefficient=0.12"
    assert load_recipe("demo", [old, new]).model.replay_coefficient == 0.12
    assert load_recipe("demo", [new, old]).model.replay_coefficient == 0.1
    assert load_recipe("demo", [new, old, "model=moe"]).model.replay_coefficient == 0.1
    old, new = "strategy.ewc_strength=5", "strategy.strength=6"
    assert load_recipe("demo", ["strategy=ewc", old, new]).strategy.strength == 6
    assert load_recipe("demo", ["strategy=ewc", new, old]).strategy.strength == 5
    assert load_recipe("demo", ["strategy=ewc", "strategy.fisher_sequences=5"]).strategy.fisher_sequences == 5


def test_a_recipe_counts_more_than_its_base_whatever_their_words(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text("base: demo\ncontrol: {coefficient: 0.1}\nstrategy: {name: ewc, ewc_strength: 5}")
    Path("new.yaml").write_text("base: old.yaml\nmodel: {replay_coefficient: 0.12}\nstrategy: {strength: 6}")
    run = load_recipe("new.yaml")
    assert (run.model.replay_coefficient, run.strategy.strength) == (0.12, 6)
    Path("older.yaml").write_text("base: new.yaml\ncontrol: {coefficient: 0.13}\nstrategy: {ewc_strength: 7}")
    run = load_recipe("older.yaml")
    assert (run.model.replay_coefficient, run.strategy.strength) == (0.13, 7)


def test_another_strategy_does_not_inherit_the_strength_of_the_one_before(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("base: demo\nstrategy: {name: ewc, strength: 5}")
    assert load_recipe(str(recipe), ["strategy=ewc"]).strategy.strength == 5
    assert load_recipe(str(recipe), ["strategy=l2"]).strategy.strength == 0.01
    above = tmp_path / "above.yaml"
    above.write_text(f"base: {recipe}\nstrategy: l2")
    assert load_recipe(str(above)).strategy.strength == 0.01
    assert load_recipe("demo", ["strategy.strength=3", "strategy=l2"]).strategy.strength == 3
    assert load_recipe("demo", ["strategy.l2_strength=3", "strategy=l2"]).strategy.strength == 3


@pytest.mark.parametrize("name", recipe_names())
def test_no_recipe_of_ours_speaks_in_earlier_words(name: str) -> None:
    run = load_recipe(name)
    is_ours = name.endswith("_best")  # a share of the tokens, all from the reservoir, without the paper's controller
    assert strengths(run) == (0.05, 4, 1.0 if is_ours else 0.5)  # the paper's λ₀, B₀ and ρ₀
    assert run.strategy.model_dump() == {"name": "none"}
    assert run.control.mode == ("fixed" if is_ours else "closed_loop")
