"""Backbones, strategies and metrics of other packages. The sample package is the one docs/plugins.md shows."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.command import trc2
from trc2.backbones.registry import build_model
from trc2.backbones.saved import load_model, save_model
from trc2.backbones.transformer import TransformerConfig
from trc2.config import RunConfig, load_recipe, model_config, settings_text
from trc2.config.explain import explain
from trc2.config.metric import register_metric
from trc2.errors import UserError
from trc2.report.run import read_run
from trc2.runs.checkpoint import load_checkpoint
from trc2.runs.folder import RunFolder
from trc2.strategies import Strategy, register_strategy
from trc2.system import plugins
from trc2.system.plugins import MetricPlugin, blamed, installed_names
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_tests import compare_runs

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
QUIET = Console(quiet=True)
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes a package as pip would leave it: modules, and a dist-info folder with entry_points.txt."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    known = set(sys.modules)

    def make(name: str, entries: dict[str, dict[str, str]], modules: dict[str, str]) -> None:
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for group, own in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(groups))
        for path, code in modules.items():
            (site / path).parent.mkdir(exist_ok=True)
            (site / path).write_text(code)

    yield make
    for module in set(sys.modules) - known:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(site)):
            del sys.modules[module]
    plugins._loaded.clear()


@pytest.fixture
def sample(install: Install) -> None:
    """The package of the page."""
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    groups = dict(re.findall(r'\[project\.entry-points\."([\w.]+)"\]\n((?:\w+ = .*\n?)+)', toml))
    entries = {group: dict(re.findall(r'(\w+) = "(.*)"', text)) for group, text in groups.items()}
    blocks = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(entries) == len(blocks) == 3
    install("trc2-sample", entries, dict(blocks))


MakeRun = Callable[..., RunConfig]


def test_those_of_the_page_train_are_saved_and_resume_to_the_bit(
    sample: None, tiny_run: MakeRun, tmp_path: Path
) -> None:
    config = tiny_run(
        strategy={"name": "slow_down", "factor": 0.25}, eval={"metrics": "word_overlap", "text_sequences": 2}
    )
    model = {**config.model.model_dump(include={"vocab_size", "d_model", "max_positions"}), "num_layers": 2}
    config = config.replace(model={"name": "narrow", **model, "num_heads": 4})
    whole = start_run(config, QUIET)
    run = read_run(whole)
    assert {record.metrics.get("strategy/factor") for record in run.records if record.kind == "train"} == {None, 0.25}
    assert 0.0 <= run.final("eval")["eval/fruit/word_overlap"] <= 1.0
    assert "cl/word_overlap/forgetting" in run.summary("word_overlap")
    assert build_model(config.model).config.name == "narrow"

    cut = RunFolder(Path(shutil.copytree(whole, tmp_path / "cut")))
    for path in sorted(cut.checkpoints.iterdir())[1:]:
        shutil.rmtree(path)
    resume_run(cut.path, [], QUIET)
    assert compare_runs(whole, cut.path)[0] == []

    net, _ = cut.model(print)
    save_model(net, tmp_path / "model")
    assert load_model(tmp_path / "model").config == net.config


@pytest.fixture
def registered() -> Iterator[None]:
    """What the page registers, in this process."""
    (block,) = re.findall(r"```python\n(import trc2\n.*?register_metric.*?)```", PAGE, flags=re.DOTALL)
    exec(block, {})
    yield
    plugins._registered.clear()


def test_what_a_script_registers_trains_and_resumes_here_and_is_refused_elsewhere(
    registered: None, tiny_run: MakeRun, tmp_path: Path
) -> None:
    whole = start_run(
        tiny_run(strategy={"name": "freeze_embeddings"}, eval={"metrics": "same_length", "text_sequences": 2}), QUIET
    )
    assert read_run(whole).final("eval")["eval/fruit/same_length"] > 0
    cut = RunFolder(Path(shutil.copytree(whole, tmp_path / "cut")))
    saved = sorted(cut.checkpoints.iterdir())
    tables = [load_checkpoint(path).part("model") for path in saved]
    (name,) = [name for name in tables[0] if name.endswith("embedding.weight")]
    assert len(saved) > 1
    assert all(torch.equal(table[name], tables[0][name]) for table in tables)  # grad = None freezes to the bit
    for path in saved[1:]:
        shutil.rmtree(path)
    resume_run(cut.path, [], QUIET)
    assert compare_runs(whole, cut.path)[0] == []
    assert "strategy freeze_embeddings" in trc2("recipes", "freeze").out

    plugins._registered.clear()
    with pytest.raises(UserError, match=r"no strategy 'freeze_embeddings'.*register it again"):
        resume_run(cut.path, [], QUIET)
    with pytest.raises(UserError, match=r"no metric 'same_length'.*register it again"):
        load_recipe("demo", ["eval.metrics=same_length", "eval.text_sequences=4"])


def test_what_cannot_be_registered_is_told_in_a_sentence() -> None:
    with pytest.raises(UserError, match="'ewc' is a strategy of trc2 itself"):
        register_strategy(Strategy, name="ewc")
    with pytest.raises(UserError, match="cannot be called ''"):
        register_strategy(Strategy)
    with pytest.raises(UserError, match="3 is not a strategy"):
        register_strategy(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"give a trc2\.MetricPlugin"):
        register_metric("mine", print)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="'bleu' is a score of every run"):
        register_metric("bleu", MetricPlugin(lambda a, b: 0.0, higher_is_better=True))


def test_the_cost_of_a_mixer_on_the_page_counts_its_products() -> None:
    (block,) = re.findall(r"```python\n(from trc2\.backbones\.costs [^`]*?mean_cost[^`]*)```", PAGE)
    names: dict[str, Any] = {}
    exec(block, names)
    config = model_config({"name": "transformer", "vocab_size": 50, "d_model": 16, "num_layers": 2, "num_heads": 2})
    assert isinstance(config, TransformerConfig)
    cost = names["mean_cost"](config, 3, 7)
    tokens, width = 21, 16
    assert cost["blocks"].forward == 2 * (2 * tokens * width * width + 6 * tokens * width * config.ff_dim)
    assert cost["blocks"].training == 3 * cost["blocks"].forward


def test_a_report_shows_the_metric_wherever_it_shows_scores(sample: None, tiny_run: MakeRun, tmp_path: Path) -> None:
    scored = {"metrics": "word_overlap", "text_sequences": 2}
    run = start_run(tiny_run(eval=scored, output={"folder": tmp_path / "runs" / "one"}), QUIET)
    shutil.copytree(run, run.with_name("two"))
    done = trc2("report", str(tmp_path / "runs"))
    assert done.code == 0, done.err
    tables = tmp_path / "runs" / "tables"
    assert "word overlap" in (tables / "boundary.md").read_text()
    assert "AUFC word_overlap" in (tables / "aufc.md").read_text()
    assert "word overlap" in (tmp_path / "runs" / "report.html").read_text()


def test_a_run_is_read_where_its_metric_is_not_installed_but_not_trained_by_a_stranger(
    sample: None, tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tiny_run(eval={"metrics": "word_overlap"}).model_dump(mode="json")
    strange = tiny_run(strategy={"name": "slow_down"}).model_dump(mode="json")
    assert kept["eval"]["metrics"][0]["higher_is_better"] is True
    monkeypatch.setattr(sys, "path", sys.path[1:])
    for name in [name for name in sys.modules if name.startswith("trc2_sample")]:
        monkeypatch.delitem(sys.modules, name)
    assert RunConfig(**kept).eval.metrics[0].name == "word_overlap"
    with pytest.raises(UserError, match=r"There is no strategy 'slow_down'"):
        RunConfig(**strange)
    with pytest.raises(UserError, match=r"There is no backbone 'narrow'"):
        model_config({"name": "narrow"})
    assert not [name for name in sys.modules if name.startswith("trc2_sample")]


def test_they_are_listed_explained_and_guessed_at(sample: None) -> None:
    listed = trc2("recipes")
    assert "strategy slow_down" in listed.out
    assert "trc2-sample 1.0" in listed.out
    assert "backbone narrow" in trc2("recipes", "narrow").out
    (setting,) = [s for s in explain("demo", ["strategy=slow_down"]) if s.path == "strategy.factor"]
    assert setting.meaning == "by what gradients are multiplied after the first task"
    assert "model.num_layers" in [s.path for s in explain("demo", ["model=narrow"])]
    for override, hint in (
        ("strategy=slow_dwn", "did you mean 'slow_down'"),
        ("model=narow", "did you mean 'narrow'"),
        ("eval.metrics=[word_overlp]", "did you mean 'word_overlap'"),
        ("eval.metrics=[perplexity]", "is a score of every run already"),
        ("strategy.facto=1", "Unknown setting"),
    ):
        with pytest.raises(UserError, match=hint):
            load_recipe("demo", [override, "eval.text_sequences=4"])
    with pytest.raises(UserError, match=r"eval\.text_sequences=0"):
        load_recipe("demo", ["eval.metrics=word_overlap"])


BROKEN = {
    "absent": ("trc2.strategies", "no_such_module_at_all", "ModuleNotFoundError"),
    "raises": ("trc2.strategies", "broken.raises", "RuntimeError: boom"),
    "leaves": ("trc2.strategies", "broken.leaves", "SystemExit"),
    "empty": ("trc2.strategies", "broken.empty", "no Settings"),
    "bare": ("trc2.backbones", "broken.empty", "no Config"),
    "renamed": ("trc2.strategies", "broken.renamed", "is not 'renamed'"),
    "number": ("trc2.metrics", "broken.empty:NUMBER", "not a trc2.MetricPlugin"),
    "Odd": ("trc2.strategies", "broken.empty", "small letters"),
}
MODULES = {
    "broken/__init__.py": "",
    "broken/raises.py": "raise RuntimeError('boom')",
    "broken/leaves.py": "import sys; sys.exit(5)",
    "broken/empty.py": "NUMBER = 3",
    "broken/renamed.py": (
        "from typing import Literal\nfrom trc2.config import StrategyConfig\n"
        "class Settings(StrategyConfig):\n    name: Literal['other'] = 'other'\nbuild = print\n"
    ),
}


def test_a_broken_one_is_one_sentence_with_its_package_and_troubles_nobody_else(install: Install) -> None:
    entries: dict[str, dict[str, str]] = {}
    for name, (group, value, _) in BROKEN.items():
        entries.setdefault(group, {})[name] = value
    install("broken-things", entries, MODULES)
    assert load_recipe("demo", ["strategy=ewc"]).strategy.name == "ewc"
    assert trc2("recipes").code == 0
    assert not [name for name in sys.modules if name.startswith("broken")]  # listing imports nothing
    words = {"trc2.strategies": "strategy={}", "trc2.backbones": "model={}", "trc2.metrics": "eval.metrics={}"}
    for name, (group, _, reason) in BROKEN.items():
        done = trc2("config", "demo", words[group].format(name), "eval.text_sequences=4")
        assert done.code == 2
        assert f"'{name}' of package broken-things 1.0 cannot be used" in done.err, done.err
        assert reason in done.err, done.err
        assert len(done.err.strip().splitlines()) == 1


CLUMSY = """
import sys
from typing import Literal
from trc2.config import StrategyConfig
from trc2.strategies import Strategy
from trc2.system.plugins import MetricPlugin
class Settings(StrategyConfig):
    name: Literal["trips"] = "trips"
    leaves: bool = False
