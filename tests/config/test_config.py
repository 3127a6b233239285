from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from trc2 import RunConfig, TRC2Config, UserError, load_recipe
from trc2.config import (
    MODELS,
    BudgetConfig,
    EvalConfig,
    OutputConfig,
    ReplayControlConfig,
    StreamConfig,
    TaskConfig,
    TokenizerConfig,
    TrainConfig,
    round_up,
    strategy_names,
)
from trc2.config.pretrained import HFConfig
from trc2.config.strategy import strategy_class

SECTIONS: list[type[BaseModel]] = [
    *MODELS.values(), BudgetConfig, EvalConfig, OutputConfig, ReplayControlConfig, StreamConfig, TaskConfig,
    TokenizerConfig, TrainConfig, *map(strategy_class, strategy_names()),
]  # fmt: skip


def leaves(annotation: Any) -> set[Any]:
    inner = get_args(annotation)
    return {annotation} if not inner else set().union(*(leaves(part) for part in inner))


NUMBERS = [
    pytest.param(section, name, id=f"{section.__module__.split('.')[-1]}.{section.__name__}.{name}")
    for section in SECTIONS
    for name, field in section.model_fields.items()
    if leaves(field.annotation) & {int, float}
]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"d_modl": 3}, "Unknown setting 'd_modl': did you mean 'd_model'?"),
        ({"d_model": 10}, "d_model=10 is not divisible by num_heads=8: choose a multiple of 8."),
        ({"num_kv_heads": 3}, "num_heads=8 is not divisible by num_kv_heads=3: choose a multiple of 3."),
        ({"thalamic_rank": 16, "thalamic_groups": 3}, "thalamic_rank=16 is not divisible by thalamic_groups=3: choose"),
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


@pytest.mark.parametrize(("section", "name"), NUMBERS)
def test_every_number_is_finite_bounded_and_no_truth(section: type[BaseModel], name: str) -> None:
    annotation = section.model_fields[name].annotation
    task = {"name": "x", "builtin": "prose"}
    folder = {"pretrained": "x", "architecture": {}, "num_layers": 1, "num_parameters": 1, "num_active": 1}
    folder |= {"vocab_size": 1, "d_model": 1, "max_positions": 1}
    needed: dict[Any, Any] = {StreamConfig: {"tasks": [task]}, TaskConfig: task, HFConfig: folder}
    rest: dict[str, Any] = needed.get(section, {})
    too_large = [] if float in leaves(annotation) else [10**30, 10**5000]
    for value in (math.inf, -math.inf, math.nan, "inf", "9" * 5000, True, False, *too_large):
        with pytest.raises(UserError) as caught:
            section(**{**rest, name: [value, value] if "tuple" in str(annotation) else value})
        assert str(caught.value).startswith(name)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["train.seed=2024-13-45"], "train.seed='2024-13-45' is not valid: input should be a valid integer"),
        (["train.seed=4294967296"], "train.seed=4294967296 is not valid"),
        (["model.replay_seed=4294967296"], "model.replay_seed=4294967296 is not valid"),
        (["train.betas=[true, 0.5]"], "train.betas=[True, 0.5] is not valid: give a number, not true or false."),
        (["model.d_model=true"], "model.d_model=True is not valid: give a number, not true or false."),
        (["model.num_shared_experts=true"], "model.num_shared_experts=True is not valid: give a number"),
        (["train.betas=[.inf, 0.5]"], "train.betas.0=inf is not valid: input should be a finite number."),
        (["output.threads=1000000"], "output.threads=1000000 is not valid"),
        (["model=[1]"], "model=[1] is not valid"),
        (["model=null", "strategy=ewc"], "model=None is not valid"),
        (["control=3", "strategy=ewc"], "control=3 is not valid"),
        (["model.name=[1]"], "model.name: There is no backbone [1]: choose one of"),
        (["model.name=[1]", "strategy=ewc"], "model.name: There is no backbone [1]: choose one of"),
        (["model=trcc"], "model.name: There is no backbone 'trcc': did you mean 'trc2'?"),
        (["strategy=[1]"], "strategy=[1] is not valid"),
        (["strategy.name={}"], "strategy.name: There is no strategy {}: choose one of"),
        (["strategy=ewk"], "strategy.name: There is no strategy 'ewk': did you mean 'ewc'?"),
        (["strategy=replai"], "strategy.name: There is no strategy 'replai': did you mean 'replay'?"),
        (["strategy=ewc", "strategy.decai=1"], "Unknown setting 'strategy.decai': did you mean 'decay'?"),
        (["strategy=l2", "strategy.ewc_strenght=1"], "Unknown setting 'strategy.ewc_strenght'"),
        (["strategy={1: 2}"], "The override 'strategy={1: 2}' has no readable value"),
        (["model..x=1"], "The override 'model..x=1' leads to no setting"),
        ([".=1"], "The override '.=1' leads to no setting"),
        (["a." * 1000 + "b=1"], "The override 'a.a.a"),
        (["=1"], "The override '=1' has no value"),
        (["model.d_model"], "The override 'model.d_model' has no value"),
        (["model.d_model=["], "The override 'model.d_model=[' has no readable value"),
        (["model.d_model=" + "9" * 5000], "The override 'model.d_model=999"),
        (["stream.tasks.3.steps=1"], "The override 'stream.tasks.3.steps=1' names no item '3': there are 3, counted"),
        (["stream.tasks.prosa.steps=1"], "The override 'stream.tasks.prosa.steps=1' names no item 'prosa': did you m"),
        (["stream.tasks.-1.steps=1"], "The override 'stream.tasks.-1.steps=1' names no item '-1': choose one of ari"),
        (["stream.tasks.0.steps.x=1"], "The override 'stream.tasks.0.steps.x=1' goes into 'steps', which is a value"),
        (["stream.tasks.prose.name=1", "stream.tasks.1.steps=2"], "stream.tasks.0.name=1 is not valid"),
        (["stream.tasks.prose.name='1'", "stream.tasks.1.steps=2"], "The override 'stream.tasks.1.steps=2' may mean"),
        (["train.betas.2=0.5"], "The override 'train.betas.2=0.5' names no item '2': there are 2, counted from 0."),
        (["train.nothing.0=0.5"], "Unknown setting 'train.nothing'"),
        (["self=1"], "Unknown setting 'self'"),
        (["model.self=1"], "Unknown setting 'model.self'"),
        (["control.coefficient_range=[0.2, 0.1]"], "control: coefficient_range=[0.2, 0.1] is reversed"),
        (["control.batch_range=[6, 2]"], "control: batch_range=[6, 2] is reversed"),
        (["model.replay_coefficient=0.2"], "model.replay_coefficient=0.2 is outside control.coefficient_range=[0.0"),
        (["model.replay_batch_size=7"], "model.replay_batch_size=7 is outside control.batch_range=[2, 6]"),
        (['output.folder="a\\0b"'], "output.folder='a\\x00b' holds a NUL or is not UTF-8"),
        (["output.folder=~nobody-of-this-name/x"], "output.folder: ~nobody-of-this-name/x begins with the home of"),
        (["model.num_columns=2000000000"], "model: The depth of 2000000000 gives a network of 8000000000 blocks"),
        (["model={name: lora_drs, num_adapters: 1000000}"], "model: The depth of 20 gives a network of 20000020"),
        (["model={name: deepseek_moe, num_experts: 1000000}"], "model: The depth of 20 gives a network of 20000000"),
    ],
)
def test_an_odd_override_is_one_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("demo", overrides)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_agem_understands_the_same_words_for_a_switch_before_the_model_is_checked() -> None:
    assert load_recipe("demo", ["strategy=agem", "model.replay=off"]).control.mode == "off"


