"""What the page shows, as plain values: every number is computed here, the page only draws."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trc2 import __version__
from trc2.errors import plain
from trc2.metrics.forgetting import Metric, ScoreTable, backward_transfer
from trc2.metrics.learning import unlearned
from trc2.report.evidence import AREA, FORGETTING, PRIMARY, SPEED, Arm, Evidence
from trc2.report.finished import FinishedRun, scores_in
from trc2.report.names import learning_settings, order_of, title_of
from trc2.stats.intervals import mean_interval, moments

PRIMARY_METRIC = "perplexity"
CURVE_DIGITS, VALUE_DIGITS = 5, 6
MAX_TRACE = 100  # points of a training curve; evaluations are never thinned
TRACES = {
    "train/loss_lm": "training loss (nats)",
    "replay/coefficient": "weight of replay",
    "hippocampus/threshold": "write threshold τ",
}
TITLES = {"perplexity": "perplexity", "bleu": "BLEU", "token_accuracy": "token accuracy"}
NOTES = {
    "bleu": "An untrained network that repeats its input has an excellent BLEU: do not compare with step 0, and do not "
    "read forward transfer."
}


@dataclass(frozen=True)
class Column:
    """One number of a run and how it is headed; None where there is no such number, NaN where it is broken."""

    name: str
    title: str
    better: str
    of: Callable[[FinishedRun], float | None]
    unit: str = ""
    metric: str | None = None


def page_data(evidence: Evidence) -> dict[str, Any]:
    """Everything the page draws or says. Equal evidence gives equal data, wherever the run folders lie."""
    known = scores_in(evidence.runs)
    metrics = list(known)
    columns = [column for metric in known.values() for column in metric_columns(metric, evidence.tasks)] + [_speed()]
    families = {arm.family.name: arm.family for arm in evidence.arms}
    places = relative_names([run.folder for run in [*evidence.runs, *evidence.unfinished]])
    common, differing = split_settings(evidence.runs)
    grids: list[list[int]] = []
    runs = []
    arm_of_run = [place for place, arm in enumerate(evidence.arms) for _ in arm.runs]
    for index, (arm, run) in enumerate(zip(arm_of_run, evidence.runs, strict=True)):
        runs.append(
            {
                "name": places[index],
                "arm": arm,
                "seed": run.config.train.seed,
                "order": _order_index(evidence, run),
                "tasks": list(order_of(run.config)),
                "stretches": [[evidence.tasks.index(s.task), s.start, s.end] for s in run.stretches],
                "unlearnt": unlearned(run.tables[PRIMARY_METRIC]),  # else not learning would look like not forgetting
                "values": [number(column.of(run), VALUE_DIGITS) for column in columns],
                "curves": [_curves(run, metric, evidence.tasks, grids) for metric in metrics],
                "traces": [_trace(run, name) for name in TRACES],
                "settings": differing[index],
            }
        )
    return {
        "version": __version__,
        "data": _data(evidence),
        "tasks": evidence.tasks,
        "orders": [list(order) for order in evidence.orders],
        "seeds": sorted({run.config.train.seed for run in evidence.runs}),
        "metrics": [
            {"name": name, "title": _title(name), "log": known[name].is_log, "note": NOTES.get(name, "")}
            for name in metrics
        ],
        "columns": [
            {
                "name": column.name,
                "title": column.title,
                "better": column.better,
                "unit": column.unit,
                "metric": None if column.metric is None else metrics.index(column.metric),
            }
            for column in columns
        ],
        "traces": list(TRACES.values()),
        "families": [
            {"title": family.title, "marker": family.marker, "colour": family.colour} for family in families.values()
        ],
        "arms": [_arm(arm, evidence, columns, metrics, list(families), grids) for arm in evidence.arms],
        "runs": runs,
        "grids": grids,
        "common": common,
        "unfinished": [
            {
                "name": place,
                "title": plain(title_of(run.config)),
                "seed": run.config.train.seed,
                "tasks": list(order_of(run.config)),
                "step": run.last_step,
                "of": run.stretches[-1].end,
            }
            for place, run in zip(places[len(runs) :], evidence.unfinished, strict=True)
        ],
    }


def number(value: float | None, digits: int) -> float | str | None:
    """A number as JSON may hold it, rounded to some digits; what is not finite is told by its name."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def relative_names(folders: Sequence[Path]) -> list[str]:
    """Folders as seen from what they have in common: a page must not tell where on a machine the runs lie."""
    whole = [folder.resolve() for folder in folders]
    root = Path(os.path.commonpath([path.parent for path in whole]))
    return [plain(path.relative_to(root).as_posix()) for path in whole]


