from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.conftest import MakeRun
from trc2.config import StreamConfig, TrainConfig
from trc2.errors import UserError
from trc2.runs.folder import RunFolder
from trc2.runs.records import Record
from trc2.runs.schedule import TaskSchedule
from trc2.system.console import PlainConsole
from trc2.training.observers import Screen, build_observers
from trc2.training.setup import start_run

PLAN = TaskSchedule.of(StreamConfig(tasks=[{"name": "a", "builtin": "prose", "steps": 10}]), TrainConfig())
STEP = {
    "train/loss_lm": 2.5, "train/tokens_per_second": 1234.0, "replay/coefficient": 0.05, "hippocampus/fill": 0.5,
}  # fmt: skip


def show(is_terminal: bool) -> str:
    text = io.StringIO()
    screen = Screen(PLAN, Console(file=text, force_terminal=is_terminal, width=120), log_every=5)
    for step in range(1, 11):
        screen.see(Record("train", step, "a", STEP))
    screen.see(Record("eval", 10, "a", {"eval/a/perplexity": 33.25}))
    screen.see(Record("nonfinite", 10, "a"))
    screen.close()
    return text.getvalue()


def test_a_file_gets_plain_lines_every_few_steps() -> None:
    lines = show(is_terminal=False).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 5/10", "step 10/10", "step 10", "step 10"]
    assert "loss 2.500  1,234 tok/s  λ_rep 0.050  episodic slots 50% full" in lines[0]
    assert "a 33.25" in lines[2]
    assert "not finite" in lines[3]


def test_a_terminal_gets_a_bar_with_step_and_total() -> None:
    shown = show(is_terminal=True)
    assert "━" in shown
    assert "10/10" in shown


def test_a_run_in_a_notebook_draws_into_its_cell(tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython is not installed here: modules of its names hold the two functions that we use."""
    shown: list[str] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    handle = SimpleNamespace(update=shown.append)
    vars(display).update(HTML=str, display=lambda *contents, display_id=False: handle)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    start_run(tiny_run(eval={"text_sequences": 0}), PlainConsole(force_jupyter=True, width=80))
    assert 'value="12" max="12"' in shown[-1]
    assert "12/12  tools  loss" in shown[-1]
    assert "perplexity  fruit" in shown[-1]


def test_a_tracker_that_is_not_installed_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="report_to=trackio needs trackio: pip install"):
        build_observers(("trackio",), RunFolder(tmp_path), {})


def test_tensorboard_gets_the_records(tmp_path: Path) -> None:
    (observer,) = build_observers(("tensorboard",), RunFolder(tmp_path), {})
    observer.see(Record("train", 1, "a", STEP))
    observer.close()
    (events,) = (tmp_path / "tensorboard").glob("events*")
    assert all(name.encode() in events.read_bytes() for name in STEP)


def tracker(monkeypatch: pytest.MonkeyPatch, name: str) -> list[dict[str, Any]]:
    """A stand-in for a tracker that is not installed. Returns what it is asked to begin."""
    asked: list[dict[str, Any]] = []

    def init(**settings: object) -> SimpleNamespace:
        asked.append(settings)
        return SimpleNamespace(id=settings.get("id", f"id{len(asked)}"))

    module = ModuleType(name)
    module.__dict__.update(init=init, log=lambda metrics, step: None, finish=lambda: None)
    monkeypatch.setitem(sys.modules, name, module)
    return asked


@pytest.mark.parametrize(
    ("name", "again"), [("wandb", {"resume": "allow", "id": "id1"}), ("trackio", {"resume": "allow"})]
)
def test_a_resumed_run_goes_on_in_the_trackers_run_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, again: dict[str, str]
) -> None:
    asked = tracker(monkeypatch, name)
    for folder in ("a", "a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (observer,) = build_observers((name,), RunFolder(tmp_path / folder), {"x": 1})
        observer.see(Record("train", 1, "a", STEP))
        observer.close()
    asked_for = [{key: value for key, value in settings.items() if key != "dir"} for settings in asked]
    new = {"project": "trc2", "config": {"x": 1}}
    assert asked_for == [
        {**new, "name": "a"}, {**new, "name": "a", **again}, {**new, "name": "a", **again}, {**new, "name": "b"},
    ]  # fmt: skip
    if name == "wandb":  # its files go into the run folder, not into the one the command was typed in
        assert [settings["dir"] for settings in asked] == [str(tmp_path / folder) for folder in "aaab"]


def test_a_damaged_note_of_a_trackers_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker(monkeypatch, "wandb")
    (tmp_path / "wandb.json").write_text("{")
    with pytest.raises(UserError, match=r"wandb\.json"):
        build_observers(("wandb",), RunFolder(tmp_path), {})
