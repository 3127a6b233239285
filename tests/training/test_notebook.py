"""The progress of a run in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from trc2 import RunConfig
from trc2.runs.records import Record
from trc2.system.console import PlainConsole
from trc2.training.notebook import NotebookBar
from trc2.training.setup import start_run


def train(step: int) -> Record:
    return Record("train", step, "a<b", {"train/loss_lm": 2.0, "train/tokens_per_second": 1000.0})


def test_one_output_is_drawn_again_with_own_steps_loss_and_scores() -> None:
    shown: list[str] = []
    bar = NotebookBar(20, first=10, show=shown.append)
    assert 'value="0" max="10"' in shown[-1]
    for step in range(11, 20):
        bar.see(train(step))
    assert len(shown) < 5  # not a picture for every step
    bar.see(Record("eval", 19, "a<b", {"eval/x/perplexity": 12.345, "eval/x/loss": 1.0}))
    assert "x 12.3" in shown[-1]
    assert "loss 2.000 · 1,000 tokens/s" in shown[-1]
    assert "a&lt;b" in shown[-1]
    bar.see(Record("nonfinite", 20, "a<b"))
    bar.close()
    assert 'value="10" max="10"' in shown[-1]
    assert "skipped" in shown[-1]


def test_a_run_in_a_notebook_draws_into_its_cell(
    tiny_run: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPython is the notebook's, not ours: modules with its names, and the two things we use of them."""
    shown: list[str] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    handle = SimpleNamespace(update=shown.append)
    vars(display).update(HTML=str, display=lambda *contents, display_id=False: handle)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    console = PlainConsole(force_jupyter=True, width=80)
    start_run(tiny_run(eval={"text_sequences": 0}), console)
    assert 'value="12" max="12"' in shown[-1]
    assert "perplexity: fruit" in shown[-1]