# --------------------------------------------------------------------------------------------------------- columns


def metric_columns(how: Metric, tasks: Sequence[str]) -> list[Column]:
    """What the table says of one metric: all tasks at the end, keeping, transfer, then each task at the end."""
    metric, better = how.name, "lower" if how.direction == "min" else "higher"
    kept = {"aufc": AREA, "forgetting": FORGETTING} if metric == PRIMARY_METRIC else {}
    unit = PRIMARY.unit if how.is_log else ""
    title = PRIMARY.title if metric == PRIMARY_METRIC else f"mean {_title(metric)} of all tasks at the end"
    columns = [Column(f"{metric}/end", title, better, _at_end(how), unit, metric)]
    for name, words, side in (
        ("aufc", f"forgetting area (AUFC, {_title(metric)})", "lower"),
        ("forgetting", f"forgetting at the end ({_title(metric)})", "lower"),
        ("bwt", "backward transfer", "higher"),
        ("fwt", "forward transfer", "higher"),
    ):
        words = kept[name].title if name in kept else words
        columns.append(Column(f"{metric}/{name}", words, side, _summary(metric, name), unit, metric))
    for task in tasks:
        columns.append(
            Column(f"{metric}/end/{task}", f"{task} at the end", better, _score_at_end(metric, task), "", metric)
        )
    return columns


def _title(metric: str) -> str:
    return TITLES.get(metric, metric.replace("_", " "))


def _at_end(metric: Metric) -> Callable[[FinishedRun], float | None]:
    """The mean over all tasks after the last step, of logarithms where the metric is read so; else None."""

    def of(run: FinishedRun) -> float | None:
        if metric.name == PRIMARY_METRIC:
            return PRIMARY.of(run)
        found = [_score_at_end(metric.name, task)(run) for task in run.tasks]
        known = [metric.transform(value) for value in found if value is not None]
        return sum(known) / len(known) if len(known) == len(found) else None

    return of


def _summary(metric: str, name: str) -> Callable[[FinishedRun], float | None]:
    return lambda run: run.summary(metric).get(f"cl/{metric}/{name}")


def _score_at_end(metric: str, task: str) -> Callable[[FinishedRun], float | None]:
    def of(run: FinishedRun) -> float | None:
        table = run.tables.get(metric)
        return None if table is None else table.scores.get(run.stretches[-1].end, {}).get(task)

    return of


