"""Users' runs do not break silently: a run made by an earlier version is read, scored, resumed and continued."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from trc2.backbones.saved import load_model
from trc2.config import TaskConfig
from trc2.continuing.continue_run import continue_run
from trc2.evaluation.score import score_target
from trc2.report.run import read_run
from trc2.report.summary import write_summary
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint, step_of
from trc2.runs.folder import RunFolder
from trc2.runs.target import find_target
from trc2.training.resume import resume_run

ROOT = Path(__file__).parents[1]
QUIET = Console(quiet=True)


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the golden run. Its data is found relative to the project's root."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Path(shutil.copytree(ROOT / "tests" / "golden" / "run", tmp_path / "run"))


def test_it_is_summarised(golden: Path) -> None:
    written = write_summary(golden)
    assert "fruit (8 steps) → tools (8 steps) → sky (8 steps)" in written[0].read_text()
    summary = read_run(golden).summary()
    logged = [record.metrics for record in read_run(golden).records if record.kind == "eval"][-1]
    assert summary["cl/perplexity/aufc"] == pytest.approx(logged["cl/perplexity/aufc"])


def test_it_is_scored_as_it_was(golden: Path) -> None:
    scores = score_target(find_target(str(golden)), warn=print)
    logged = [record.metrics for record in read_run(golden).records if record.kind == "eval"][-1]
    for task in ("fruit", "tools", "sky"):
        assert scores[task]["perplexity"] == pytest.approx(logged[f"eval/{task}/perplexity"], rel=1e-4)


def test_it_is_resumed_from_a_boundary(golden: Path) -> None:
    last = load_checkpoint(list_checkpoints(golden / "checkpoints")[-1])
    shutil.rmtree(list_checkpoints(golden / "checkpoints")[-1])
    resume_run(golden, [], QUIET)
    again = list_checkpoints(golden / "checkpoints")[-1]
    assert step_of(again) == 24
    found = load_checkpoint(again)
    assert found.tensors.keys() == last.tensors.keys()
    # Other releases of torch and other processors may round differently. The state must stay the same in kind.
    for name in ("model.clock.step", "model.replay.seen", "model.cortex.hippocampus.cursor.count"):
        assert found.tensors[name] == last.tensors[name]


def test_it_is_continued(golden: Path, tmp_path: Path) -> None:
    task = TaskConfig(name="more", folder=str(ROOT / "tests" / "golden" / "data" / "sky"), steps=3)
    child = continue_run(golden, tmp_path / "child", task, QUIET)
    assert json.loads((child / "parent.json").read_text())["step"] == 24
    assert read_run(child).is_finished


def test_a_model_exported_by_an_earlier_version_is_what_its_run_holds(golden: Path) -> None:
    exported, (own, _) = (
        load_model(ROOT / "tests" / "golden" / "export"),
        RunFolder(golden).model(print, with_replay=False),
    )
    assert exported.state_dict().keys() == own.state_dict().keys()
    assert all(torch.equal(tensor, own.state_dict()[name]) for name, tensor in exported.state_dict().items())
