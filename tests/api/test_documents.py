"""What docs/python.md and the notebook show is what runs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, also for the cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def run_cells(cells: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "cells"}
    for cell in cells:
        exec(compile(cell, "cell", "exec"), names)
    return names


def test_the_blocks_of_the_page_run_one_after_the_other(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_cells(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    assert (elsewhere / "first.png").is_file()
    assert (elsewhere / "models" / "first" / "model.safetensors").is_file()
    assert names["child"].parent == "runs/first"
    assert "has no scores of 'perplexty': did you mean 'perplexity'?" in capsys.readouterr().out


def test_the_notebook_holds_no_outputs() -> None:
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_the_notebook_runs(elsewhere: Path) -> None:
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for cell in book["cells"]:
        cell["source"] = "".join(cell["source"]).replace("STEPS = 60", "STEPS = 1")
    if importlib.util.find_spec("nbclient") and importlib.util.find_spec("ipykernel"):
        import nbclient
        import nbformat

        nbclient.NotebookClient(nbformat.from_dict(book), timeout=600).execute()
    else:
        cells = [cell["source"] for cell in book["cells"] if cell["cell_type"] == "code"]
        assert any("STEPS = 1" in cell for cell in cells)
        run_cells(cells)
    assert (elsewhere / "runs" / "notebook-2" / "summary.md").is_file()
    assert (elsewhere / "models" / "notebook" / "config.json").is_file()