def _speed() -> Column:
    return Column(
        SPEED.name, SPEED.title, SPEED.better, lambda run: run.final("end").get("efficiency/tokens_per_second"),
        SPEED.unit,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ arms


def _arm(
    arm: Arm,
    evidence: Evidence,
    columns: Sequence[Column],
    metrics: Sequence[str],
    families: list[str],
    grids: list[list[int]],
) -> dict[str, Any]:
    means = {}
    for index, order in enumerate(evidence.orders):
        here = arm.in_order(order)
        if len(here) > 1:
            means[str(index)] = [_mean_curves(here, metric, evidence.tasks, grids) for metric in metrics]
    return {
        "title": plain(arm.title),
        "family": families.index(arm.family.name),
        "size": arm.size,
        "replays": arm.replays,
        "bound": arm.is_bound,
        "intervals": intervals(arm, evidence, columns),
        "means": means,
    }


def intervals(arm: Arm, evidence: Evidence, columns: Sequence[Column]) -> dict[str, list[Any]]:
    """[mean, low, high, n] of every column, by what is looked at: `ORDER|SEED`, each a number or `all`.

    Repetitions are seeds. Over all orders a seed counts once, with the mean over its orders: they share its weights,
    and all orders there are, are no sample of orders. Seeds that lack an order are left out, and so are arms that lack
    one in all seeds. A bound has no order to choose: it stands under `any`, with every run. One seed in one order is
    one run, which the page has already.
    """
    seeds = sorted({run.config.train.seed for run in arm.runs})
    scopes: dict[str, list[list[FinishedRun]]] = {}
    if arm.is_bound:
        scopes["any|all"] = [[run] for run in arm.runs]
        scopes |= {f"any|{seed}": [[run] for run in arm.runs if run.config.train.seed == seed] for seed in seeds}
    else:
        by_seed = {seed: [run for run in arm.runs if run.config.train.seed == seed] for seed in seeds}
        whole = {seed: runs for seed, runs in by_seed.items() if {*map(_order_of, runs)} == {*evidence.orders}}
        scopes["all|all"] = list(whole.values())
        scopes |= {f"all|{seed}": [runs] for seed, runs in whole.items()}
        for index, order in enumerate(evidence.orders):
            scopes[f"{index}|all"] = [[run] for run in arm.in_order(order)]
    return {key: [_interval(groups, column) for column in columns] for key, groups in scopes.items() if groups}


def _order_of(run: FinishedRun) -> tuple[str, ...]:
    return order_of(run.config)


def _interval(groups: list[list[FinishedRun]], column: Column) -> list[Any] | None:
    values = []
    for group in groups:
        known = [value for value in map(column.of, group) if value is not None]
        if known:
            values.append(moments(known).mean)
    if not values:
        return None
    interval = mean_interval(values)
    low, high = (interval.low, interval.high) if interval.is_known else (None, None)
    return [number(interval.mean, VALUE_DIGITS), number(low, VALUE_DIGITS), number(high, VALUE_DIGITS), interval.n]


def _order_index(evidence: Evidence, run: FinishedRun) -> int | None:
    order = order_of(run.config)
    return evidence.orders.index(order) if order in evidence.orders else None


# ---------------------------------------------------------------------------------------------------------- curves


def _curves(run: FinishedRun, metric: str, tasks: Sequence[str], grids: list[list[int]]) -> dict[str, Any] | None:
    """Scores by task, how far each past task is from its post-task score, and the mean of that; all over steps."""
    table = run.tables.get(metric)
    if table is None:
        return None
    return _encoded(
        table.steps,
        [[table.scores[step].get(task) for step in table.steps] for task in tasks],
        [losses(table, task) for task in tasks],
        [_negative(backward_transfer(table, step)) for step in table.steps],
        grids,
    )


def losses(table: ScoreTable, task: str) -> list[float | None]:
    """How much worse a task is than at its own boundary, from there on; below 0 it is better. None before."""
    stretch = next((stretch for stretch in table.stretches if stretch.task == task), None)
    if stretch is None or stretch not in table.past(table.steps[-1]):
        return [None] * len(table.steps)
    return [
        table.metric.gap(better=table.post(stretch), worse=table.value(step, task))
        if step >= stretch.end and table.has(step, task)
        else None
        for step in table.steps
    ]


def _mean_curves(
    runs: list[FinishedRun], metric: str, tasks: Sequence[str], grids: list[list[int]]
) -> dict[str, Any] | None:
    """The mean over seeds where all were measured; of logarithms, and back, where the metric is read so."""
    tables = [run.tables[metric] for run in runs if metric in run.tables]
    if len(tables) < len(runs):
        return None
    steps = sorted(set.intersection(*(set(table.steps) for table in tables)))
    is_log = tables[0].metric.is_log

    def score(step: int, task: str) -> float | None:
        if not all(table.has(step, task) for table in tables):
            return None
        mean = moments(table.value(step, task) for table in tables).mean
        return math.exp(mean) if is_log else mean

    def gap(at: list[dict[int, float | None]], step: int) -> float | None:
        known = [value for value in (gaps[step] for gaps in at) if value is not None]
        return moments(known).mean if len(known) == len(at) else None

    by_task = [[dict(zip(table.steps, losses(table, task), strict=True)) for table in tables] for task in tasks]
    overall = [{step: _negative(backward_transfer(table, step)) for step in steps} for table in tables]
    return _encoded(
        steps,
        [[score(step, task) for step in steps] for task in tasks],
        [[gap(gaps, step) for step in steps] for gaps in by_task],
        [gap(overall, step) for step in steps],
        grids,
    )


def _encoded(
    steps: list[int],
    scores: list[list[float | None]],
    gaps: list[list[float | None]],
    mean: list[float | None],
    grids: list[list[int]],
) -> dict[str, Any]:
    if steps not in grids:
        grids.append(steps)
    return {
        "grid": grids.index(steps),
        "scores": [[number(value, CURVE_DIGITS) for value in row] for row in scores],
        "gaps": [[number(value, CURVE_DIGITS) for value in row] if _any(row) else None for row in gaps],
        "gap": [number(value, CURVE_DIGITS) for value in mean] if _any(mean) else None,
    }


def _any(values: list[float | None]) -> bool:
    return any(value is not None for value in values)


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _trace(run: FinishedRun, name: str) -> list[list[Any]] | None:
    """(steps, values) of what was told while training, thinned evenly; its first and last points stay."""
    points = {record.step: record.metrics[name] for record in run.records if name in record.metrics}
    if not points:
        return None
    steps = sorted(points)
    if len(steps) > MAX_TRACE:
        last = len(steps) - 1
        steps = [steps[round(index * last / (MAX_TRACE - 1))] for index in range(MAX_TRACE)]
    return [steps, [number(points[step], CURVE_DIGITS) for step in steps]]


# -------------------------------------------------------------------------------------------- settings and the data


def split_settings(runs: Sequence[FinishedRun]) -> tuple[list[list[str]], list[list[list[str]]]]:
    """(path, value) of the settings all runs share, and for each run of those in which runs differ."""
    known = [_settings(run) for run in runs]
    paths = sorted({path for settings in known for path in settings})
    shared = {path for path in paths if len({settings.get(path) for settings in known}) == 1}
    common = [[path, known[0][path]] for path in paths if path in shared]
    return common, [[[path, s[path]] for path in paths if path in s and path not in shared] for s in known]


def _settings(run: FinishedRun) -> dict[str, str]:
    """Every setting that learning depends on as text; where things lie on a machine is none."""
    settings: dict[str, Any] = learning_settings(run.config)
    if settings.get("model.replay_seed") is not None:
        settings["model.replay_seed"] += run.config.train.seed
    settings |= {"train.seed": run.config.train.seed, "stream.order": list(order_of(run.config))}
    found: dict[str, str] = {}
    for path, value in settings.items():
        found |= {plain(name): plain(_text(inner)) for name, inner in _leaves(path, value)}
    return found


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    """Lists of settings, such as tasks, one by one; they are called by their names where they have some."""
    if isinstance(value, dict):
        return [leaf for name, inner in value.items() for leaf in _leaves(f"{path}.{name}", inner)]
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [leaf for i, item in enumerate(value) for leaf in _leaves(f"{path}.{item.get('name', i)}", item)]
    return [(path, value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _data(evidence: Evidence) -> dict[str, Any]:
    run = evidence.runs[0]
    splits = [run.data["tasks"][task]["splits"]["train"] for task in evidence.tasks]
    return {
        "fingerprint": plain(str(run.data["fingerprint"])),
        "documents": [split["documents"] for split in splits],
        "tokens": [split["tokens"] for split in splits],
        "tokens_per_step": run.config.train.tokens_per_step,
    }