def test_the_papers_control_is_valid_and_a_fixed_one_may_lie_anywhere() -> None:
    strong = ["model.replay_coefficient=2.0", "model.replay_batch_size=16"]
    assert load_recipe("demo").model.replay_coefficient == 0.05
    assert load_recipe("demo", ["control.mode=fixed", *strong]).model.replay_batch_size == 16
    assert load_recipe("demo", ["model.replay=false", *strong]).control.mode == "closed_loop"
    alone = TRC2Config(replay_coefficient=2.0, replay_batch_size=16)  # an exported model has no controller
    assert RunConfig(model=alone).model == alone


def test_a_home_folder_is_expanded_and_a_relative_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert OutputConfig(folder="~/x").folder == Path("/home/somebody/x")
    assert OutputConfig(folder="runs/x").folder == Path("runs/x")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": {"d_modl": 3}}, "Unknown setting 'model.d_modl': did you mean 'd_model'?"),
        ({"modl": {}}, "Unknown setting 'modl': did you mean 'model'?"),
        ({"model": {"d_model": 10}}, "model: d_model=10 is not divisible by num_heads=8"),
        ({}, "The setting 'model' is missing: add it."),
        ({"model": {}, "train": {"sequence_length": 64}}, "model.replay_chunk_length=128 is longer than train.seq"),
        ({"model": {}, "train": {"sequence_length": 2048}}, "train.sequence_length=2048 is longer than model.max_pos"),
        ({"model": {1: 2}}, "model: There is a setting called 1, which is not a name"),
        ({"model": {}, "train": {1: 2}}, "train: There is a setting called 1, which is not a name"),
        ({"model": {}, "strategy": {None: 2}}, "strategy: There is a setting called None"),
        ({"model": {}, "stream": {"tasks": [{(): 1}]}}, "stream.tasks: There is a setting called ()"),
        ({"model": {}, "output": {"folder": Path("x\udcff")}}, "output.folder=PosixPath('x\\udcff') holds a NUL or is"),
        ({"model": {"d_model": 10**5000}}, "model.d_model=a very long int is not valid"),
        ({"model": {"d_model": "x" * 10**6}}, "model.d_model='xxx"),
        ({"model": {"x" * 10**6: 1}}, "Unknown setting 'model.xxx"),
        ({"model": {}, "strategy": {"name": "x" * 10**6}}, "strategy.name: There is no strategy 'xxx"),
    ],
)
def test_bad_settings_of_a_run_are_one_short_sentence_with_the_path(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        RunConfig(**settings)
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value)) < 1500


