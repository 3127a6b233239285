"""A checkpoint belongs to its run: other settings, data or another metrics log are refused, and the file is named."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.conftest import QUIET, MakeRun
from trc2.errors import UserError
from trc2.evaluation.score import score_target
from trc2.hf.export import export_run
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from trc2.runs.folder import RunFolder
from trc2.runs.identity import learning_hash
from trc2.runs.target import find_target
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_tests import compare_runs


@pytest.fixture
def run(tiny_run: MakeRun, tmp_path: Path) -> Path:
    """A run that lost its last checkpoint, and so has something to resume."""
    folder = start_run(tiny_run(output={"keep_checkpoints": 9}), QUIET)
    shutil.copytree(folder, tmp_path / "whole")
    shutil.rmtree(list_checkpoints(folder / "checkpoints")[-1])
    return folder


def is_refused(folder: Path, match: str) -> None:
    """By everyone who loads the model of a run."""
    with pytest.raises(UserError, match=match):
        resume_run(folder, [], QUIET)
    with pytest.raises(UserError, match=match):
        RunFolder(folder).model(lambda message: None)
    with pytest.raises(UserError, match=match):
        export_run(folder, folder.parent / "export", "0")
    with pytest.raises(UserError, match=match):
        score_target(find_target(str(folder)), tasks=["fruit"], warn=print)


def test_an_untouched_run_goes_on(run: Path, tmp_path: Path) -> None:
    resume_run(run, [], QUIET)
    assert compare_runs(tmp_path / "whole", run)[0] == []


def test_a_checkpoint_of_another_seed_is_refused(run: Path, tiny_run: MakeRun, tmp_path: Path) -> None:
    other = start_run(tiny_run(train={"seed": 1}, output={"folder": tmp_path / "other"}), QUIET)
    newest = list_checkpoints(other / "checkpoints")[-1]
    shutil.copytree(newest, run / "checkpoints" / newest.name)
    is_refused(run, r"config\.yaml has other learning settings than the run that saved checkpoints/step-00000012")


def test_an_edited_config_is_named_but_execution_and_comments_are_free(run: Path, tmp_path: Path) -> None:
    path = run / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    settings["train"]["learning_rate"] = 0.5
    path.write_text(yaml.safe_dump(settings))
    is_refused(run, r"config\.yaml has other learning settings")
    settings["train"]["learning_rate"] = 0.001
    settings["output"]["log_every"] = 3
    path.write_text("# mine\n" + yaml.safe_dump(settings))
    assert learning_hash(run / "config.yaml") == learning_hash(tmp_path / "whole" / "config.yaml")
    resume_run(run, [], QUIET)


def test_edited_data_is_named(run: Path) -> None:
    content = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps({**content, "fingerprint": "0" * 64}))
    with pytest.raises(UserError, match=r"data\.json describes other data"):
        RunFolder(run).model(lambda message: None)


@pytest.mark.parametrize("fault", ["lost", "truncated", "edited"])
def test_a_metrics_log_that_is_not_the_checkpoints_is_named(run: Path, fault: str) -> None:
    path = run / "metrics.jsonl"
    content = path.read_bytes()
    if fault == "lost":
        path.unlink()
    else:
        path.write_bytes(content[:300] if fault == "truncated" else content.replace(b'"step": 1,', b'"step": 2,', 1))
    is_refused(run, r"no .*metrics\.jsonl, on which" if fault == "lost" else r"metrics\.jsonl is not the one on which")


@pytest.mark.parametrize("name", ["data.json", "tokenizer.json", "config.yaml"])
def test_a_lost_file_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(UserError, match=name):
        resume_run(run, [], QUIET)


def test_a_pipe_is_refused_instead_of_waited_for(run: Path) -> None:
    for path in (run / "data.json", run / "tokenizer.json", run / "config.yaml"):
        content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(UserError, match=r"is a pipe|no config\.yaml|no .*tokenizer\.json"):
            resume_run(run, [], QUIET)
        path.unlink()
        path.write_bytes(content)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_metrics_log_that_is_a_link_is_refused_and_its_target_stays(
    run: Path, tmp_path: Path, has_checkpoint: bool
) -> None:
    (tmp_path / "precious").write_text("my token\n")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(tmp_path / "precious")
    if not has_checkpoint:
        shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"metrics\.jsonl is a link"):
        resume_run(run, [], QUIET)
    assert (tmp_path / "precious").read_text() == "my token\n"


def test_checkpoints_are_not_written_through_a_link(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    before = sorted(path.name for path in (tmp_path / "elsewhere").iterdir())
    with pytest.raises(UserError, match="checkpoints is a link"):
        resume_run(run, [], QUIET)
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == before


def test_a_metrics_log_that_is_a_device_is_refused(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"metrics\.jsonl is a pipe or a device"):
        RunFolder(run).records()


@pytest.mark.parametrize("binding", [[1], {"metrics_log": 3}])
def test_a_checkpoint_with_a_damaged_binding_is_passed_over(run: Path, binding: object) -> None:
    newest = load_checkpoint(list_checkpoints(run / "checkpoints")[-1])
    save_checkpoint(run / "checkpoints", replace(newest, run=binding))
    messages: list[str] = []
    found = RunFolder(run).newest_checkpoint(messages.append)
    assert found is not None
    assert found.step < newest.step
    assert "does not say to which run it belongs" in messages[0]


@pytest.mark.parametrize("change", [{"control_post": 3}, {"progress": {"step": 8, "train_seconds": "x"}}])
def test_a_state_of_another_shape_is_a_user_error(run: Path, change: dict[str, object]) -> None:
    newest = load_checkpoint(list_checkpoints(run / "checkpoints")[-1])
    save_checkpoint(run / "checkpoints", replace(newest, state={**newest.state, **change}))
    with pytest.raises(UserError, match="holds a state that this version cannot take"):
        resume_run(run, [], QUIET)
