"""Numbers in recipes and documents that come from runs, read back from the runs in results/."""

from __future__ import annotations

import re

import pytest
import yaml

from docs import results_tables as tables
from trc2.config import MODELS, load_recipe
from trc2.report.run import read_run

RATES = tables.ROOT / "results" / "lab_rates"
CHOSEN = [f"lab_{name}" for name in MODELS if name != "hf"]


@pytest.mark.parametrize("recipe", CHOSEN)
def test_a_lab_recipe_has_the_best_rate_that_was_tried_on_its_first_task(recipe: str) -> None:
    """And the page shows what each rate gave."""
    perplexities = {}
    for folder in RATES.glob(f"{recipe}+*"):
        run = read_run(folder)
        assert run.is_finished
        perplexities[run.config.train.learning_rate] = run.score("perplexity", "c4", run.last_step)
    assert len(perplexities) >= 2
    assert load_recipe(recipe).train.learning_rate == min(perplexities, key=perplexities.__getitem__)
    page = (tables.ROOT / "docs" / "results-baselines.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `{recipe}` \| ([\d–]+) \| ([\d–]+) \| ([\d–]+) \|$", page, flags=re.MULTILINE)
    for rate, cell in zip((0.001, 0.002, 0.004), row, strict=True):
        assert cell == (f"{perplexities[rate]:.0f}" if rate in perplexities else "–")


def test_no_task_is_worse_than_with_the_papers_controller_in_any_seed_or_order() -> None:
    """As the page says. Its AUFC is at most a third, and its final loss at least 0.15 nats lower."""
    orders = ("c4-wikitext-gsm8k", "gsm8k-wikitext-c4")
    for order in orders:
        ours, theirs = tables.ends(f"lab_best+{order}"), tables.ends(f"lab_trc2+no_thalamus_memory+{order}")
        assert ours.keys() == theirs.keys() == {0, 1, 2}
        for seed, end in ours.items():
            pairs = zip(end.perplexities, theirs[seed].perplexities, strict=True)
            assert all(a < b for a, b in pairs), (order, seed)
            assert end.area < theirs[seed].area / 3
            assert end.log < theirs[seed].log - 0.15


def test_a_switch_is_between_the_last_step_of_the_old_task_and_the_first_of_the_new() -> None:
    """Steps are counted from 1: of two tasks of 50 steps, step 50 is still the first task's."""
    points = [(step, 1.0 if step <= 50 else 2.0) for step in range(1, 101)]
    assert tables.around_switch(points, 50) == (1.0, 2.0)
    ramp = [(step, float(step)) for step in range(1, 101)]
    assert tables.around_switch(ramp, 50) == (40.5, 53.0)  # means of 31 … 50 and of 51 … 55


@pytest.mark.parametrize("page", tables.PAGES)
def test_the_rows_of_numbers_are_those_of_the_committed_runs(page: str) -> None:
    names, text = tables.PAGES[page], (tables.ROOT / page).read_text(encoding="utf-8")
    assert tables.refreshed(text, names) == text, "run python -m docs.results_tables, then read the text around them"


@pytest.mark.parametrize("page", [page for page in tables.PAGES if page != "README.md"])
def test_every_row_of_a_results_page_names_a_configuration_that_has_runs(page: str) -> None:
    """A misspelt name would keep its old numbers for ever."""
    unknown, is_about_runs = [], False
    for line in (tables.ROOT / page).read_text(encoding="utf-8").splitlines():
        subject = tables.subject_of(line)
        if subject in ("configuration", "difference", "run and switch", "effect of"):
            is_about_runs = True
        elif not line.startswith("|"):
            is_about_runs = False
        elif is_about_runs and subject and tables.cells_of(subject, tables.PAGES[page]) is None:
            unknown.append(line)
    assert unknown == []


def test_the_settings_on_which_recipe_are_those_of_the_recipe() -> None:
    page = (tables.ROOT / "docs" / "which-recipe.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    sections = yaml.safe_load(block)
    overrides = [f"{section}.{name}={value}" for section, fields in sections.items() for name, value in fields.items()]
    written = load_recipe("lab_trc2", [*overrides, "output.folder=runs/lab_large_share"])
    assert written == load_recipe("lab_large_share")
