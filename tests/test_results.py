"""What stands in recipes and documents because of a run: read back from the runs in results/."""

from __future__ import annotations

import re

import pytest

from docs.results_tables import (
    ALONE,
    EFFECT,
    ORDERS,
    PAGE,
    PAIR,
    ROOT,
    SWITCH,
    VARIANT,
    around_switch,
    ends,
    refreshed,
)
from trc2.config import MODELS, load_recipe
from trc2.report.run import read_run

RATES = ROOT / "results" / "lab_rates"
CHOSEN = [f"lab_{name}" for name in MODELS if name != "hf"]


@pytest.mark.parametrize("recipe", CHOSEN)
def test_a_lab_recipe_has_the_best_rate_that_was_tried_on_its_first_task(recipe: str) -> None:
    found = {}
    for folder in RATES.glob(f"{recipe}+*"):
        run = read_run(folder)
        assert run.is_finished
        last = [record for record in run.records if record.kind == "eval"][-1]
        found[run.config.train.learning_rate] = last.metrics["eval/c4/perplexity"]
    assert len(found) >= 2
    assert load_recipe(recipe).train.learning_rate == min(found, key=found.__getitem__)


def test_no_task_is_worse_than_with_the_papers_controller_in_any_seed_or_order() -> None:
    """Said on the page; and its area is at most a third, its mean log-perplexity at least 0.15 lower."""
    orders = ("c4-wikitext-gsm8k", "gsm8k-wikitext-c4")
    for order in orders:
        ours, theirs = ends(f"lab_best+{order}"), ends(f"lab_trc2+no_thalamus_memory+{order}")
        assert ours.keys() == theirs.keys() == {0, 1, 2}
        for seed, end in ours.items():
            pairs = zip(end.perplexities, theirs[seed].perplexities, strict=True)
            assert all(a < b for a, b in pairs), (order, seed)
            assert end.area < theirs[seed].area / 3
            assert end.log < theirs[seed].log - 0.15


def test_a_switch_is_between_the_last_step_of_the_old_task_and_the_first_of_the_new() -> None:
    """Steps are counted from 1: of two tasks of 50 steps, step 50 is still the first task's."""
    points = [(step, 1.0 if step <= 50 else 2.0) for step in range(1, 101)]
    assert around_switch(points, 50) == (1.0, 2.0)
    ramp = [(step, float(step)) for step in range(1, 101)]
    assert around_switch(ramp, 50) == (40.5, 53.0)  # means of 31 … 50 and of 51 … 55


def test_the_tables_of_which_recipe_are_those_of_the_committed_runs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for pattern, least in ((VARIANT, 60), (PAIR, 25), (ORDERS, 7), (ALONE, 3), (SWITCH, 5), (EFFECT, 3)):
        assert len(re.findall(pattern, page, flags=re.MULTILINE)) >= least
    assert refreshed(page) == page, "run python -m docs.results_tables, and read the words around the numbers again"
