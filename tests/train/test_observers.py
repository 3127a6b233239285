from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from trc2.config import StreamConfig, TrainConfig
from trc2.errors import UserError
from trc2.runs.plan import Plan
from trc2.runs.records import Record
from trc2.train.observers import Screen, build_observers

PLAN = Plan.of(StreamConfig(tasks=[{"name": "a", "builtin": "prose", "steps": 10}]), TrainConfig())
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
    assert "loss 2.500  1,234 tok/s  λ_rep 0.050  memory 50%" in lines[0]
    assert "a 33.25" in lines[2]
    assert "not finite" in lines[3]


def test_a_terminal_gets_a_bar() -> None:
    shown = show(is_terminal=True)
    assert "━" in shown
    assert "left" in shown


def test_a_tracker_that_is_not_installed_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="report_to=trackio needs trackio: pip install"):
        build_observers(("trackio",), tmp_path, {})
