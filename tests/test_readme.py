"""What the README shows is what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import trc2
from trc2.report.report import run_rows
from trc2.report.runs import read_runs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]


@pytest.mark.parametrize("code", PYTHON)
def test_its_python_runs(code: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)


@pytest.mark.slow
def test_the_checks_run_with_all_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/test_commands_run.py` runs every command; this one with 300 words instead of 32,000."""
    monkeypatch.chdir(tmp_path)
    done = trc2("verify")
    assert done.code == 0, done.out + done.err


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shell = "\n".join(code for language, code in BLOCKS if language == "bash")
    targets = set(re.findall(r"^make ([a-z-]+)", shell, flags=re.MULTILINE))
    assert {"demo", "test"} <= targets
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_it_stays_short_and_narrow() -> None:
    assert len(README.split()) <= 1100
    assert max(map(len, README.splitlines())) <= 120


def test_its_numbers_are_those_of_the_committed_runs() -> None:
    """Perplexities and areas of the demo's table, read back from the diaries in results/demo."""
    rows = re.findall(r"^\| `(\w+)`: [^|]*\|(.*)\|$", README, flags=re.MULTILINE)
    names = [name for name, _ in rows]
    assert names == ["plain", "plain_replay", "trc2", "large_share"]
    ours = run_rows(read_runs([ROOT / "results" / "demo" / name for name in names]))
    for name, cells in rows:
        *learnt, _, area, _ = ours.loc[name]  # perplexities, forgetting, area, speed
        assert numbers(cells) == numbers("|".join([*learnt, area]))


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"[\d.,]+", text)]
