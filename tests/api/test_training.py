"""`trc2.train` and the run it returns."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path

import pytest

import trc2
from tests.command import trc2 as command
from tests.conftest import tiny_config
from trc2 import Run, TaskConfig, UserError, load_run
from trc2.api import train
from trc2.api.arguments import as_overrides, run_config, task_configs
from trc2.runs.folder import RunFolder
from trc2.verify.kill_tests import compare_runs

SETTINGS = {
    "model": tiny_config(vocab_size=300, max_positions=32, replay_chunk_length=8, memory_slots=64).model_dump(),
    "train": {"sequence_length": 16, "batch_size": 2, "warmup_steps": 2},
    "control": {"every_steps": 4},
    "eval": {"every_steps": 3, "batch_size": 4, "max_batches": 2},
}


def texts(word: str, count: int = 40) -> list[str]:
    return [f"{word} {number} and {word} again, said {word}, {number * 7} times." for number in range(count)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def begin(folder: Path, cache: Path, **changes: object) -> Run:
    stream = {"cache": cache, "tokenizer": {"vocab_size": 300}, "control_batches": 1}
    given = {"fruit": texts("pear", 80), "tools": {"train": texts("saw"), "validation": texts("axe", 5)}}
    return train("demo", given, steps=4, folder=folder, quiet=True, stream=stream, **{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Run:
    return begin(tmp_path_factory.mktemp("runs") / "run", cache)


def test_it_says_what_was_learned_and_lost(run: Run) -> None:
    assert repr(run) == f"Run('{run.folder}', fruit → tools, finished)"
    scores = run.scores()
    assert list(scores) == ["fruit", "tools"]
    assert scores["fruit"].before is not None
    assert scores["fruit"].learned is not None
    assert scores["fruit"].learned < scores["fruit"].before
    assert scores["tools"].learned == scores["tools"].kept  # the last task has just been learned
    assert scores["tools"].test is None  # no test texts were given
    lost = run.forgetting()
    assert list(lost.tasks) == ["fruit"]
    assert lost.mean == lost.tasks["fruit"]
    assert run.history()[8] == {"fruit": scores["fruit"].kept, "tools": scores["tools"].kept}
    assert run.parent is None
    assert run.verdict() is None
    with pytest.raises(UserError, match="did you mean 'perplexity'"):
        run.forgetting("perplexty")


def test_a_notebook_shows_a_table_and_a_picture(run: Run) -> None:
    page = run._repr_html_()
    assert "<td>fruit</td>" in page
    assert "data:image/png;base64," in page
    assert run._repr_png_()[:4] == b"\x89PNG"
    assert run.figure()._repr_png_()[:4] == b"\x89PNG"
    assert run.figure("hippocampus").axes
    with pytest.raises(UserError, match="did you mean 'summary'"):
        run.figure("sumary")
    assert "<pre>" in Run("nowhere")._repr_html_()


def test_it_speaks_and_scores_texts(run: Run) -> None:
    assert run.generate("pear", max_new_tokens=5, seed=1) == run.generate("pear", max_new_tokens=5, seed=1)
    known, other = run.evaluate(texts("pear", 5)), run.evaluate(["ZQX!" * 20, "ÄÖÜ" * 20])
    assert known["perplexity"] < other["perplexity"]
    assert run.evaluate(texts("pear", 5), memory="off")["loss"] != known["loss"]
    with pytest.raises(UserError, match="use 'read' or 'off'"):
        run.generate(memory="write")  # type: ignore[arg-type]


def test_the_command_line_resumes_what_python_began(run: Run, tmp_path: Path) -> None:
    """Cut back to its first boundary, it goes on to the same bits. The texts are where the config says."""
    whole = run.folder
    shutil.copytree(whole, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    for path in sorted(folder.checkpoints.iterdir())[1:]:
        shutil.rmtree(path)
    assert command("resume", str(folder)).code == 0
    assert compare_runs(whole, folder.path)[0] == []
    assert load_run(folder.path).scores() == run.scores()


def test_the_same_lists_are_the_same_data_and_another_folder(run: Run, cache: Path) -> None:
    before = sorted((cache / "tasks").iterdir())
    again = begin(run.folder.with_name("again"), cache, train={**SETTINGS["train"], "seed": 5})
    assert sorted((cache / "tasks").iterdir()) == before
    assert RunFolder(again.folder).data()["fingerprint"] == RunFolder(run.folder).data()["fingerprint"]
    assert again.config.train.seed == 5
    assert again.config.model.replay_seed == 5


def test_a_child_of_several_tasks_is_judged_against_its_parent(run: Run) -> None:
    child = run.continue_(
        {"law": texts("law"), "tax": texts("tax")}, steps={"law": 3, "tax": 2}, max_forgetting=1e9, quiet=True,
        overrides=["train.learning_rate=1e-4"],
    )  # fmt: skip
    assert child.folder == run.folder.with_name("run+law+tax")
    assert child.parent == str(run.folder)
    verdict = child.verdict()
    assert verdict is not None
    assert verdict["passed"] is True
    assert list(verdict["tasks"]) == ["fruit", "tools"]
    assert child.config.train.learning_rate == 1e-4
    assert "| law |" in child.summary()
    with pytest.raises(UserError, match="is not a limit"):
        run.continue_({"x": texts("x")}, max_forgetting=float("nan"))


def test_a_folder_that_is_taken_gets_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trc2.api import functions as training

    monkeypatch.setattr(training, "train_or_resume", lambda config, console: config.output.folder)
    monkeypatch.setattr(training, "write_summary", lambda folder: [])
    monkeypatch.chdir(tmp_path)
    assert trc2.train("demo").folder == Path("runs/demo/trc2")
    (tmp_path / "runs" / "demo" / "trc2").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "trc2" / "metrics.jsonl").touch()
    assert trc2.train("demo").folder == Path("runs/demo/trc2-2")
    assert trc2.train("demo", folder="mine").folder == Path("mine")


def test_the_public_train_is_a_plain_function() -> None:
    import trc2.training.loop  # importing the trainer does not hide the function

    assert trc2.train is train
    assert inspect.isfunction(trc2.train)
    with pytest.raises(UserError, match="did you mean 'demo'"):
        trc2.train("demmo")


def test_settings_are_given_by_section_or_as_overrides(tmp_path: Path) -> None:
    given = {"model": "transformer", "train": {"seed": 3, "betas": (0.9, 0.99)}, "stream": {"cache": Path("c")}}
    assert as_overrides(given) == [
        'model="transformer"', "train.seed=3", "train.betas=[0.9, 0.99]", 'stream.cache="c"',
    ]  # fmt: skip
    config = run_config("demo", None, 7, ["train.seed=4"])
    assert config.stream is not None
    assert {task.steps for task in config.stream.tasks} == {7}
    changed = run_config(config, {"a": TaskConfig(name="b", builtin="code")}, {"a": 3}, ["train.seed=9"])
    assert changed.stream is not None
    assert [(task.name, task.builtin, task.steps) for task in changed.stream.tasks] == [("a", "code", 3)]
    assert changed.model.replay_seed == 9
    (tmp_path / "news.txt").write_text("hello")
    (task,) = task_configs({"news": tmp_path / "news.txt"}, None, tmp_path)
    assert task.folder == str(tmp_path / "news.txt")


def test_rows_and_datasets_are_documents_like_strings(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="pip install 'trc2[data]'")
    given = ["one text", "another text"]
    rows = [{"text": text, "id": number} for number, text in enumerate(given)]
    dataset = datasets.Dataset.from_list(rows)
    forms = [given, rows, dataset, datasets.DatasetDict(train=dataset)]
    assert len({task_configs({"news": form}, None, tmp_path)[0].folder for form in forms}) == 1
    frame = pytest.importorskip("pandas").DataFrame(rows)
    with pytest.raises(UserError, match=r"table\['text'\]"):
        task_configs({"news": frame}, None, tmp_path)
    assert (
        task_configs({"news": frame["text"]}, None, tmp_path)[0].folder
        == task_configs({"news": given}, None, tmp_path)[0].folder
    )


def test_a_section_with_a_name_is_the_same_as_the_override_of_that_name() -> None:
    given = as_overrides({"model": {"name": "transformer", "d_ff": 96}, "strategy": {"name": "ewc", "strength": 5.0}})
    assert run_config("demo", None, None, given) == run_config(
        "demo", None, None, ["model=transformer", "model.d_ff=96", "strategy=ewc", "strategy.strength=5.0"]
    )


@pytest.mark.parametrize(
    ("tasks", "steps", "sentence"),
    [
        ({}, None, "names no task"),
        (["a"], None, "names no task"),
        ({"A b": ["x"]}, None, "name='A b' is not valid: use lower-case letters and digits, .* '_' and '-'"),
        ({"a": "no folder"}, None, "not a folder or file"),
        ({"a": ["x", 3]}, None, "Text 2 of task 'a' is 3"),
        ({"a": [{"text": "x"}, {"body": "y"}]}, None, "Text 2 of task 'a' is {'body': 'y'}"),
        ({"a": "hello world " * 3000}, None, "not a folder or file"),
        ({"a": "hello\0world"}, None, "not a folder or file"),
        ({"a": []}, None, "empty list"),
        ({"a": {"validation": ["x"]}}, None, "no texts of 'train'"),
        ({"a": {"trane": ["x"]}}, None, "did you mean 'train'"),
        ({"a": {"train": "x"}}, None, "list of strings"),
        ({"a": ["x"]}, {"b": 3}, "steps names 'b'"),
    ],
)
def test_what_is_no_task_is_told_in_a_sentence(tasks: object, steps: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        task_configs(tasks, steps, tmp_path)  # type: ignore[arg-type]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_setting_that_cannot_be_written_is_told_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"train\.seed=.* is not a setting"):
        as_overrides({"train": {"seed": object()}})
    with pytest.raises(UserError, match="Unknown setting 'step'"):
        run_config("demo", None, None, as_overrides({"step": 3}))
    with pytest.raises(UserError, match="is not a run folder"):
        load_run("nowhere")
