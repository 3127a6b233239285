"""Rows of numbers in docs/which-recipe.md, computed from the committed runs.

python -m docs.results_tables    # after new runs were added to results/: rewrites the rows of the page
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trc2.report.run import read_run
from trc2.runs.identity import variant_settings
from trc2.stats.intervals import mean_interval

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "which-recipe.md"
RUNS = ("results/*_ring", "results/lab")
VARIANT = r"^\| `((?:demo|lab)[\w+.-]*)`:[^|]*\|(.*)\|$"
PAIR = r"^\| (`[^|−]+) − (`[^|−]+?) \|(.*)\|$"
ALONE = r"^\| `lab_single_(\w+)` \|(.*)\|$"
ORDERS = r"^\| six orders of `([^`|]+)`(?: less `([^`|]+)`)? \|(.*)\|$"
EFFECT = r"^\| (thalamus|memory|replay) +\|(.*)\|$"
SIGNALS = ("train/loss_lm", "hippocampus/surprise_mean")
SWITCH = r"^\| `([\w+.-]+\+s\d)` \| (\w+) \|(.*→.*)\|$"


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
def ends(variant: str) -> dict[int, End]:
    """The committed runs of a variant, by seed; tasks in the order in which they were trained."""
    found, settings = {}, {}
    for folder in (path for place in RUNS for path in ROOT.glob(f"{place}/{variant}+s*")):
        run = read_run(folder)
        assert run.is_finished
        settings.setdefault(folder.name, variant_settings(run.config))
        assert settings[folder.name] == variant_settings(run.config), f"two experiments are called {folder.name}"
        metrics = run.final("eval")
        order = list(dict.fromkeys([*(span.task for span in run.spans), *run.tasks]))
        area = metrics.get("cl/perplexity/aufc", math.nan)
        found[run.config.train.seed] = End([metrics[f"eval/{task}/perplexity"] for task in order], area)
    assert found, variant
    return dict(sorted(found.items()))


def spread(values: Iterable[float], digits: int = 3) -> str:
    """A mean over seeds and half of its 95 % interval, as the page writes it."""
    known = mean_interval(list(values))
    if math.isnan(known.mean):
        return "–"
    half = "" if math.isnan(known.high) else f" ± {known.high - known.mean:.{digits}f}"
    return f"{known.mean:.{digits}f}{half}".replace("-", "−")


def variant_row(variant: str) -> list[str]:
    """n, every task's perplexity, mean logarithm, area; on the demo's stream the part of the way to joint training."""
    runs = ends(variant)
    tasks = zip(*(end.perplexities for end in runs.values()), strict=True)
    cells = [str(len(runs)), *(f"{sum(task) / len(task):,.1f}" for task in tasks)]
    cells += [spread(end.log for end in runs.values()), spread(end.area for end in runs.values())]
    if variant.startswith("demo+"):
        nothing, joint = ends("demo+plain"), ends("demo+joint")
        way = [(nothing[s].log - end.log) / (nothing[s].log - joint[s].log) for s, end in runs.items()]
        cells.append(spread(way, 2))
    return cells


def pair_row(ours: list[str], theirs: list[str]) -> list[str]:
    """n, differences of the mean logarithm, ratio of the areas, difference of the newest task's logarithm.

    Several orders of the tasks are averaged within a seed first.
    """
    seeds = sorted(set.intersection(*(set(ends(variant)) for variant in [*ours, *theirs])))

    def of(variants: list[str], number: Callable[[End], float]) -> list[float]:
        return [sum(number(ends(variant)[seed]) for variant in variants) / len(variants) for seed in seeds]

    log, newest = (
        spread(a - b for a, b in zip(of(ours, number), of(theirs, number), strict=True))
        for number in (lambda end: end.log, lambda end: end.newest)
    )
    logs = [
        math.log(a / b)
        for a, b in zip(*(of(variants, lambda end: end.area) for variants in (ours, theirs)), strict=True)
    ]
    ratio = mean_interval(logs)
    bounds = "" if math.isnan(ratio.high) else f" ({math.exp(ratio.low):.2f} … {math.exp(ratio.high):.2f})"
    return [str(len(seeds)), log, "–" if math.isnan(ratio.mean) else f"{math.exp(ratio.mean):.2f}{bounds}", newest]


@cache
def in_six_orders(variant: str) -> list[End]:
    """Seed 0 of a variant in the listed order and in the five others."""
    others = ["-".join(order) for order in itertools.permutations(("c4", "wikitext", "gsm8k"))][1:]
    return [ends(name)[0] for name in (variant, *(f"{variant}+{order}" for order in others))]


def orders_row(ours: str, theirs: str | None) -> list[str]:
    """Mean log-perplexity and area over the orders, with the smallest and the largest; or what differs between two."""
    if theirs is None:
        known = in_six_orders(ours)
        return [_ranged([end.log for end in known]), _ranged([end.area for end in known])]
    pairs = list(zip(in_six_orders(ours), in_six_orders(theirs), strict=True))
    ratios = [math.log(a.area / b.area) for a, b in pairs]
    middle = math.exp(sum(ratios) / len(ratios))
    span = f"{math.exp(min(ratios)):.2f} … {math.exp(max(ratios)):.2f}"
    return [_ranged([a.log - b.log for a, b in pairs]), f"{middle:.2f} ({span})"]


def _ranged(values: list[float]) -> str:
    text = f"{sum(values) / len(values):.3f} ({min(values):.3f} … {max(values):.3f})"
    return text.replace("-", "−")


def switch_row(name: str, task: str) -> list[str]:
    """Loss and mean surprise before and after a run switched to a task."""
    (folder,) = ROOT.glob(f"results/*_ring/{name}")
    run = read_run(folder)
    start = next(span.start for span in run.spans if span.task == task)
    series = [list(zip(*run.series("train", path), strict=True)) for path in SIGNALS]
    return [f"{before:.2f} → {after:.2f}" for before, after in (around_switch(points, start) for points in series)]


def around_switch(points: list[tuple[int, float]], start: int) -> tuple[float, float]:
    """The mean over the last 20 steps of the old task, and over the first 5 of the new one.

    Logs count steps from 1, so step `start` is the last one of the old task.
    """
    before = [value for step, value in points if start - 20 < step <= start]
    after = [value for step, value in points if start < step <= start + 5]
    return sum(before) / len(before), sum(after) / len(after)


def effect_row(part: str) -> list[str]:
    """The row of a part in the study's table of effects: n, effect on the final loss, effect on forgetting."""
    table = (ROOT / "results" / "lab" / "paper" / "tables" / "effects.md").read_text(encoding="utf-8")
    (row,) = (match[2] for match in re.finditer(EFFECT, table, flags=re.MULTILINE) if match[1] == part)
    return [cell.strip() for cell in row.split("|")]


