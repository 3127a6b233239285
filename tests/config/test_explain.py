from __future__ import annotations

from pathlib import Path

import pytest

from trc2.config import MODELS, RunConfig, load_recipe, recipe_names, strategy_names
from trc2.config.explain import Setting, explain, meaning_of
from trc2.config.section import Section
from trc2.config.strategy import strategy_class
from trc2.config.stream import SplitNames, StreamConfig, TaskConfig, TokenizerConfig


def by_path(name: str, *overrides: str) -> dict[str, Setting]:
    return {setting.path: setting for setting in explain(name, overrides)}


def sections() -> list[type[Section]]:
    fixed = [field.annotation for field in RunConfig.model_fields.values()]
    inner = [kind for kind in fixed if isinstance(kind, type) and issubclass(kind, Section)]
    strategies = [strategy_class(name) for name in strategy_names()]
    return [*inner, *MODELS.values(), *strategies, StreamConfig, TaskConfig, TokenizerConfig, SplitNames]


def test_every_setting_says_what_it_is_for() -> None:
    found = {f"{kind.__name__}.{name}": meaning_of(kind, name) for kind in sections() for name in kind.model_fields}
    assert len(found) > 150
    assert [path for path, meaning in found.items() if not meaning] == []


@pytest.mark.parametrize("name", recipe_names())
def test_the_values_shown_are_those_a_run_would_use(name: str) -> None:
    found = by_path(name)
    run = load_recipe(name)
    assert found["model.d_model"].value == run.model.d_model
    assert found["train.betas"].value == list(run.train.betas)
    for task in run.stream.tasks if run.stream is not None else ():
        assert found[f"stream.tasks.{task.name}.steps"].value == task.steps


def test_the_last_who_set_a_value_is_its_origin(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: lab_trc2\ntrain: {batch_size: 16}\nmodel: {d_model: 64}\n")
    found = by_path(str(mine), "model.d_model=32", "stream.tasks.1.steps=5", "stream.tokenizer={vocab_size: 300}")
    origins = {path: setting.origin for path, setting in found.items()}
    assert origins["train.batch_size"] == str(mine)  # although the base says the same
    assert origins["train.sequence_length"] == "base _lab_stream"
    assert origins["model.num_heads"] == "base lab_trc2"
    assert origins["model.d_model"] == "override model.d_model"
    assert origins["stream.tasks.wikitext.steps"] == "override stream.tasks.1.steps"
    assert origins["stream.tasks.c4.steps"] == "base _lab_stream"
    assert origins["stream.tokenizer.vocab_size"] == "override stream.tokenizer"
    assert origins["train.clip_norm"] == "default"
    assert origins["model.replay_seed"] == "follows from others"


def test_the_names_of_strategy_and_model_count_as_changed() -> None:
    found = by_path("demo", "strategy=ewc", "model=transformer")
    assert (found["strategy.name"].default, found["strategy.name"].origin) == ("none", "override strategy")
    assert (found["model.name"].default, found["model.name"].origin) == ("trc2", "override model")
    plain = by_path("demo")
    assert (plain["strategy.name"].default, plain["model.name"].default) == ("none", "trc2")
    assert [plain[path].value for path in ("strategy.name", "model.name")] == ["none", "trc2"]


def test_what_a_shorthand_sets_comes_from_it() -> None:
    found = by_path("lab_transformer", "strategy=replay", "train.seed=3")
    assert (found["model.replay"].value, found["model.replay"].origin) == (True, "override strategy")
    assert (found["control.mode"].value, found["control.mode"].origin) == ("fixed", "override strategy")
    assert found["model.replay_seed"].value == 3


def test_a_recipe_without_a_stream_has_none() -> None:
    assert by_path("paper_compact")["stream"].value is None


def test_a_run_folder_is_explained_by_its_own_config(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("base: demo\ntrain: {seed: 5}\n")
    assert by_path(str(tmp_path))["train.seed"].origin == str(tmp_path / "config.yaml")
