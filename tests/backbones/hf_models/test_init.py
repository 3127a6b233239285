"""`trc2 init --model FOLDER`: a recipe that keeps a model you have current."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.command import trc2
from trc2.config import load_recipe
from trc2.config.pretrained import HFConfig

Folder = Callable[[str], Path]


def test_init_writes_a_recipe_for_the_model_you_have(model_folder: Folder, tmp_path: Path) -> None:
    llama = model_folder("llama")
    for name in ("news", "laws"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("\n\n".join(f"{name} train {number}: 0123" for number in range(2000)))
    recipe = tmp_path / "mine.yaml"
    folders = [str(tmp_path / "news"), str(tmp_path / "laws")]
    done = trc2("init", *folders, "--model", str(llama), "--minutes", "0.1", "--out", str(recipe))
    assert done.code == 0, done.err
    assert "2 layers of width 32" in done.out
    text = recipe.read_text()
    assert "vocab_size" not in text, "the folder says it"
    config = load_recipe(str(recipe))
    assert isinstance(config.model, HFConfig)
    assert config.model.pretrained == str(llama)
    assert config.model.replay_share == 0.1
    assert config.train.sequence_length <= 64, "no row is longer than the model can read"
    assert [task.name for task in config.stream.tasks] == ["news", "laws"]
    wrong = trc2("init", *folders, "--model", str(tmp_path / "news"), "--out", str(tmp_path / "other.yaml"))
    assert wrong.code == 2
    assert "config.json" in wrong.err