def alone_row(task: str) -> list[str]:
    """A task's perplexity after its own training: alone, after what the stream had before it, and with replay too."""
    known = []
    for name in (f"lab_single_{task}", "lab_transformer", "lab_transformer+replay_controlled"):
        run = read_run(ROOT / "results" / "lab" / f"{name}+s0")
        (end,) = (span.end for span in run.spans if span.task == task)
        known.append(f"{run.score('perplexity', task, end):,.1f}")
    return known


def refreshed(page: str) -> str:
    """The page with every row of numbers as the runs have it."""

    def filled(match: re.Match[str], cells: list[str]) -> str:
        head = match.group(0)[: match.start(match.lastindex or 1) - match.start()]
        return f"{head} {' | '.join(cells)} |"

    def pair(match: re.Match[str]) -> str:
        ours, theirs = (re.findall(r"`([^`]+)`", side) for side in match.group(1, 2))
        return filled(match, pair_row(ours, theirs))

    page = re.sub(VARIANT, lambda match: filled(match, variant_row(match[1])), page, flags=re.MULTILINE)
    page = re.sub(PAIR, pair, page, flags=re.MULTILINE)
    page = re.sub(ORDERS, lambda match: filled(match, orders_row(match[1], match[2])), page, flags=re.MULTILINE)
    page = re.sub(ALONE, lambda match: filled(match, alone_row(match[1])), page, flags=re.MULTILINE)
    page = re.sub(EFFECT, lambda match: filled(match, effect_row(match[1])), page, flags=re.MULTILINE)
    return re.sub(SWITCH, lambda match: filled(match, switch_row(match[1], match[2])), page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
