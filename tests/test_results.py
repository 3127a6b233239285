"""What stands in recipes and documents because of a run: read back from the runs in results/."""

from __future__ import annotations

from pathlib import Path

import pytest

from trc2.config import load_recipe
from trc2.report.finished import read_run

ROOT = Path(__file__).parents[1]
RATES = ROOT / "results" / "lab_rates"
CHOSEN = ["lab_trc2", "lab_transformer", "lab_moe", "lab_falcon", "lab_blk_attn_res"]


@pytest.mark.parametrize("recipe", CHOSEN)
def test_a_lab_recipe_has_the_best_of_three_rates_on_its_first_task(recipe: str) -> None:
    found = {}
    for folder in RATES.glob(f"{recipe}+*"):
        run = read_run(folder)
        assert run.is_finished
        last = [record for record in run.records if record.kind == "eval"][-1]
        found[run.config.train.learning_rate] = last.metrics["eval/c4/perplexity"]
    assert len(found) == 3
    assert load_recipe(recipe).train.learning_rate == min(found, key=found.__getitem__)
