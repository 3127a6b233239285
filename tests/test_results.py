"""What stands in recipes and documents because of a run: read back from the runs in results/."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from trc2.config import MODELS, load_recipe
from trc2.report.finished import read_run

ROOT = Path(__file__).parents[1]
RATES = ROOT / "results" / "lab_rates"
CHOSEN = [f"lab_{name}" for name in MODELS if name != "hf"]


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


def test_the_tables_of_which_recipe_are_those_of_the_committed_runs() -> None:
    """Perplexities at the end, their mean logarithm, the forgetting area, and the part of the way to joint training."""
    page = (ROOT / "docs" / "which-recipe.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w+.-]+\+s\d)`[^|]*\|(.*)\|$", page, flags=re.MULTILINE)
    assert len(rows) > 15
    found = {}
    for name, cells in rows:
        (folder,) = ROOT.glob(f"results/*_ring/{name}")
        run = read_run(folder)
        metrics = [record for record in run.records if record.kind == "eval"][-1].metrics
        perplexities = [metrics[f"eval/{task}/perplexity"] for task in run.tasks]
        mean = sum(map(math.log, perplexities)) / len(perplexities)
        found[name] = mean
        written = [cell.strip().replace(",", "") for cell in cells.split("|")]
        area = metrics.get("cl/perplexity/aufc")
        assert written[:3] == [f"{value:.1f}" for value in perplexities]
        assert written[3:5] == [f"{mean:.3f}", "–" if area is None else f"{area:.3f}"]
    nothing, joint = found["demo+plain+s0"], found["demo+joint+s0"]
    for name, cells in rows:
        if name.startswith("demo+"):
            assert cells.split("|")[5].strip() == f"{(nothing - found[name]) / (nothing - joint):.2f}"
