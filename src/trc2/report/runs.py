"""All runs of one stream as pandas tables: what tables, figures and studies of several runs start from.

table = read_runs([Path("results/lab")])
table.runs                       one row per run: variant, family, seed, order, draw, costs, …
table.scores                     one row per score: run, step, task, metric, value
table.settings                   one row per run, one column per setting
table.variants                   one row per variant
table.means(AUFC)                one row per variant: mean, low, high, n
table.differences(AUFC)          one row per other variant: reference − variant, p-values, verdict
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from trc2.costs.parameters import static_budget
from trc2.errors import UserError, did_you_mean
from trc2.report.run import Measure, Run, cost, final_loss, read_run, trained_tokens, training_flops, training_seconds
from trc2.report.variants import (
    FAMILIES,
    draw_of,
    family_title,
    group_runs,
    is_reference,
    missing_parts,
    replays,
    size_of,
    titles_of,
)
from trc2.runs.equal_cost import budget_of, equal_budgets
from trc2.runs.folder import RunFolder
from trc2.runs.identity import variant_settings
from trc2.stats.equivalence import decide, margin_from_aa, without_largest
from trc2.stats.intervals import Interval, mean_interval
from trc2.stats.paired import compare_all
from trc2.system.files import refuse_root
from trc2.system.numbers import exponential

MAX_DEPTH = 4  # levels below a folder that are searched for runs
TASK_TITLES = {  # (dataset, subset). Subset None stands for any
    ("allenai/c4", None): "C4",
    ("Salesforce/wikitext", "wikitext-2-raw-v1"): "WikiText-2 raw",
    ("Salesforce/wikitext", "wikitext-103-raw-v1"): "WikiText-103 raw",
    ("Salesforce/wikitext", "wikitext-103-v1"): "WikiText-103",
    ("openai/gsm8k", None): "GSM8K",
}


def read_runs(folders: Iterable[Path]) -> RunTable:
    """Read run folders, or all runs below folders. Refuse runs that cannot be compared."""
    return RunTable([read_run(path) for path in find_runs(folders)])


class RunTable:
    """Finished runs as frames. `unfinished` runs are listed and never counted."""

    def __init__(self, runs: Sequence[Run], reference: str | None = None) -> None:
        if not any(run.is_finished for run in runs):
            raise UserError(f"None of the {len(runs)} runs has ended: finish one with `trc2 resume {runs[0].folder}`.")
        names = _names(runs)
        self.unfinished = [name for name, run in zip(names, runs, strict=True) if not run.is_finished]
        self.by_name = {name: run for name, run in zip(names, runs, strict=True) if run.is_finished}
        check_comparable(list(self.by_name.values()))
        self.wanted_reference = reference
        self._values: dict[tuple[Measure, str | None, bool], pd.Series] = {}

    # --------------------------------------------------------------------------------------------------- frames

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per finished run. `draw` is 0, or the number of an A/A repeat with other replay draws."""
        given = {name: RunFolder(run.folder).variant() or {} for name, run in self.by_name.items()}
        groups = group_runs(self.by_name.values())
        names = {id(run): name for name, run in self.by_name.items()}
        axes = {id(run): given[name]["axes"] for name, run in self.by_name.items() if given[name].get("axes")}
        rows: dict[str, dict[str, Any]] = {}
        for title, group in zip(titles_of(groups, axes), groups, strict=True):
            for run in group.runs:
                config = run.config
                rows[names[id(run)]] = {
                    "variant": title,
                    "family": family_title(config),
                    "backbone": config.model.name,
                    "size": size_of(config),
                    "seed": config.train.seed,
                    "order": " → ".join(run.order),
                    "draw": draw_of(config),
                    "replays": replays(config),
                    "strategy": config.strategy.name,
                    "missing": ", ".join(missing_parts(config)),
                    "is_reference": is_reference(config),
                    "steps": run.end,
                    "tokens_per_step": config.train.tokens_per_step,
                    "unlearned": ", ".join(run.unlearned),
                    "parent": _parent(run),
                    "matrix_title": given[names[id(run)]].get("title", ""),
                    "tokens": trained_tokens(run),
                    "flops": training_flops(run),
                    "seconds": training_seconds(run),
                    **{name: cost(name)(run) for name in ("tokens_per_second", "peak_memory_gb", "gb_hours")},
                    "folder": str(run.folder),
                }
        frame = pd.DataFrame.from_dict(rows, orient="index")
        frame.index.name = "run"
        _name_copies(frame)
        return frame.loc[sorted(frame.index, key=lambda run: self._place(run, frame))]

    def _place(self, run: str, frame: pd.DataFrame) -> tuple[Any, ...]:
        """Competitors before references, families in their order, complete models first, small models first. Then the
        repetitions of a variant."""
        row, config = frame.loc[run], self.by_name[run].config
        families = list(FAMILIES)
        family = families.index(row.backbone) if row.backbone in families else len(families)
        lacks = len(missing_parts(config)) if row.backbone == "trc2" else int(row.replays)
        size = config.model.d_model, config.model.depth
        return bool(row.is_reference), family, lacks, *size, row.variant, row.seed, row.order, row.draw

    @cached_property
    def settings(self) -> pd.DataFrame:
        """One row per run, one column per setting that can change what is learned."""
        rows = {name: variant_settings(run.config) for name, run in self.by_name.items()}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("run").loc[self.runs.index]

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Every validation score of every run: run, step, task, metric, value."""
        rows = [
            (name, step, task, metric, value)
            for name in self.runs.index
            for metric, table in self.by_name[name].tables.items()
            for step in table.steps
            for task, value in table.scores[step].items()
        ]
        return pd.DataFrame(rows, columns=["run", "step", "task", "metric", "value"])

    @cached_property
    def variants(self) -> pd.DataFrame:
        """One row per variant with runs in the main order: n seeds, size, parameters, whether it learned its tasks."""
        chosen = self.runs.loc[self._in_order(None)]
        grouped = chosen.groupby("variant", sort=False)
        columns = ["family", "backbone", "size", "replays", "strategy", "missing", "is_reference", "tokens_per_step"]
        frame = grouped[columns].first()
        frame["n"] = grouped["seed"].nunique()
        frame["repeats"] = grouped["draw"].agg(lambda draws: int((draws != 0).sum()))
        frame["unlearned"] = grouped["unlearned"].agg(lambda texts: ", ".join(dict.fromkeys(filter(None, texts))))
        frame["parameters"] = [_parameters(self.example(variant)) for variant in frame.index]
        return frame

    # --------------------------------------------------------------------------------------------------- which runs

    def example(self, variant: str) -> Run:
        """The first run of a variant, for settings that all of them share."""
        return self.by_name[self.runs.index[self.runs.variant == variant][0]]

    def runs_of(self, variant: str, *, repeats: bool = True) -> list[Run]:
        """The runs of a variant in the main order, with or without A/A repeats."""
        rows = self.runs.loc[self._in_order(None)]
        rows = rows[(rows.variant == variant) & (repeats | (rows.draw == 0))]
        return [self.by_name[name] for name in rows.index]

    def _in_order(self, order: str | None) -> pd.Series:
        """Which runs were trained in an order, by default the main one. Reference runs have no order: all count."""
        return self.runs.is_reference | (self.runs.order == (self.order if order is None else order))

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks that every run measures, as listed. A continued run may have more."""
        lists = [run.tasks for run in self.by_name.values()]
        return [task for task in lists[0] if all(task in tasks for tasks in lists)]

    @cached_property
    def all_tasks(self) -> list[str]:
        """Every task of any run."""
        return list(dict.fromkeys(task for run in self.by_name.values() for task in run.tasks))

    @cached_property
    def orders(self) -> list[str]:
        """The orders of all tasks that some variant was trained in, the listed one first."""
        whole = [run for run in self.by_name.values() if len(run.order) == len(run.tasks)]
        listed = {" → ".join(run.tasks) for run in whole}
        orders = {" → ".join(run.order) for run in whole}
        return sorted(orders, key=lambda order: (order not in listed, order))

    @cached_property
    def order(self) -> str:
        """The main order, in which seeds are compared: the listed one if a variant was trained so."""
        return self.orders[0] if self.orders else " → ".join(next(iter(self.by_name.values())).order)

    @cached_property
    def competitors(self) -> list[str]:
        """Variants that are ranked: not the reference runs (joint or single-task training)."""
        return list(self.variants.index[~self.variants.is_reference])

    @cached_property
    def learned(self) -> list[str]:
        """Competitors whose runs all learned all their tasks: only these can be ranked by forgetting."""
        return [variant for variant in self.competitors if not self.variants.unlearned[variant]]

    @cached_property
    def reference(self) -> str:
        """The variant that others are compared with: the one asked for, else the first that learned its tasks."""
        if self.wanted_reference is None:
            return (self.learned or self.competitors or list(self.variants.index))[0]
        if self.wanted_reference not in self.variants.index:
            raise UserError(
                f"There is no variant '{self.wanted_reference}': "
                f"{did_you_mean(self.wanted_reference, list(self.variants.index))}"
            )
        return self.wanted_reference

    @cached_property
    def final_loss(self) -> Measure:
        return final_loss(self.tasks)

    @cached_property
    def task_titles(self) -> dict[str, str]:
        """The usual name of a known dataset, else the task's own name."""
        titles: dict[str, str] = {}
        for run in self.by_name.values():
            assert run.config.stream is not None
            for task in run.config.stream.tasks:
                by_dataset = TASK_TITLES.get((task.dataset or "", task.subset))
                titles.setdefault(task.name, by_dataset or TASK_TITLES.get((task.dataset or "", None), task.name))
        return titles if len(set(titles.values())) == len(titles) else {name: name for name in titles}

    # --------------------------------------------------------------------------------------------------- statistics

    def values(self, measure: Measure, *, order: str | None = None, repeats: bool = True) -> pd.Series:
        """A measure by (variant, seed): the mean over the A/A repeats of a seed, or without the repeats.

        Runs that do not have the number are left out.
        """
        if (measure, order, repeats) not in self._values:
            self._values[measure, order, repeats] = self._measured(measure, order, repeats)
        return self._values[measure, order, repeats]

    def _measured(self, measure: Measure, order: str | None, repeats: bool) -> pd.Series:
        rows = self.runs.loc[self._in_order(order)]
        if not repeats:
            rows = rows[rows.draw == 0]
        values = {name: measure.of(self.by_name[name]) for name in rows.index}
        numbers = {name: value for name, value in values.items() if value is not None}
        frame = rows.loc[list(numbers), ["variant", "seed"]].assign(value=list(numbers.values()))
        return frame.groupby(["variant", "seed"], sort=False)["value"].agg(lambda draws: math.fsum(draws) / len(draws))

    def seeds(self, measure: Measure, variant: str, **chosen: Any) -> dict[int, float]:
        """`values` of one variant, by seed."""
        series = self.values(measure, **chosen)
        if variant not in series.index.get_level_values("variant"):
            return {}
        return {int(seed): float(value) for seed, value in series.loc[variant].items()}

    def means(self, measure: Measure, **chosen: Any) -> pd.DataFrame:
        """By variant: mean over seeds, its 95 % t-interval (NaN for one seed), n."""
        rows = {}
        series = self.values(measure, **chosen)
        for variant in self.variants.index.intersection(series.index.get_level_values("variant")):
            interval = interval_of(list(series.loc[variant]), is_log=measure.is_log)
            rows[variant] = (interval.mean, interval.low, interval.high, interval.n)
        return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high", "n"])

    def repeat_differences(self, measure: Measure) -> list[float]:
        """First minus second of every A/A pair: what repeating a run with other replay draws does."""
        first = {(row.variant, row.seed): name for name, row in self._drawn(is_repeat=False)}
        differences = []
        paired: set[tuple[str, int]] = set()
        for name, row in self._drawn(is_repeat=True):
            key = row.variant, row.seed
            if key in first and key not in paired:
                paired.add(key)  # a run belongs to one pair at most
                one, other = (measure.of(self.by_name[run]) for run in (first[key], name))
                differences += [one - other] if one is not None and other is not None else []
        return differences

    def _drawn(self, *, is_repeat: bool) -> Iterable[tuple[str, Any]]:
        rows = self.runs.loc[self._in_order(None) & ~self.runs.is_reference & self.runs.replays]
        return rows[(rows.draw != 0) == is_repeat].iterrows()

    def margin(self, measure: Measure) -> float | None:
        """How much two variants may differ and still be called equivalent, from A/A pairs. None without them."""
        differences = without_largest(self.repeat_differences(measure))
        if not any(differences) or not all(map(math.isfinite, differences)):
            return None
        return margin_from_aa(differences)

    def differences(self, measure: Measure, reference: str | None = None, **chosen: Any) -> pd.DataFrame:
        """Reference − variant on equal seeds, for every other competitor.

        Columns: mean, low, high, n, p, p_holm (corrected for the number of comparisons), verdict (of the reference).
        """
        reference = reference or self.reference
        ours = self.seeds(measure, reference, **chosen)
        others = {
            variant: values
            for variant in self.competitors
            if variant != reference and set(values := self.seeds(measure, variant, **chosen)) & set(ours)
        }
        rows, margin = {}, self.margin(measure)
        for variant, pair in compare_all(ours, others).items():
            verdict = decide(pair, margin, direction="min" if measure.better == "lower" else "max").value
            if measure.is_forgetting and (self.variants.unlearned[variant] or self.variants.unlearned[reference]):
                verdict = "not learned"
            interval = pair.interval
            rows[variant] = (pair.mean, interval.low, interval.high, pair.n, pair.p, pair.p_holm, verdict)
        columns = ["mean", "low", "high", "n", "p", "p_holm", "verdict"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def interval_of(values: Sequence[float], *, is_log: bool = False) -> Interval:
    """The mean and its 95 % t-interval. With `is_log` the interval is computed of the logarithms, so it is positive."""
    interval = mean_interval(values)
    if not is_log or interval.n == 1 or not all(value > 0 for value in values):
        return interval
    logs = mean_interval(math.log(value) for value in values)
    return Interval(interval.mean, exponential(logs.low), exponential(logs.high), interval.n)


_counted: dict[str, int] = {}


def _parameters(run: Run) -> int:
    """All parameters of the run's model, frozen ones too."""
    model = run.config.model
    key = model.model_dump_json(exclude={name for name in type(model).model_fields if name.startswith("replay")})
    if key not in _counted:
        _counted[key] = sum(part.total for part in static_budget(model).values())
    return _counted[key]


def _names(runs: Sequence[Run]) -> list[str]:
    """Folder names, or whole paths where two are equal."""
    is_distinct = len({run.name for run in runs}) == len(runs)
    return [run.name if is_distinct else str(run.folder) for run in runs]


def _name_copies(frame: pd.DataFrame) -> None:
    """Give copies of one run, with equal settings and seed, variants of their own: they must not count as seeds."""
    for _, group in frame.groupby(["variant", "seed", "order", "draw"], sort=False):
        for copy in group.index[1:]:
            frame.loc[copy, "variant"] = f"{frame.variant[copy]} (copy {copy})"


# ------------------------------------------------------------------------------------------------------ finding runs


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The run folders among and below some folders, each once, in the order of their names."""
    paths: list[Path] = []
    for folder in folders:
        below = [folder] if RunFolder(folder).is_run else _runs_below(folder)
        if not below:
            raise UserError(
                f"{folder} is not a run folder and holds none: give a folder that `trc2 train` or `trc2 sweep` wrote."
            )
        paths += [path for path in below if path not in paths]
    return paths


def holds_runs(folder: Path) -> bool:
    """Whether a folder is not a run itself and has runs below it."""
    return not RunFolder(folder).is_run and bool(_runs_below(folder))


def _runs_below(folder: Path) -> list[Path]:
    """Run folders up to a few levels down, without hidden folders and the insides of runs."""
    refuse_root(folder, "runs")
    paths = []
    for name, below, _ in os.walk(folder):
        path = Path(name)
        run = RunFolder(path)
        if run.is_run and run.has_metrics:
            paths.append(path)
        is_end = run.is_run or len(path.relative_to(folder).parts) >= MAX_DEPTH
        below[:] = [] if is_end else sorted(entry for entry in below if not entry.startswith("."))
    return sorted(paths)


# ------------------------------------------------------------------------------------------------------ comparability


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs of different streams, lengths or work per step.

    Runs of one lineage, such as a run and its continuation, may have more tasks and steps than their parents.
    """
    roots = _roots(runs)
    streams = [run for run, root in zip(runs, roots, strict=True) if root is run]
    _check_one_stream(streams)
    for run, root in zip(runs, roots, strict=True):
        shared = [task for task in run.tasks if task in root.tasks]
        if not shared or any(_held_out(run, task) != _held_out(root, task) for task in shared):
            raise UserError(f"{run.folder} and {root.folder} measure other text: report them apart.")
    _check_equal_work(streams)


def _roots(runs: Sequence[Run]) -> list[Run]:
    """For each run the oldest of its ancestors among the runs, by default the run itself."""
    by_folder = {run.folder.resolve(): run for run in runs}
    roots = []
    for run in runs:
        root, seen = run, {run.folder.resolve()}
        while (folder := _parent_folder(root)) in by_folder and folder not in seen:
            seen.add(folder)
            root = by_folder[folder]
        roots.append(root)
    return roots


def _parent(run: Run) -> str:
    lineage = RunFolder(run.folder).lineage()
    return "" if lineage is None else lineage.parent


def _parent_folder(run: Run) -> Path:
    """The folder of the parent: as parent.json says, or beside the run if the runs were moved together."""
    lineage = RunFolder(run.folder).lineage()
    if lineage is None or not lineage.is_run:
        return run.folder.resolve()
    try:
        return lineage.find(run.folder).resolve()
    except UserError:
        return run.folder.resolve().parent / Path(lineage.parent).name


def _held_out(run: Run, task: str) -> Any:
    splits = run.data["tasks"][task]["splits"]
    return splits.get("validation", {}).get("sha256")


def declares_length(run: Run) -> bool:
    """Whether the settings say why the run has another length: a reference run, or a budget in tokens or FLOPs."""
    return run.config.budget.match != "steps" or is_reference(run.config)


def _check_one_stream(runs: Sequence[Run]) -> None:
    first = runs[0]
    lengths: dict[frozenset[tuple[str, int]], Run] = {}
    for run in (run for run in runs if not declares_length(run)):
        lengths.setdefault(frozenset((s.task, s.end - s.start) for s in run.spans), run)
    for run in runs[1:]:
        if run.tasks != first.tasks:
            raise UserError(
                f"{run.folder} has the tasks {', '.join(run.tasks)}, {first.folder} {', '.join(first.tasks)}: report "
                "them apart."
            )
        if run.data["fingerprint"] != first.data["fingerprint"]:
            raise UserError(f"{run.folder} and {first.folder} were trained on different data: report them apart.")
    if len(lengths) > 1:
        one, other = list(lengths.values())[:2]
        raise UserError(
            f"{one.folder} and {other.folder} trained their tasks for other numbers of steps, and budget.match does "
            "not say so: report them apart."
        )


def _check_equal_work(runs: Sequence[Run]) -> None:
    """Require one run whose work per step equals every other's within the tolerance of `equal_budgets`.

    Pairwise chains would let the tolerance add up.
    """
    budgets = [budget_of(run.as_trained) for run in runs]
    unequal = [
        [run for run, other in zip(runs, budgets, strict=True) if not equal_budgets(budget, other)]
        for budget in budgets
    ]  # fmt: skip
    odd, middle = min(zip(unequal, runs, strict=True), key=lambda pair: len(pair[0]))
    if odd:
        ours, theirs = (run.config.train.tokens_per_step for run in (odd[0], middle))
        raise UserError(
            f"{odd[0].folder} has {ours} new tokens a step, {middle.folder} {theirs}, and replay does not make up for "
            "it: report them apart."
        )
