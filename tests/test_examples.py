"""The scripts of the tutorials do what their pages say."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest

import trc2

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, *arguments: object) -> str:
    """What a script prints, run in this process: one of its own costs seconds of imports."""
    said = io.StringIO()
    argv = [name, *map(str, arguments)]
    with contextlib.redirect_stdout(said), mock.patch.object(sys, "argv", argv):
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return said.getvalue()


def test_your_own_stream_is_trained_and_what_it_forgot_is_told(tmp_path: Path) -> None:
    said = run("own_stream.py", tmp_path, 2)
    told = re.findall(r"^(\w+): perplexity [\d.]+ after its .* [\d.]+ at the end, forgotten [\d.]+ nats$", said, re.M)
    assert told == ["diary", "questions", "sums"]
    assert (tmp_path / "run" / "summary.md").is_file()


def test_your_own_backbone_is_causal_and_forgets_less_with_replay() -> None:
    said = run("own_backbone.py", 30)
    checks, failed = map(int, re.findall(r"^(\d+) checks hold, (\d+) fail$", said, re.M)[0])
    assert checks > 10
    assert failed == 0
    with_replay, without = map(float, re.findall(r"first task ([\d.]+)", said))
    assert with_replay < 0.5 * without


def test_replay_and_its_controller_work_in_your_own_loop() -> None:
    said = run("replay_in_your_loop.py", 15)
    weights = [float(weight) for weight in re.findall(r"replay weight ([\d.]+)", said)]
    assert len(weights) >= 2
    assert max(weights) > 0.1  # where it starts: forgetting was met with more replay
    assert len(re.findall(r"^task \d: perplexity", said, re.M)) == 3


@pytest.mark.slow
def test_a_served_model_is_taught_and_the_accepted_version_answers(tmp_path: Path) -> None:
    for name in ("openai", "starlette", "uvicorn", "sqlalchemy", "python_multipart"):
        pytest.importorskip(name)
    said = run("serve_and_teach.py", tmp_path, 8)
    first, second = re.findall(r"^served: (\d{4}-[0-9a-f]{12})$", said, re.M)
    assert "job: succeeded" in said
    assert (first[:4], second[:4]) == ("0001", "0002")


@pytest.mark.parametrize("name", ["own_stream.py", "keep_a_model_current.py"])
def test_an_example_that_trains_needs_public_names_only(name: str) -> None:
    tree = ast.parse((ROOT / "examples" / name).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert "trc2" in names
    assert not [name for name in names if name.startswith("trc2.")]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "trc2" in str(node.module)]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert {node.attr for node in attributes if ast.unparse(node.value) == "trc2"} <= set(trc2.__all__)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_short_shown_and_run(path: Path) -> None:
    most = 60 if path.name == "serve_and_teach.py" else 80
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert f"examples/{path.name}" in pages
    tests = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "tests").rglob("test_*.py"))
    assert f'"{path.name}"' in tests
