"""Tasks of the lm-evaluation-harness in a run: at boundaries, in the summary and at the gate.

The harness is an extra, so a double scores here. `tests/evaluation/test_lm_eval.py` tests the real one.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.conftest import QUIET, MakeRun, write_task
from trc2 import UserError
from trc2.backbones.shell import Backbone
from trc2.config import TaskConfig
from trc2.continuing.acceptance import judge
from trc2.continuing.continue_run import continue_run
from trc2.evaluation.tasks import score_lm_tasks
from trc2.metrics.lm_eval import Score
from trc2.report.summary import write_summary
from trc2.runs.folder import RunFolder
from trc2.runs.records import current, read_all_records
from trc2.training.resume import resume_run
from trc2.training.setup import start_run

ASKED: dict[str, object] = {"lm_tasks": ["quiz"], "lm_limit": 4}


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A harness whose task every boundary loses a quarter of, and that changes all RNGs, as the real one does."""
    asked: list[int] = []

    def score_tasks(net: Backbone, _tokenizer: Any, tasks: Sequence[str], **settings: Any) -> list[Score]:
        torch.manual_seed(0)
        assert not net.training
        assert (tuple(tasks), settings["limit"]) == (("quiz",), 4)
        right = 4 - len(asked)
        asked.append(right)
        documents = {str(number): float(number < right) for number in range(4)}
        return [Score("quiz", "acc", right / 4, 0.1, True, documents)]

    module = ModuleType("trc2.evaluation.lm_eval")
    module.score_tasks = score_tasks  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trc2.evaluation.lm_eval", module)
    return asked


def test_boundaries_are_scored_forgetting_is_recorded_and_the_gate_decides(
    tiny_run: MakeRun, tmp_path: Path, double: list[int]
) -> None:
    parent = start_run(tiny_run(eval=ASKED), QUIET)  # with the check on: nothing may move
    told = [
        record for record in current(read_all_records(parent / "metrics.jsonl")) if "lm_eval/quiz/acc" in record.metrics
    ]
    assert [(record.kind, record.step) for record in told] == [("eval", 0), ("eval", 6), ("eval", 12)]
    lost = [record.metrics.get("cl/lm_eval/quiz/acc/forgetting") for record in told]
    assert lost == [None, 0.25, 0.5]
    write_summary(parent)
    assert "| quiz/acc | 0.5 | 0.5 |" in (parent / "summary.md").read_text()

    write_task(tmp_path, "colours", ["red", "blue", "green", "grey"])
    task = TaskConfig(name="colours", folder=str(tmp_path / "colours"), steps=2)
    double.clear()
    child = continue_run(parent, tmp_path / "child", task, QUIET)
    double.clear()
    verdict = judge(parent, child, 1e9, print)  # the parent has 4 of 4, the child 3
    quiz = verdict.tasks[-1]
    assert (quiz.task, quiz.measure, quiz.rise.value, quiz.passed) == ("lm_eval/quiz/acc", "acc", 0.25, True)
    assert quiz.text == "4 documents of lm_eval/quiz/acc: acc"
    assert verdict.describe()["tasks"]["lm_eval/quiz/acc"]["high"] == quiz.rise.high
    double.clear()
    assert not judge(parent, child, 0.1, print).tasks[-1].passed


def test_without_the_harness_a_run_that_asks_for_it_stops_at_once(
    tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "trc2.evaluation.lm_eval", raising=False)
    with pytest.raises(UserError, match="lm-evaluation-harness is not installed"):
        start_run(tiny_run(eval=ASKED), QUIET)


def test_tasks_that_only_a_recipe_names_are_refused_until_the_environment_allows_them(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: list[int]
) -> None:
    """Files of the harness run code: `!function` imports what lies beside them."""
    asked = {**ASKED, "lm_include": str(tmp_path / "stranger")}
    with pytest.raises(UserError, match=r"eval\.lm_include=.*TRC2_TRUST_TASKS=1"):
        start_run(tiny_run(eval=asked), QUIET)
    assert not (tmp_path / "run").exists()
    assert double == []
    monkeypatch.setenv("TRC2_TRUST_TASKS", "1")
    run = start_run(tiny_run(eval=asked), QUIET)
    monkeypatch.delenv("TRC2_TRUST_TASKS")
    with pytest.raises(UserError, match="TRC2_TRUST_TASKS=1"):
        resume_run(run, [], QUIET)
    with pytest.raises(UserError, match="TRC2_TRUST_TASKS=1"):
        score_lm_tasks(None, None, RunFolder(run).config().eval)  # type: ignore[arg-type]


def test_a_metric_of_the_harness_that_overflows_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def simple_evaluate(*_: Any, **__: Any) -> None:
        math.exp(1e4)

    class TaskManager:
        def __init__(self, **_: Any) -> None: ...

        def match_tasks(self, names: list[str]) -> list[str]:
            return names

    parts = {
        "": {"simple_evaluate": simple_evaluate},
        ".api": {},
        ".api.model": {"TemplateLM": object},
        ".api.registry": {"register_model": lambda _: lambda model: model},
        ".tasks": {"TaskManager": TaskManager},
        ".utils": {"get_rolling_token_windows": None, "make_disjoint_window": None},
    }
    for name, contents in parts.items():
        module = ModuleType(f"lm_eval{name}")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, f"lm_eval{name}", module)
    monkeypatch.delitem(sys.modules, "trc2.evaluation.lm_eval", raising=False)
    lm_tasks = importlib.import_module("trc2.evaluation.lm_eval")
    monkeypatch.delitem(sys.modules, "trc2.evaluation.lm_eval")
    monkeypatch.setattr(lm_tasks, "NetworkLM", lambda *_, **__: None)
    with pytest.raises(UserError, match="OverflowError"):
        lm_tasks.score_tasks(None, None, ["wikitext"])
