"""The study of a pretrained model: its table and its figure from results that are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.pretrained import VARIANTS, main


def test_results_that_are_there_are_drawn(tmp_path: Path) -> None:
    losses = [
        {"step": 0, "c4": 3.0, "wikitext": 3.0, "gsm8k": 2.0},
        {"step": 80, "c4": 3.1, "wikitext": 3.2, "gsm8k": 1.0},
    ]
    runs = {f"{variant}, seed 0": {"variant": variant, "seed": 0, "losses": losses} for variant in VARIANTS}
    (tmp_path / "pretrained.json").write_text(json.dumps({"schema": 1, "runs": runs}))
    assert main(["--seeds", "--out", str(tmp_path)]) == 0
    assert "| no replay | 1 | 22.20 | 24.53 | 2.72 |" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "pretrained.png").read_bytes().startswith(b"\x89PNG")


def test_without_results_there_is_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "--out", str(tmp_path)])
    assert "no results to draw" in capsys.readouterr().err
