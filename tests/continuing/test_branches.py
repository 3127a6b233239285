"""wsd and infinite: a task's end is annealed on a branch, and what comes next goes on from before it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import QUIET, MakeRun, write_task
from tests.training.test_resume import stop_after
from trc2.config import RunConfig, TaskConfig
from trc2.continuing.acceptance import judge_child
from trc2.continuing.continue_run import continue_run
from trc2.errors import UserError
from trc2.runs.folder import RunFolder
from trc2.training.loop import Trainer
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_tests import compare_runs

TRAIN: dict[str, object] = {"schedule": "wsd", "anneal_share": 0.34, "sequence_length": 16, "batch_size": 2}


@pytest.mark.parametrize("step", [6, pytest.param(5, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)])
def test_stopped_on_or_after_a_branch_it_goes_on_to_the_bit(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    start_run(tiny_run(train=TRAIN, output={"folder": tmp_path / "whole"}), QUIET)
    stop_after(tiny_run(train=TRAIN, output={"folder": tmp_path / "parted"}), step, monkeypatch)
    resume_run(tmp_path / "parted", [], QUIET)
    assert compare_runs(tmp_path / "whole", tmp_path / "parted")[0] == []


def test_the_next_task_and_a_continued_one_learn_from_before_the_anneal(
    tiny_run: MakeRun, tmp_path: Path, colours: TaskConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: dict[int, dict[str, torch.Tensor]] = {}
    seen: dict[int, int] = {}
    plain = Trainer.train_step

    def spy(self: Trainer) -> object:
        step, model = self.state.progress.step, self.state.model
        began[step] = {name: p.detach().clone() for name, p in model.named_parameters()}
        seen[step] = 0 if model.replay is None else model.replay.num_seen
        return plain(self)

    monkeypatch.setattr(Trainer, "train_step", spy)
    start_run(tiny_run(train=TRAIN), QUIET)
    folder = RunFolder(tmp_path / "run")

    def weights_at(where: RunFolder, step: int) -> dict[str, torch.Tensor]:
        return where.checkpoint_of(step).part("model")

    def same(step: int, saved: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(tensor, saved[name]) for name, tensor in began[step].items())

    assert same(6, weights_at(folder, 4))
    assert not same(6, weights_at(folder, 6))
    assert seen[6] > seen[4]  # what the branch trained on may be replayed
    continue_run(tmp_path / "run", tmp_path / "child", colours, QUIET)
    assert same(12, weights_at(folder, 10))
    assert RunFolder(tmp_path / "child").config().train.schedule == "wsd"
    short = colours.replace(steps=1)  # the parent's checkpoint has stores, this child has none
    continue_run(tmp_path / "run", tmp_path / "other", short, QUIET, overrides=["model.replay=false"])
    assert same(12, weights_at(folder, 10))


def test_after_an_interpolated_run_the_next_task_starts_from_interpolated_weights(
    tiny_run: MakeRun, tmp_path: Path, colours: TaskConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"name": "transformer", "vocab_size": 300, "d_model": 16, "num_layers": 2, "num_heads": 4, "d_ff": 16,
             "max_positions": 32, "replay_chunk_length": 8}  # fmt: skip
    values = {**tiny_run(train=TRAIN).model_dump(), "model": model}
    start_run(RunConfig(**values), QUIET)
    parent, child, grandchild = (RunFolder(tmp_path / name) for name in ("run", "child", "grandchild"))
    continue_run(parent.path, child.path, colours, QUIET, interpolate=0.5)
    judge_child(child.path, print)
    began: list[dict[str, torch.Tensor]] = []
    plain = Trainer.train_step

    def spy(self: Trainer) -> object:
        began.append({name: p.detach().clone() for name, p in self.state.model.named_parameters()})
        return plain(self)

    monkeypatch.setattr(Trainer, "train_step", spy)
    write_task(tmp_path, "metals", ["iron", "tin", "zinc", "lead"])
    metals = colours.replace(name="metals", folder=str(tmp_path / "metals"), steps=2)
    continue_run(child.path, grandchild.path, metals, QUIET)
    before, after = parent.checkpoint_of(10).part("model"), child.checkpoint_of(15).part("model")
    for name, tensor in began[0].items():
        assert not torch.equal(tensor, after[name])
        torch.testing.assert_close(tensor, (before[name] + after[name]) / 2)

    shutil.rmtree(child.interpolated)
    with pytest.raises(UserError, match="has no checkpoint from before its anneal, interpolated/step-00000015"):
        continue_run(child.path, tmp_path / "other", metals, QUIET)
