"""`--interpolate`: weights between parent and child, chosen by the acceptance check."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.command import trc2
from tests.conftest import QUIET, tiny_run_config, write_task
from trc2.config import RunConfig
from trc2.continuing.acceptance import read_verdict
from trc2.continuing.interpolation import GRID, _largest, check_interpolation, read_choice
from trc2.errors import UserError
from trc2.report.run import read_run
from trc2.runs.folder import RunFolder
from trc2.training.setup import start_run
from trc2.verify.kill_runner import run_in_child
from trc2.verify.kill_tests import compare_runs

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
Command = Callable[..., list[str]]


@pytest.fixture(scope="module")
def parent(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a Transformer, which has no episodic memory."""
    home = tmp_path_factory.mktemp("parent")
    few = {"every_steps": 30, "text_sequences": 0}
    config = tiny_run_config(tiny_data, home / "parent", train={"learning_rate": 0.02}, eval=few)
    assert config.stream is not None
    tasks = [{**task.model_dump(), "steps": 30} for task in config.stream.tasks]
    model = {"name": "transformer", "vocab_size": 300, "d_model": 16, "num_layers": 2, "num_heads": 4, "d_ff": 16,
             "max_positions": 32, "replay_chunk_length": 8}  # fmt: skip
    values = {**config.model_dump(), "model": model, "stream": {**config.stream.model_dump(), "tasks": tasks}}
    write_task(home, "colours", ["red", "blue", "green", "grey"])
    return start_run(RunConfig(**values), QUIET)


@pytest.fixture
def command(parent: Path) -> Command:
    def build(child: Path, *more: str) -> list[str]:
        task = ["--task", f"colours={parent.with_name('colours')}", "--steps", "3", "--out", str(child)]
        return [
            "continue",
            str(parent),
            *task,
            "train.learning_rate=0.03",
            "model.replay_coefficient=0",
            "train.warmup_steps=0",
            *more,
        ]

    return build


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = RunFolder(folder).newest_checkpoint(print)
    assert newest is not None
    names = [name for name, _ in RunFolder(folder).model_of(newest).named_parameters()]
    return {name: newest.part("model")[name] for name in names}


def test_a_number_goes_that_far_and_the_scores_are_of_the_new_weights(
    parent: Path, command: Command, tmp_path: Path
) -> None:
    assert trc2(*command(tmp_path / "whole")).code == 0
    assert trc2(*command(tmp_path / "half", "--interpolate", "0.5")).code == 0
    before, after, between = (weights(path) for path in (parent, tmp_path / "whole", tmp_path / "half"))
    for name, tensor in between.items():
        torch.testing.assert_close(tensor, (before[name] + after[name]) / 2)
    verdict = read_verdict(RunFolder(tmp_path / "half"))
    assert verdict is not None
    assert verdict.interpolation == 0.5
    whole, half = read_run(tmp_path / "whole"), read_run(tmp_path / "half")
    assert half.final("eval")["interpolation/alpha"] == 0.5
    assert half.score("perplexity", "fruit", half.end) != whole.score("perplexity", "fruit", whole.end)
    assert half.final("test")["test/fruit/perplexity"] != whole.final("test")["test/fruit/perplexity"]


def test_a_child_of_an_interpolated_run_is_interpolated_by_its_own_number(command: Command, tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert trc2(*command(first, "--interpolate", "0.5")).code == 0
    write_task(tmp_path, "metals", ["iron", "tin", "zinc", "lead"])
    again = ["continue", str(first), "--task", f"metals={tmp_path / 'metals'}", "--steps", "3"]
    assert trc2(*again, "--out", str(tmp_path / "whole")).code == 0
    assert trc2(*again, "--out", str(tmp_path / "quarter"), "--interpolate", "0.25").code == 0
    before, after, between = (weights(path) for path in (first, tmp_path / "whole", tmp_path / "quarter"))
    assert any(not tensor.equal(before[name]) for name, tensor in after.items())
    for name, tensor in between.items():
        torch.testing.assert_close(tensor, torch.lerp(before[name], after[name], 0.25))
    verdicts = [read_verdict(RunFolder(tmp_path / name)) for name in ("whole", "quarter")]
    assert [verdict and verdict.interpolation for verdict in verdicts] == [None, 0.25]
    assert read_run(tmp_path / "quarter").final("eval")["interpolation/alpha"] == 0.25


def test_a_check_after_a_kill_interpolates_first(parent: Path, command: Command, tmp_path: Path) -> None:
    child = tmp_path / "child"
    killed = run_in_child(
        lambda _: os._exit(trc2(*command(child, "--interpolate", "0.5")).code), child, "interpolate:1"
    )
    assert killed < 0
    assert trc2("check", str(parent), str(child)).code == 0
    verdict = read_verdict(RunFolder(child))
    assert verdict is not None
    assert verdict.interpolation == 0.5
    interpolated = weights(child)
    assert trc2("check", str(parent), str(child)).code == 0
    assert all(tensor.equal(interpolated[name]) for name, tensor in weights(child).items())


def test_auto_takes_the_largest_step_that_is_accepted_killed_or_not(command: Command, tmp_path: Path) -> None:
    rises = {}
    for alpha in (0.25, 1):
        done = trc2(*command(tmp_path / f"at {alpha}", "--interpolate", str(alpha), "--json"))
        rises[alpha] = max(task["high"] for task in json.loads(done.out)["tasks"].values())
    assert rises[0.25] < rises[1]
    auto = ["--interpolate", "auto", "--max-forgetting", str(max(0.0, (rises[0.25] + rises[1]) / 2))]
    whole, child = tmp_path / "whole", tmp_path / "child"
    done = trc2(*command(whole, *auto, "--json"))
    assert done.code == 0, done.err
    chosen = json.loads(done.out)["interpolation"]
    assert chosen in GRID[1:4]

    def attempt(folder: Path) -> None:
        os._exit(trc2(*command(folder, *auto)).code)

    for point in ("interpolate:1", "interpolated:1"):
        assert run_in_child(attempt, child, point) < 0, point
        assert trc2("resume", str(child)).code == 0
        assert compare_runs(whole, child)[0] == [], point
        verdict = read_verdict(RunFolder(child))
        assert verdict is not None
        assert verdict.interpolation == chosen
        child = tmp_path / "again"


def test_the_grid_ends_at_the_first_step_that_is_not_accepted() -> None:
    assert _largest(lambda alpha: alpha <= 0.5) == 0.5
    assert _largest(lambda alpha: alpha != 0.25) == 0.1
    assert _largest(lambda alpha: True) == 1.0
    assert _largest(lambda alpha: False) is None


def test_a_choice_that_makes_no_sense_is_refused(tiny_data: Path, command: Command, tmp_path: Path) -> None:
    assert (read_choice("0.5"), read_choice("auto"), read_choice(None)) == (0.5, "auto", None)
    for wrong in ("0", "1.5", "nan", "half"):
        with pytest.raises(UserError, match="neither auto nor a number"):
            read_choice(wrong)
    done = trc2(*command(tmp_path / "child", "--interpolate", "auto"))
    assert (done.code, "give --max-forgetting or --max-drift" in done.err) == (2, True)
    with pytest.raises(UserError, match="the episodic memory of this model"):
        check_interpolation(0.5, tiny_run_config(tiny_data, tmp_path), is_run=True, has_limit=True)
