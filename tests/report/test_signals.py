"""A panel that would repeat another, or stay at one number, becomes a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.common import write_run
from trc2.report.finished import FinishedRun, read_run
from trc2.report.signals import POINTS, is_same, resting_at, train_curve, worth_showing
from trc2.runs.records import Record

Build = Callable[..., FinishedRun]


@pytest.fixture
def run(tmp_path: Path) -> Build:
    whole = read_run(write_run(tmp_path / "run", 2))

    def build(count: int = 100, **signals: Callable[[int], float]) -> FinishedRun:
        records = [
            Record("train", step, "task0", {f"x/{name}": of(step) for name, of in signals.items()})
            for step in range(count)
        ]
        return replace(whole, records=records)

    return build


def test_equal_curves_are_drawn_once_and_said(run: Build) -> None:
    runs = [run(a=lambda s: s % 7 + 1.0, b=lambda s: 3 * (s % 7 + 1.0), c=lambda s: 1.0 + s)]
    kept, said = worth_showing(runs, [("x/a", "one"), ("x/b", "two"), ("x/c", "three"), ("x/d", "four")])
    assert kept == [("x/a", "one"), ("x/c", "three")]
    assert said == " Within 1 % the same curve as one, to scale: two."
    assert is_same(runs, "x/b", "x/a")
    assert not is_same(runs, "x/c", "x/a")


def test_a_resting_signal_is_a_number(run: Build) -> None:
    runs = [run(a=lambda s: 1.0 if s > 5 else 0.1 * s, b=lambda s: 1.0 + s)]
    assert resting_at(runs, "x/a") == 1.0
    assert resting_at(runs, "x/b") is None
    kept, said = worth_showing(runs, [("x/a", "largest"), ("x/b", "rising")])
    assert kept == [("x/b", "rising")]
    assert said == " After the beginning, largest stays at 1."


def test_there_is_always_a_panel_where_anything_was_logged(run: Build) -> None:
    for value in (0.0, 2.0, float("nan")):
        kept, _ = worth_showing([run(a=lambda s, v=value: v)], [("x/a", "one")])  # type: ignore[misc]
        assert kept == [("x/a", "one")]
    assert worth_showing([run()], [("x/a", "one")]) == ([], "")


def test_long_curves_are_thinned(run: Build) -> None:
    assert len(train_curve(run(count=10_000, a=float), "x/a")) <= 2 * POINTS
