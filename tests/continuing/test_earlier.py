"""A task name comes again: the child begins a log of its own, and the past stays bounded."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.conftest import QUIET, tiny_run_config, write_task
from trc2.config import TaskConfig
from trc2.continuing.acceptance import judge_child
from trc2.continuing.continue_run import continue_run
from trc2.continuing.earlier import MAX_BYTES, MAX_DOCUMENTS, choose
from trc2.errors import UserError
from trc2.report.run import own_part, read_run
from trc2.report.summary import summary_text
from trc2.runs.checkpoint import weights_of
from trc2.runs.folder import RunFolder
from trc2.training.setup import start_run


@pytest.fixture
def again(trained: Path, tmp_path: Path) -> Path:
    """A child that is taught fruit once more, with other text."""
    write_task(tmp_path, "fruit", ["quince", "lemon", "cherry", "mango"], documents=20)
    task = TaskConfig(name="fruit", folder=str(tmp_path / "fruit"), steps=2)
    return continue_run(trained, tmp_path / "child", task, QUIET, limit=1e6)


def test_a_task_that_comes_again_is_measured_beside_its_earlier_text(again: Path, trained: Path) -> None:
    run, lineage = read_run(again), RunFolder(again).lineage()
    assert lineage is not None
    assert (lineage.starts_over, lineage.step, lineage.first_step) == (True, 12, 0)
    assert run.tasks == ["fruit-earlier", "tools", "fruit"]
    assert [(span.task, span.start, span.end) for span in run.spans] == [("fruit", 0, 2)]
    scores = run.perplexity.scores
    parent = read_run(trained).final("test")  # the earlier text is the parent's test split
    assert scores[0]["tools"] == pytest.approx(parent["test/tools/perplexity"], rel=0.2)
    assert [span.task for span in own_part(run, lineage).spans if span.end == 0] == ["fruit-earlier", "tools"]
    verdict = judge_child(again, pytest.fail, trained)
    assert verdict is not None
    assert [(task.task, task.documents) for task in verdict.tasks] == [("fruit-earlier", 8), ("tools", 8)]
    assert "fruit-earlier" in summary_text(run, lineage)


def test_weights_stores_and_optimizer_carry_over(again: Path, trained: Path) -> None:
    first, last = (RunFolder(path).checkpoint_of(step) for path, step in ((again, 0), (trained, 12)))
    assert first.tensors.keys() == last.tensors.keys()
    different = [name for name, tensor in first.tensors.items() if not tensor.equal(last.tensors[name])]
    assert different == []
    assert weights_of(trained / "checkpoints" / "step-00000012") == RunFolder(again).lineage().weights  # type: ignore[union-attr]


def test_over_many_weeks_the_past_has_as_many_texts_as_names(again: Path, tmp_path: Path) -> None:
    write_task(tmp_path, "third", ["kiwi", "melon", "grape", "date"], documents=20)
    task = TaskConfig(name="fruit", folder=str(tmp_path / "third"), steps=2)
    child = continue_run(again, tmp_path / "third week", task, QUIET)
    assert read_run(child).tasks == ["fruit-earlier", "tools", "fruit"]
    earlier = (again / "held_out" / "fruit.jsonl").read_text().splitlines()
    assert len(earlier) == 16  # of both weeks
    assert any("mango" in row for row in earlier)
    assert any("apple" in row for row in earlier)
    config = RunFolder(child).config()
    assert config.stream is not None
    assert config.stream.tasks[0].folder == str((again / "held_out" / "fruit.jsonl").resolve())
    assert len((child / "held_out" / "fruit.jsonl").read_text().splitlines()) == 24


def test_documents_that_a_week_was_trained_on_are_not_judged_by_later_weeks(
    trained: Path, tiny_data: Path, tmp_path: Path
) -> None:
    write_task(tmp_path, "fruit", ["quince", "lemon", "cherry", "mango"], documents=20)
    held_out = (tiny_data / "fruit" / "test.jsonl").read_text().splitlines()
    with (tmp_path / "fruit" / "train.jsonl").open("a") as file:
        file.writelines(row + "\n" for row in held_out[:3])
    task = TaskConfig(name="fruit", folder=str(tmp_path / "fruit"), steps=2)
    child = continue_run(trained, tmp_path / "child", task, QUIET)
    kept = {json.loads(row)["text"] for row in (child / "held_out" / "fruit.jsonl").read_text().splitlines()}
    assert len(kept) == 8 - 3 + 8  # of the first week and of the second
    assert [json.loads(row)["text"] in kept for row in held_out] == [False] * 3 + [True] * 5


def test_documents_that_the_parents_later_tasks_trained_on_are_not_judged(tmp_path: Path) -> None:
    for name in ("fruit", "tools", "colours"):
        write_task(tmp_path, name, [f"{name}{number}" for number in range(5)])
    for task, later in (("fruit", "tools"), ("tools", "fruit")):
        held_out = (tmp_path / task / "test.jsonl").read_text().splitlines(keepends=True)
        with (tmp_path / later / "train.jsonl").open("a") as file:
            file.writelines(held_out[:3])
    parent = start_run(tiny_run_config(tmp_path, tmp_path / "parent", eval={"text_sequences": 0}), QUIET)
    task = TaskConfig(name="colours", folder=str(tmp_path / "colours"), steps=2)
    child = continue_run(parent, tmp_path / "child", task, QUIET, limit=1e6)
    verdict = judge_child(child, pytest.fail, parent)
    assert verdict is not None
    # What was trained on before a task is the same for parent and child. What came after it is replayed.
    assert {one.task: one.documents for one in verdict.tasks} == {"fruit": 5, "tools": 8}


def test_a_task_with_a_new_name_goes_on_with_the_log_and_judges_all(again: Path, tmp_path: Path) -> None:
    write_task(tmp_path, "colours", ["red", "blue", "green", "grey"], documents=20)
    task = TaskConfig(name="colours", folder=str(tmp_path / "colours"), steps=2)
    child = continue_run(again, tmp_path / "colours child", task, QUIET, limit=1e6)
    verdict = judge_child(child, pytest.fail, again)
    assert verdict is not None
    assert {task.task for task in verdict.tasks} == {"fruit-earlier", "tools", "fruit"}
    assert [span.task for span in read_run(child).spans] == ["fruit", "colours"]


def test_the_text_of_last_week_never_stands_in_for_a_folder_that_is_missing(trained: Path, tmp_path: Path) -> None:
    missing = TaskConfig(name="fruit", folder=str(tmp_path / "nowhere"), steps=2)
    with pytest.raises(UserError, match="nowhere"):
        continue_run(trained, tmp_path / "child", missing, QUIET)


def test_names_of_earlier_text_are_reserved(trained: Path, tmp_path: Path) -> None:
    tasks = [TaskConfig(name=name, folder=str(tmp_path), steps=2) for name in ("fruit", "fruit-earlier")]
    with pytest.raises(UserError, match="leave -earlier out"):
        continue_run(trained, tmp_path / "child", tasks, QUIET)


def test_a_choice_of_documents_does_not_depend_on_the_weeks() -> None:
    rng = random.Random(0)
    documents = [" ".join(rng.choice(["a", "b", "c"]) for _ in range(rng.randint(10, 900))) for _ in range(700)]
    weeks = [documents[start : start + 100] for start in range(0, 700, 100)]
    chosen: list[str] = []
    for week in rng.sample(weeks, len(weeks)):
        chosen = choose([*chosen, *week])
    assert chosen == choose(documents)
    assert len(chosen) == MAX_DOCUMENTS
    large = choose(str(number) * 5000 for number in range(300))
    assert sum(map(len, large)) <= MAX_BYTES
    assert choose([]) == []
    assert len(choose(["x" * MAX_BYTES, "y" * MAX_BYTES])) == 2  # an interval takes two
    assert json.dumps(chosen)