WORDS = st.sampled_from(["model", "strategy", "train", "control", "name", "seed", "d_model", "mode", "x", ""])
ODDITIES = st.sampled_from([
    "off", "[1]", "{}", "{a: {}}", "null", "true", "-1", "1e9", ".nan", "99999999999999999999", "'", "*a", "ewc",
    "trc2",
])  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=3), ODDITIES | st.text()), min_size=1, max_size=3))
def test_any_override_gives_a_config_or_a_sentence(overrides: list[tuple[list[str], str]]) -> None:
    told = ""
    try:
        load_recipe("paper_compact", [f"{'.'.join(path)}={value}" for path, value in overrides])
    except UserError as error:
        told = str(error)
    assert len(told) < 1500


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        TRC2Config().d_model = 3  # type: ignore[misc]


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


def test_a_base_that_leads_in_a_circle_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("base: ./a.yaml\nmodel: {}")
    with pytest.raises(UserError, match=r"base: ./a.yaml names itself"):
        load_recipe("a.yaml")
    Path("b.yaml").write_text("base: c.yaml")
    Path("c.yaml").write_text("base: b.yaml")
    with pytest.raises(UserError, match=r"base: b.yaml → c.yaml → b.yaml comes back"):
        load_recipe("b.yaml")
    Path("d.yaml").write_text("base: [1]")
    with pytest.raises(UserError, match=r"d.yaml has base=\[1\], which is not a name"):
        load_recipe("d.yaml")
    for number in range(30):
        Path(f"n{number}.yaml").write_text(f"base: n{number + 1}.yaml")
    with pytest.raises(UserError, match="is a chain of more than 16"):
        load_recipe("n0.yaml")
    Path("demo.yaml").write_text("base: demo")  # a recipe of the package goes before a file of its name
    assert load_recipe("./demo.yaml") == load_recipe("demo")


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "no/such/file", "demo/x", "../demo"])
def test_a_name_that_no_file_can_have_is_told(name: str) -> None:
    with pytest.raises(UserError, match="There is no recipe or file"):
        load_recipe(name)


def test_a_device_is_no_recipe() -> None:
    with pytest.raises(UserError, match="is not a regular file"):
        load_recipe("/dev/zero")


def test_derived_sizes_are_those_of_the_paper() -> None:
    assert [round_up(8 * d / 3, 256) for d in (256, 512, 768, 1024)] == [768, 1536, 2048, 2816]
    assert TRC2Config(d_model=768).rank == 96
    early = [TRC2Config(num_columns=n).num_early_columns for n in (1, 2, 3, 4, 6, 8, 10, 24)]
    assert early == [1, 1, 2, 2, 4, 5, 6, 16]


def test_a_seed_is_a_seed_of_replay_too() -> None:
    assert load_recipe("demo", ["train.seed=5"]).model.replay_seed == 5
    assert load_recipe("demo", ["train.seed=5", "model.replay_seed=0"]).model.replay_seed == 0


def test_an_override_reaches_an_item_of_a_list_by_number_and_by_name() -> None:
    run = load_recipe("demo", ["stream.tasks.0.steps=7", "stream.tasks.code.steps=8", "train.betas.1=0.5"])
    assert run.stream is not None
    assert [task.steps for task in run.stream.tasks] == [7, 8, 60]
    assert run.train.betas == (0.9, 0.5)
    replaced = load_recipe("demo", ["stream.tasks.2={name: prose2, builtin: prose}"]).stream
    assert replaced is not None
    assert replaced.tasks[2].name == "prose2"


@pytest.mark.parametrize(("word", "truth"), [("on", True), ("yes", True), ("Off", False), ("NO", False)])
def test_a_switch_understands_on_and_off_which_elsewhere_are_words(word: str, truth: bool, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"base: demo\nmodel: {{memory: {word}}}\ncontrol: {{mode: off}}\n")
    for run in (load_recipe(str(recipe)), load_recipe("demo", [f"model.memory={word}", "control.mode=off"])):
        assert run.model.memory is truth  # type: ignore[attr-defined]
        assert run.control.mode == "off"


def test_a_list_of_names_may_be_written_as_words() -> None:
    assert load_recipe("demo", ["output.report_to=tensorboard"]).output.report_to == ("tensorboard",)
    run = load_recipe("demo", ["output.report_to=tensorboard, wandb", "stream.only=code"])
    assert run.output.report_to == ("tensorboard", "wandb")
    assert run.stream is not None
    assert run.stream.only == ("code",)
    with pytest.raises(UserError, match=r"output\.report_to\.0='tensorbord' is not valid"):
        load_recipe("demo", ["output.report_to=tensorbord"])


@pytest.mark.parametrize("name", ["demo", "lab_trc2", "lab_transformer"])
def test_naming_the_backbone_a_recipe_has_changes_nothing(name: str) -> None:
    run = load_recipe(name)
    assert load_recipe(name, [f"model={run.model.name}"]) == run
