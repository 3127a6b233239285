"""The tutorial does what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import write_task
from tests.test_examples import run

EXAMPLE = Path(__file__).parents[3] / "examples" / "keep_a_model_current.py"
WORDS = {"news": ["apple", "pear", "plum"], "law": ["saw", "axe", "drill"], "code": ["red", "blue", "grey"]}


def test_a_llama_learns_three_folders_of_text_and_is_a_llama_again(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60
    for name, words in WORDS.items():
        write_task(tmp_path / "data", name, words)
    said = run(EXAMPLE.name, model_folder("llama"), tmp_path / "data", tmp_path / "out", 5)
    for name in ("news", "law"):
        assert f"{name}: perplexity" in said
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
    assert (tmp_path / "out" / "run+code" / "summary.md").is_file()
