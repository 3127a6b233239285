"""The fuzzer itself is not blind: what crashes, hangs, leaks or strays is seen, and costs one case."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.fuzz.border import Outcome
from tests.fuzz.cases import Case
from tests.fuzz.judge import Problem
from tests.fuzz.server import Server

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def fates(folder: Path, *kinds: str, patience: float = 30.0) -> list[str]:
    """The problems of cases that do to their process what their kind says."""
    outside = folder / "outside"

    def run(case: Case) -> Outcome:
        problems: tuple[Problem, ...] = ()
        match case.kind:
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                time.sleep(60)
            case "exit":
                os._exit(7)
            case "stray":
                try:
                    outside.write_text("x")
                except PermissionError as error:
                    problems = (Problem("stray", "outside", str(error)),)
        return Outcome(case.kind, problems, 0.0, 0, 0.0)

    (folder / "nest").mkdir()
    cases = {number: Case(kind, ()) for number, kind in enumerate(kinds)}
    outcomes = list(Server(cases, run, folder / "nest", folder / "log", patience).run(range(len(kinds))))
    assert [outcome.kind for outcome in outcomes] == list(kinds)
    return [" ".join(f"{p.rule}: {p.place}" for p in outcome.problems) for outcome in outcomes]


def test_a_crash_costs_one_case(tmp_path: Path) -> None:
    found = fates(tmp_path, "fine", "crash", "exit", "fine")
    assert found == ["", f"crash: signal {signal.SIGSEGV:d}", "crash: exit code 7", ""]


def test_a_hang_costs_one_case(tmp_path: Path) -> None:
    assert fates(tmp_path, "fine", "hang", "fine", patience=1.0) == ["", "hang: signal 9", ""]


def test_a_case_writes_nowhere_but_in_its_nest(tmp_path: Path) -> None:
    assert fates(tmp_path, "stray") == ["stray: outside"]
    assert not (tmp_path / "outside").exists()
