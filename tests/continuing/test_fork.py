"""What a child may change, how many tasks it may learn, and from what it may go on."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.command import trc2
from tests.conftest import QUIET, TINY_TASKS, tiny_run_config, write_task
from trc2.backbones.saved import load_model
from trc2.config import TaskConfig, load_recipe, settings_text
from trc2.continuing.acceptance import Verdict
from trc2.continuing.continue_run import continue_run, default_folder
from trc2.continuing.heldout import known_before
from trc2.continuing.request import ContinuationRequest, child_config
from trc2.errors import UserError
from trc2.hf.export import export_run
from trc2.report.run import own_part, read_run
from trc2.report.summary import run_numbers, write_summary
from trc2.runs.checkpoint import load_checkpoint, name_of, weights_of
from trc2.runs.folder import RunFolder
from trc2.runs.lineage import Lineage, read_lineage
from trc2.training.resume import resume_run
from trc2.training.setup import start_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for name, words in {**TINY_TASKS, "colours": ["red", "blue"], "music": ["oboe", "harp"]}.items():
        write_task(root, name, words)
    return root


@pytest.fixture(scope="module")
def parent(data: Path) -> Path:
    """Without replay or strategy, which its children may begin with."""
    config = tiny_run_config(
        data, data / "runs" / "parent", model={"replay": False}, train={"micro_batches": 1}, eval={"text_sequences": 0},
        stream={"tasks": [{"name": name, "folder": name, "steps": 3} for name in TINY_TASKS]},
        output={"checkpoint_every": 200}, control={"every_steps": 20},
    )  # fmt: skip
    return start_run(config, QUIET)


@pytest.fixture(scope="module")
def model(parent: Path) -> Path:
    export_run(parent, parent.with_name("model"), "0")
    return parent.with_name("model")


def task(data: Path, name: str, steps: int = 3) -> TaskConfig:
    return TaskConfig(name=name, folder=str(data / name), steps=steps)


def test_a_link_is_refused_as_a_child_before_anything_is_written(parent: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in ("nothing", "empty"):
        (tmp_path / "child").symlink_to(target)
        with pytest.raises(UserError, match="is a link"):
            continue_run(parent, tmp_path / "child", task(data, "colours"), QUIET)
        (tmp_path / "child").unlink()
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def small(data: Path) -> list[str]:
    """Settings for a saved model, which brings none."""
    sizes = ["train.batch_size=2", "eval.batch_size=4", "eval.max_batches=2", "eval.text_sequences=0"]
    return [*sizes, f"stream.cache={data / 'cache'}"]


def test_two_tasks_with_replay_and_a_strategy_that_the_parent_had_not(parent: Path, data: Path, tmp_path: Path) -> None:
    changes = ["model.replay=true", "model.replay_coefficient=0.1", "strategy=l2", "train.learning_rate=1e-4"]
    told = io.StringIO()
    tasks = [task(data, "colours", 2), task(data, "music", 3)]
    child = continue_run(
        parent, tmp_path / "child", tasks, Console(file=told), overrides=[*changes, "output.log_every=1"]
    )
    run = read_run(child)
    assert [(s.task, s.start, s.end) for s in run.spans][2:] == [("colours", 6, 8), ("music", 8, 11)]
    first = next(record for record in run.records if record.kind == "train" and record.step == 7)
    assert first.metrics["strategy/penalty"] >= 0.0  # tied to the parent's end from the first step on
    assert first.metrics["replay/coefficient"] == pytest.approx(0.1)
    assert first.metrics["train/learning_rate"] <= 1e-4
    assert "step 1/5" in told.getvalue()  # its own steps
    for name in (*TINY_TASKS, "colours", "music"):
        assert told.getvalue().count(f"{name}: 3 files taken") == 1
    assert "step 7" not in told.getvalue()
    lineage, weights = read_lineage(child / "parent.json"), weights_of(parent / "checkpoints" / name_of(6))
    expected = Lineage(str(parent), 6, ("colours", "music"), is_run=True, weights=weights, watched=tuple(TINY_TASKS))
    assert replace(lineage, relative=None) == expected
    assert (child / str(lineage.relative)).samefile(parent)
    assert known_before(RunFolder(child).config(), lineage) == list(TINY_TASKS)
    for path in sorted((child / "checkpoints").iterdir())[1:]:
        path.rename(child / path.name)
    resume_run(child, [], QUIET)  # from what it inherited, to the same end
    (last,) = child.glob("step-00000011")
    assert (last / "tensors.safetensors").read_bytes() == (
        child / "checkpoints" / last.name / "tensors.safetensors"
    ).read_bytes()


def test_the_report_has_the_parent_beside_the_childs_own_steps(parent: Path, data: Path, tmp_path: Path) -> None:
    child = continue_run(parent, tmp_path / "child", task(data, "colours"), QUIET)
    run, lineage = read_run(child), RunFolder(child).lineage()
    assert lineage is not None
    own = own_part(run, lineage)
    assert [(s.task, s.start, s.end) for s in own.spans] == [("fruit", 0, 0), ("tools", 0, 0), ("colours", 0, 3)]
    assert own.tables["perplexity"].steps == [0, 3]
    assert own.score("perplexity", "fruit", 0) == read_run(parent).score("perplexity", "fruit", 6)
    assert {record.step for record in own.records if record.kind == "train"} == {1, 2, 3}
    write_summary(child)
    text = (child / "summary.md").read_text()
    assert f"Goes on from the run {parent} at its step 6." in text.replace("\\", "")
    assert "| task | parent | step 3 |" in text
    assert run_numbers(child)["parent"] == {
        "folder": str(parent), "step": 6, "perplexity": dict(run.tables["perplexity"].scores[6]),
    }  # fmt: skip
    assert run_numbers(parent)["parent"] is None


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.batch_size=4", r"train\.batch_size=4 cannot be set in a run that goes on"),
        ("model.memory_slots=128", r"model\.memory_slots=128 cannot be set"),
        ("model.replay_recent_chunks=8", "cannot be set"),
        ("train.schedule=wsd", "cannot be set"),
        ("train.optimizer=adamw_8bit", "cannot be set"),
        ("budget.match=tokens", "cannot be set"),
        ("stream.tasks.fruit.steps=9", "are over and cannot be changed"),
        ("stream.tasks.colours.name=blue", "would change which tasks"),
        ("train.learning_rat=1", "did you mean 'learning_rate'"),
    ],
)
def test_what_earlier_scores_rest_on_stays(parent: Path, data: Path, override: str, sentence: str) -> None:
    request = ContinuationRequest((task(data, "colours"),), overrides=(override,))
    with pytest.raises(UserError, match=sentence):
        child_config(parent, request, parent.with_name("never"))


def test_a_budget_leaves_tasks_that_are_over_their_steps(parent: Path, data: Path, tmp_path: Path) -> None:
    config = RunFolder(parent).config().replace(budget={"match": "tokens"})
    (tmp_path / "config.yaml").write_text(settings_text(config.model_dump(mode="json")))
    request = ContinuationRequest((task(data, "colours"),))
    with pytest.raises(UserError, match=r"budget\.match=tokens would give the earlier tasks .* other steps"):
        child_config(tmp_path, replace(request, overrides=("model.replay=true",)), tmp_path / "never")
    child_config(tmp_path, request, tmp_path / "never")


def test_settings_of_new_tasks_may_change(parent: Path, data: Path) -> None:
    request = ContinuationRequest(
        (task(data, "colours"),), overrides=("stream.tasks.colours.steps=7", "eval.every_steps=2")
    )
    config = child_config(parent, request, parent.with_name("never"))
    assert config.stream is not None
    assert config.stream.tasks[-1].steps == 7
    assert default_folder(parent, [task(data, "a"), task(data, "b")]) == parent.with_name("parent+a+b")


def test_a_saved_model_goes_on_and_what_it_should_keep_is_judged(model: Path, data: Path, tmp_path: Path) -> None:
    arguments = ["continue", str(model), *small(data), "--task", f"colours={data / 'colours'}", "--steps", "2"]
    unknown = trc2(*arguments, "--out", str(tmp_path / "a"), "--max-forgetting", "0.1")
    assert unknown.code == 2
    assert "does not say what it learned" in unknown.err
    plain = trc2(*arguments, "--out", str(tmp_path / "a"))
    assert plain.code == 0, plain.err
    assert "what was forgotten is unknown" in " ".join(plain.out.split())
    kept = ["--keep", f"fruit={data / 'fruit'}", "--out", str(tmp_path / "b"), "--max-forgetting"]
    assert trc2(*arguments, *kept, "0", "train.learning_rate=3").code == 3
    gate = json.loads((tmp_path / "b" / "acceptance.json").read_text())
    assert list(gate["tasks"]) == ["fruit"]
    run = read_run(tmp_path / "b")
    assert [span.task for span in run.spans] == ["colours"]
    assert run.config.model.replay is True  # the export left its stores behind. The child has new ones
    own = own_part(run, RunFolder(tmp_path / "b").lineage() or pytest.fail("it has a parent"))
    assert [(s.task, s.end) for s in own.spans] == [("fruit", 0), ("colours", 2)]


@pytest.mark.parametrize("value", [("replay_batch_size", 8), ("replay_coefficient", 1.0), ("replay_share", 0.6)])
def test_a_saved_model_goes_on_also_if_its_replay_was_outside_the_usual_range(
    value: tuple[str, float], model: Path, data: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "model"))
    settings = json.loads((copy / "config.json").read_text())
    usual = {"replay_batch_size": 4, "replay_coefficient": 0.05}
    settings["backbone"] |= {**usual, value[0]: value[1]}
    (copy / "config.json").write_text(json.dumps(settings))
    for share in (None, 0.1):
        config = child_config(copy, ContinuationRequest((task(data, "colours"),), share), tmp_path / "child")
        assert config.model.replay_share == (share or (value[1] if value[0] == "replay_share" else None))


def test_a_strategy_that_copies_weights_copies_those_of_the_parent(
    parent: Path, model: Path, data: Path, tmp_path: Path
) -> None:
    """Else the average that is evaluated would begin with random numbers."""
    changes = ["strategy=slow_cortex", "strategy.serve=true", "model.replay=true", "train.learning_rate=1e-6"]
    changes += small(data)
    of_run = continue_run(parent, tmp_path / "a", task(data, "colours", 1), QUIET, overrides=changes)
    of_model = continue_run(
        model, tmp_path / "b", task(data, "colours", 1), QUIET, overrides=changes, keep=[task(data, "fruit")]
    )
    for child, step in ((of_run, 7), (of_model, 1)):
        then, now = read_run(parent).score("perplexity", "fruit", 6), read_run(child).score("perplexity", "fruit", step)
        assert now == pytest.approx(then, rel=1e-3)
    with pytest.raises(UserError, match="is used with the weights of its strategy slow_cortex"):
        child_config(of_run, ContinuationRequest((task(data, "music"),), overrides=("strategy=none",)), tmp_path / "x")


@pytest.mark.parametrize("strategy", ["l2", "lwf", "ewc"])
def test_a_strategy_keeps_to_the_weights_of_a_saved_model(
    strategy: str, model: Path, data: Path, tmp_path: Path
) -> None:
    changes = [f"strategy={strategy}", *small(data)]
    if strategy == "ewc":
        with pytest.raises(UserError, match="a saved model brings none: use l2 or lwf"):
            continue_run(model, tmp_path / "child", task(data, "colours", 1), QUIET, overrides=changes)
        return
    child = continue_run(model, tmp_path / "child", task(data, "colours", 1), QUIET, overrides=changes)
    first = load_checkpoint(RunFolder(child).checkpoints / name_of(0)).part("strategy")
    weights, name = load_model(model).state_dict(), "cortex.embedding.weight"
    (anchor,) = [tensor for path, tensor in first.items() if path.endswith("embedding.weight")]
    assert torch.equal(anchor, weights[name])


def test_a_saved_model_begins_with_its_own_weights(parent: Path, model: Path, data: Path, tmp_path: Path) -> None:
    keep = [task(data, "fruit")]
    child = continue_run(model, tmp_path / "child", task(data, "colours", 1), QUIET, keep=keep, overrides=small(data))
    now, then = read_run(child).score("perplexity", "fruit", 0), read_run(parent).score("perplexity", "fruit", 6)
    assert now == pytest.approx(then, rel=1e-6)


def test_what_fits_nothing_is_told_in_a_sentence(parent: Path, model: Path, data: Path, tmp_path: Path) -> None:
    new = f"colours={data / 'colours'}"
    for arguments, sentence in (
        ([], "name one by --task NAME=FOLDER"),
        (["--task", "a", "--task", "b"], "write it as --task b=FOLDER"),
        (["--task", new, "--builtin", "code"], "--builtin belongs to no task"),
        (["--task", "a="], "names no folder"),
        (["--task", "fruit=x"], "which is not a folder or file"),
        (["--task", new, "--keep", new], "knows its own tasks"),
    ):
        done = trc2("continue", str(parent), *arguments)
        assert (done.code, sentence in done.err) == (2, True), done.err
    with pytest.raises(UserError, match="does not fit the settings"):
        continue_run(model, tmp_path / "x", task(data, "colours"), QUIET, overrides=[
            "model.memory_slots=32", "train.batch_size=2", f"stream.cache={data / 'cache'}",
        ])  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_limit_without_anything_to_look_at_is_not_kept() -> None:
    assert Verdict("p", "c", None, ()).passed
    assert not Verdict("p", "c", 0.1, ()).passed


def test_evaluation_takes_a_small_part_of_a_short_continuation(model: Path, data: Path) -> None:
    overrides = ("train.batch_size=4", "train.sequence_length=32")
    for steps in (3, 40, 1000):
        request = ContinuationRequest((task(data, "colours", steps),), overrides=overrides, keep=(task(data, "fruit"),))
        config = child_config(model, request, data / "never")
        evaluations = 3 + steps // config.eval.every_steps
        assert config.eval.max_batches is not None
        read = evaluations * 2 * config.eval.max_batches * config.eval.batch_size * config.train.sequence_length
        least = evaluations * 2 * config.eval.batch_size * config.train.sequence_length  # one batch each
        assert read <= max(least, steps * config.train.tokens_per_step / 2)
    asked = ContinuationRequest(request.tasks, overrides=(*overrides, "eval.max_batches=7", "eval.text_sequences=32"))
    assert child_config(model, asked, data / "never").eval.max_batches == 7


def test_a_long_task_is_measured_as_often_as_a_short_one(parent: Path, data: Path) -> None:
    def every(steps: int, *overrides: str, stop_at: float | None = None) -> int:
        request = ContinuationRequest((task(data, "colours", steps),), overrides=overrides, stop_at=stop_at)
        return child_config(parent, request, data / "never").eval.every_steps

    usual = RunFolder(parent).config().eval.every_steps
    assert every(3) == usual
    assert every(40 * usual) == 10 * usual
    assert every(40 * usual, f"eval.every_steps={usual}") == usual
    assert every(40 * usual, stop_at=0.1) == usual


@pytest.mark.slow
def test_evaluation_takes_at_most_a_quarter_of_a_run_of_the_demos_size(tmp_path: Path) -> None:
    demo = load_recipe("demo", ["stream.only=[prose]", "stream.tasks.prose.steps=4"])
    parent = start_run(demo.replace(output={"folder": tmp_path / "parent"}), QUIET)
    child = continue_run(parent, tmp_path / "child", TaskConfig(name="sums", builtin="arithmetic", steps=300), QUIET)
    cost = RunFolder(child).records()[-1]
    assert cost.kind == "end"
    assert cost.metrics["efficiency/evaluation_share"] <= 0.25


def test_a_parent_that_is_none_is_told_in_a_sentence(parent: Path, data: Path, tmp_path: Path) -> None:
    new = ("--task", f"colours={data / 'colours'}")
    missing = trc2("continue", str(parent.with_name("parnet")), *new)
    assert (missing.code, "did you mean 'parent'" in missing.err) == (2, True)
    (tmp_path / "adapter_config.json").write_text("{}")
    adapter = trc2("continue", str(tmp_path), *new)
    assert (adapter.code, "adapters" in adapter.err) == (2, True)
