"""What docs/python.md and the notebook show is what runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401 - before a test moves the home folder, where it keeps its list of fonts
import pytest

import trc2
from trc2.errors import UserError

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
    grown = names["grown"]
    assert (grown.parent, list(grown.verdict()["tasks"])) == ("models/first", ["fruit"])
    assert grown.config.stream.only == ("metals",)
    with pytest.raises(UserError, match="does not say what it learned"):
        trc2.continue_from("models/first", {"salts": ["a b"]}, max_forgetting=0.1)
    assert "has no scores of 'perplexty': did you mean 'perplexity'?" in capsys.readouterr().out


def test_the_notebook_shows_its_outputs() -> None:
    """GitHub shows a notebook as it is stored. The first two cells only define names."""
    code = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in code[2:])
    kinds = {kind for cell in code for output in cell["outputs"] for kind in output.get("data", {})}
    assert "image/png" in kinds
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])


# Less of everything but the calls.
LESS = {"STEPS = 60": "STEPS = 1", "count=200": "count=80", "small = [": 'small = ["model.memory=off", '}


def short_notebook() -> dict[str, Any]:
    text = NOTEBOOK.read_text(encoding="utf-8")
    book: dict[str, Any] = json.loads(text)
    assert all(json.dumps(much)[1:-1] in text for much in LESS)
    for cell in book["cells"]:
        cell["source"] = "".join(cell["source"])
        for much, less in LESS.items():
            cell["source"] = cell["source"].replace(much, less)
    return book


def test_the_notebook_runs(elsewhere: Path) -> None:
    run_cells([cell["source"] for cell in short_notebook()["cells"] if cell["cell_type"] == "code"])
    check_what_it_wrote(elsewhere)


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel(elsewhere: Path) -> None:
    client, formats = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    client.NotebookClient(formats.from_dict(short_notebook()), timeout=600).execute()
    check_what_it_wrote(elsewhere)


def check_what_it_wrote(elsewhere: Path) -> None:
    assert (elsewhere / "runs" / "notebook-2" / "summary.md").is_file()
    assert (elsewhere / "models" / "notebook" / "config.json").is_file()
