"""What stands in recipes and documents because of a run: read back from the runs in results/."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from trc2.config import MODELS, load_recipe
from trc2.report.finished import read_run
from trc2.stats.intervals import mean_interval

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


# ------------------------------------------------------------------------------------------- docs/which-recipe.md


@dataclass(frozen=True)
class End:
    """A run after its last step."""

    perplexities: list[float]
    area: float

    @property
    def log(self) -> float:
        return sum(map(math.log, self.perplexities)) / len(self.perplexities)

    @property
    def newest(self) -> float:
        return math.log(self.perplexities[-1])


@cache
def ends(arm: str) -> dict[int, End]:
    """The committed runs of an arm of a ring, by seed; tasks in the order in which they were trained."""
    found = {}
    for folder in ROOT.glob(f"results/*_ring/{arm}+s*"):
        run = read_run(folder)
        assert run.is_finished
        metrics = run.final("eval")
        order = list(dict.fromkeys([*(stretch.task for stretch in run.stretches), *run.tasks]))
        area = metrics.get("cl/perplexity/aufc", math.nan)
        found[run.config.train.seed] = End([metrics[f"eval/{task}/perplexity"] for task in order], area)
    assert found, arm
    return dict(sorted(found.items()))


def spread(values: Iterable[float], digits: int = 3) -> str:
    """A mean over seeds and half of its 95 % interval, as the page writes it."""
    known = mean_interval(list(values))
    if math.isnan(known.mean):
        return "–"
    half = "" if math.isnan(known.high) else f" ± {known.high - known.mean:.{digits}f}"
    return f"{known.mean:.{digits}f}{half}".replace("-", "−")


def arm_row(arm: str) -> list[str]:
    """n, every task's perplexity, mean logarithm, area; on the demo's stream the part of the way to joint training."""
    runs = ends(arm)
    tasks = zip(*(end.perplexities for end in runs.values()), strict=True)
    cells = [str(len(runs)), *(f"{sum(task) / len(task):,.1f}" for task in tasks)]
    cells += [spread(end.log for end in runs.values()), spread(end.area for end in runs.values())]
    if arm.startswith("demo+"):
        nothing, joint = ends("demo+plain"), ends("demo+joint")
        way = [(nothing[s].log - end.log) / (nothing[s].log - joint[s].log) for s, end in runs.items()]
        cells.append(spread(way, 2))
    return cells


def pair_row(ours: list[str], theirs: list[str]) -> list[str]:
    """n, differences of the mean logarithm, ratio of the areas, difference of the newest task's logarithm.

    Several orders of the tasks are averaged within a seed first.
    """
    seeds = sorted(set.intersection(*(set(ends(arm)) for arm in [*ours, *theirs])))

    def of(arms: list[str], number: Callable[[End], float]) -> list[float]:
        return [sum(number(ends(arm)[seed]) for arm in arms) / len(arms) for seed in seeds]

    log, newest = (
        spread(a - b for a, b in zip(of(ours, number), of(theirs, number), strict=True))
        for number in (lambda end: end.log, lambda end: end.newest)
    )
    logs = [math.log(a / b) for a, b in zip(*(of(arms, lambda end: end.area) for arms in (ours, theirs)), strict=True)]
    ratio = mean_interval(logs)
    bounds = "" if math.isnan(ratio.high) else f" ({math.exp(ratio.low):.2f} … {math.exp(ratio.high):.2f})"
    return [str(len(seeds)), log, "–" if math.isnan(ratio.mean) else f"{math.exp(ratio.mean):.2f}{bounds}", newest]


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


def test_the_readme_says_the_same() -> None:
    orders = ("c4-wikitext-gsm8k", "gsm8k-wikitext-c4")
    arms = [[f"{arm}+{order}" for order in orders] for arm in ("lab_best", "lab_trc2+no_thalamus_memory")]
    assert pair_row(*arms)[2] == "0.19 (0.15 … 0.23)"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "it forgets a fifth of what the paper's controller does (0.15 to 0.23)" in readme


def switch_row(name: str, task: str) -> list[str]:
    """Loss and mean surprise over the last 20 steps before a task began, and over its first 5."""
    (folder,) = ROOT.glob(f"results/*_ring/{name}")
    run = read_run(folder)
    start = next(stretch.start for stretch in run.stretches if stretch.task == task)
    cells = []
    for path in ("train/loss_lm", "hippocampus/surprise_mean"):
        points = list(zip(*run.series("train", path), strict=True))
        before, after = ([v for s, v in points if a <= s < b] for a, b in ((start - 20, start), (start, start + 5)))
        cells.append(f"{sum(before) / len(before):.2f} → {sum(after) / len(after):.2f}")
    return cells


def test_the_tables_of_which_recipe_are_those_of_the_committed_runs() -> None:
    page = (ROOT / "docs" / "which-recipe.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?:demo|lab)_?\w*\+[\w+.-]+)`:[^|]*\|(.*)\|$", page, flags=re.MULTILINE)
    pairs = re.findall(r"^\| (`[^|−]+) − (`[^|−]+?) \|(.*)\|$", page, flags=re.MULTILINE)
    assert len(rows) > 20
    assert len(pairs) > 5
    for arm, cells in rows:
        assert [cell.strip() for cell in cells.split("|")] == arm_row(arm), arm
    for ours, theirs, cells in pairs:
        names = [re.findall(r"`([^`]+)`", side) for side in (ours, theirs)]
        assert [cell.strip() for cell in cells.split("|")] == pair_row(*names), (ours, theirs)
    switches = re.findall(r"^\| `([\w+.-]+\+s\d)` \| (\w+) \|(.*→.*)\|$", page, flags=re.MULTILINE)
    assert len(switches) > 4
    for name, task, cells in switches:
        assert [cell.strip() for cell in cells.split("|")] == switch_row(name, task), (name, task)