class Trips(Strategy):
    def __init__(self, model, settings):
        super().__init__(model, settings)
        self.leaves = settings.leaves
    def correct_gradients(self, step):
        return sys.exit(0) if self.leaves else {}["nothing"]
build = Trips
def closes(predictions, references):
    raise GeneratorExit
STUMBLES = MetricPlugin(lambda predictions, references: 1 / 0, higher_is_better=False, reads="tokens")
LEAVES = MetricPlugin(lambda predictions, references: sys.exit(0), higher_is_better=False)
CLOSES = MetricPlugin(closes, higher_is_better=False)
"""


@pytest.fixture
def clumsy(install: Install) -> None:
    metrics = {name: f"clumsy:{name.upper()}" for name in ("stumbles", "leaves", "closes")}
    install("clumsy", {"trc2.strategies": {"trips": "clumsy"}, "trc2.metrics": metrics}, {"clumsy.py": CLUMSY})


def test_one_that_fails_while_it_trains_is_blamed_at_the_border(
    clumsy: None, tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError) as found:
        start_run(tiny_run(strategy={"name": "trips"}), QUIET)
    sentence = blamed(found.value)
    assert sentence is not None
    assert "'trips' of package clumsy 1.0 failed at clumsy.py:15 (KeyError: 'nothing')" in sentence
    with pytest.raises(UserError, match=r"'stumbles' of package clumsy 1\.0 cannot be used"):
        start_run(tiny_run(eval={"metrics": ["stumbles"]}, output={"folder": tmp_path / "never"}), QUIET)
    with pytest.raises(KeyError) as ours:
        dict[str, str]()["ours"]
    assert blamed(ours.value) is None

    def fails(*_: object) -> None:
        raise found.value

    monkeypatch.setattr("trc2.config.explain.explain", fails)
    done = trc2("config", "demo")
    assert done.code == 2
    assert "clumsy 1.0 failed" in done.err


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": {"name": "trips", "leaves": True}},
        {"eval": {"metrics": ["leaves"]}},
        {"eval": {"metrics": ["closes"]}},
    ],
)
def test_one_that_exits_is_an_error_of_the_plugin(
    clumsy: None, tiny_run: MakeRun, tmp_path: Path, change: dict[str, dict[str, object]]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(settings_text(tiny_run(**change).model_dump(mode="json")))
    done = trc2("train", str(recipe))
    assert done.code == 2
    assert "of package clumsy 1.0" in " ".join(done.err.split())


def test_two_packages_of_one_name_are_refused_only_when_it_is_asked_for(install: Install) -> None:
    for name in ("one", "two"):
        install(name, {"trc2.strategies": {"same": "nowhere"}}, {})
    assert installed_names("strategy") == ["same", "same"]
    assert load_recipe("demo").strategy.name == "none"
    with pytest.raises(
        UserError, match=r"several strategy plug-ins called .same. \(of package one 1\.0 and of package two 1\.0\)"
    ):
        load_recipe("demo", ["strategy=same"])
