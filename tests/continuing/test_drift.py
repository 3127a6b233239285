"""Going on from a model whose old text is gone: generated text, and how far the predictions moved."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.command import trc2
from tests.conftest import QUIET
from trc2 import continue_from, load_run
from trc2.config import TaskConfig
from trc2.continuing.acceptance import judge_child, read_verdict
from trc2.continuing.drift import document_drift
from trc2.continuing.heldout import HeldOut
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.runs.folder import RunFolder
from trc2.stream.batches import SplitWindows
from trc2.stream.prepare import prepare_stream
from trc2.training.resume import resume_run
from trc2.verify.kill_runner import run_in_child
from trc2.verify.kill_tests import compare_runs

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
Command = Callable[..., list[str]]


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    return load_run(trained).export(tmp_path / "model")


@pytest.fixture
def go_on(model: Path, colours: TaskConfig, tmp_path: Path) -> Command:
    def build(child: Path, *more: str) -> list[str]:
        sizes = ["train.batch_size=2", "eval.batch_size=4", f"stream.cache={tmp_path / 'cache'}"]
        task = ["--task", f"new={colours.folder}", "--steps", "2", "--out", str(child)]
        return ["continue", str(model), *task, *sizes, *more]

    return build


def test_a_limit_on_the_drift_that_could_not_be_checked_is_refused_before_training(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "few.jsonl"
    text.write_text("".join(json.dumps({"text": f"red blue green {number}"}) + "\n" for number in range(15, 35)))
    child = tmp_path / "child"
    command = ["continue", str(model), "--task", f"new={text}", "--steps", "2", "--out", str(child)]
    settings = ["train.batch_size=2", f"stream.cache={tmp_path / 'cache'}"]
    refused = trc2(*command, "--max-drift", "9", *settings)
    assert (refused.code, child.exists()) == (2, False)
    assert "has 1 held-out document" in refused.err
    assert trc2(*command, "--max-drift", "9", *settings, "stream.tasks.new.holdout=0.2").code == 0


def test_drift_is_the_divergence_of_the_two_predictions(trained: Path) -> None:
    folder = RunFolder(trained)
    config, cpu = folder.config(), torch.device("cpu")
    assert config.stream is not None
    task = prepare_stream(config.stream, tokenizer=folder.tokenizer()).tasks["fruit"]
    text = HeldOut(task, "test", np.ones(8, dtype=bool))
    parent, child = folder.model(print)[0].eval(), folder.model(print)[0].eval()
    nats, tokens = document_drift(parent, child, text, config, cpu)
    assert np.abs(nats).max() < 1e-6
    with torch.no_grad():
        for parameter in child.parameters():
            parameter.mul_(1.1)
    nats, tokens = document_drift(parent, child, text, config, cpu)
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in SplitWindows(task, config.train.sequence_length).eval_batches("test", 1):
            p, q = (torch.distributions.Categorical(logits=net(batch.x)[0].double()) for net in (parent, child))
            is_predicted = batch.y != IGNORE_INDEX
            total += float(torch.distributions.kl_divergence(p, q)[is_predicted].sum())
            count += int(is_predicted.sum())
    assert tokens.sum() == count
    assert nats.sum() == pytest.approx(total, rel=1e-4)
    assert nats.min() > 0


def test_a_model_without_old_text_replays_what_it_generates_and_is_judged_by_its_drift(
    go_on: Command, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    done = trc2(*go_on(child, "--dream", "800", "--max-drift", "100", "--json"))
    assert done.code == 0, done.err
    verdict = json.loads(done.out)
    assert set(verdict["drift"]) == {"new", "dream"}
    for drift in verdict["drift"].values():
        assert 0 <= drift["low"] <= drift["nats"] <= drift["high"] <= 100
    assert "dream" in verdict["tasks"]
    assert "only text that it generated itself" in verdict["not_measured"]
    assert verdict["not_measured"] in (child / "summary.md").read_text()
    folder = RunFolder(child)
    config = folder.config()
    assert config.stream is not None
    assert config.stream.replay_prefill_tasks == ("dream",)
    splits = folder.data()["tasks"]["dream"]["splits"]
    assert min(splits["train"]["documents"], splits["validation"]["documents"]) >= 10
    rows = folder.dream_file.read_text().splitlines()
    assert len(rows) == splits["train"]["documents"] + splits["validation"]["documents"]
    assert read_verdict(folder) == judge_child(child, print, again=True)
    export = trc2("export", str(child), str(tmp_path / "exported"))
    assert export.code == 0, export.err
    assert verdict["not_measured"] in (tmp_path / "exported" / "README.md").read_text()


def test_predictions_that_moved_too_far_are_refused(go_on: Command, tmp_path: Path) -> None:
    child = tmp_path / "child"
    done = trc2(*go_on(child, "--max-drift", "0"))
    assert done.code == 3
    assert "--max-drift 0" in done.err
    assert "so what it forgot is unknown" in (child / "summary.md").read_text()
    assert trc2("export", str(child), str(tmp_path / "exported")).code == 2
    verdict = read_verdict(RunFolder(child))
    assert verdict is not None
    assert [drift.task for drift in verdict.drifts] == ["new"]
    assert not verdict.passed


def test_killed_and_with_an_empty_cache_it_ends_as_if_undisturbed(go_on: Command, tmp_path: Path) -> None:
    whole, child = tmp_path / "whole", tmp_path / "child"
    assert trc2(*go_on(whole, "--dream", "800")).code == 0

    def attempt(folder: Path) -> None:
        os._exit(trc2(*go_on(folder, "--dream", "800")).code)

    assert run_in_child(attempt, child, "step:2") < 0
    shutil.rmtree(tmp_path / "cache")
    resume_run(child, [], QUIET)
    assert compare_runs(whole, child)[0] == []
    assert RunFolder(child).dream_file.read_bytes() == RunFolder(whole).dream_file.read_bytes()


def test_generated_text_is_for_saved_models_and_needs_enough_documents(
    go_on: Command, trained: Path, colours: TaskConfig, tmp_path: Path
) -> None:
    few = trc2(*go_on(tmp_path / "child", "--dream", "20"))
    assert (few.code, "--dream 20 gave" in few.err) == (2, True)
    of_run = trc2("continue", str(trained), "--task", f"new={colours.folder}", "--dream", "800")
    assert (of_run.code, "whose replay stores hold its old text" in of_run.err) == (2, True)


def test_python_takes_the_same_arguments(model: Path, colours: TaskConfig, tmp_path: Path) -> None:
    child = continue_from(
        model, {"new": colours.folder}, steps=1, folder=tmp_path / "child", dream=800, max_drift=1e9, quiet=True,
        stream={"cache": str(tmp_path / "cache")}, train={"batch_size": 2}, eval={"batch_size": 4},
    )  # fmt: skip
    verdict = child.verdict()
    assert verdict is not None
    assert verdict["max_drift"] == 1e9
    assert verdict["passed"]
