"""The paper's tables, from any runs: as many rows as there are arms and as many columns as there are tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from trc2.bench.footprint import GIB, PAPER_COLUMNS, paper_accounting, static_budget
from trc2.bench.tables import budget_numbers
from trc2.config import TRC2Config
from trc2.metrics.forgetting import METRICS
from trc2.report.evidence import Arm
from trc2.report.finished import FinishedRun, scores_in
from trc2.report.grid import Cell, Column, Number, Row, Table
from trc2.report.scope import (
    METRIC_TITLES,
    NOT_LEARNT,
    LeftOut,
    Reading,
    Scope,
    area_at,
    boundary_score,
    checkpoints,
    cost,
    factorial,
    final_score,
    metrics_of,
    parameters,
    text_metric,
    unlearnt,
)

Better = Literal["lower", "higher"]
INTERVALS = "Mean ± half width of the 95 % t-interval over n seeds, where n > 1."
SPEED_AND_BILL: tuple[tuple[str, str, Better], ...] = (
    ("tokens/s", "tokens_per_second_last", "higher"),
    ("GB·h per device", "gb_hours", "lower"),
)


def dagger_words(scope: Scope) -> str:
    """What the dagger means, if there is one."""
    if not any(unlearnt(run) for arm in scope.arms for run in scope.runs(arm)):
        return ""
    return f" {NOT_LEARNT}: a run did not learn one of its tasks, so its forgetting means nothing."


class Builder:
    """Columns with what fills them; rows are arms."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.columns: list[Column] = []
        self.fillers: list[Callable[[Arm], Cell]] = []

    def add(self, column: Column, fill: Callable[[Arm], Cell]) -> None:
        self.columns.append(column)
        self.fillers.append(fill)

    def add_number(self, column: Column, of: Reading, scale: float = 1.0) -> None:
        self.add(column, lambda arm: self.scope.number(arm, of, scale))

    def add_heads(self) -> None:
        """Who: title, parameters, width, depth, n."""
        model = self.scope
        self.add(Column("arm", is_head=True), model.title)
        self.add(Column("params"), lambda arm: parameters(arm))
        self.add(Column("d"), lambda arm: arm.runs[0].config.model.d_model)
        self.add(Column("L"), lambda arm: arm.runs[0].config.model.depth)
        self.add(Column("n"), lambda arm: len(model.runs(arm)))

    def add_bill(self, panel: str = "") -> None:
        for title, name, better in SPEED_AND_BILL:
            self.add_number(Column(title, panel=panel, better=better), _speed if "tokens" in title else cost(name))

    def add_scores(self, of: Callable[[str, str], Reading], panel: str = "") -> None:
        """Perplexity and a text score of every task."""
        tasks, titles = self.scope.evidence.tasks, self.scope.task_titles
        for task in tasks:
            self.add_number(Column(titles[task], "PPL", panel, "lower"), of("perplexity", task))
        for task in tasks:
            metric = text_metric(self.scope.evidence.runs[0], task)
            if metric is not None:
                is_share = metric == "token_accuracy"
                title = f"{titles[task]} (%)" if is_share else titles[task]
                column = Column(title, "text score", panel, "higher")
                self.add_number(column, of(metric, task), 100.0 if is_share else 1.0)
        for name, plugged in scores_in(self.scope.evidence.runs).items():
            for task in tasks if name not in METRICS else []:
                better: Literal["lower", "higher"] = "lower" if plugged.direction == "min" else "higher"
                self.add_number(Column(titles[task], name.replace("_", " "), panel, better), of(name, task))

    def add_areas(self, panel: str = "") -> None:
        """AUFC of every metric at the two checkpoints."""
        for metric in metrics_of(run for arm in self.scope.competitors for run in self.scope.runs(arm)):
            for place, title in checkpoint_titles(self.scope).items():
                group = f"{METRIC_TITLES.get(metric, metric)} AUFC"
                self.add_number(Column(title, group, panel, "lower"), area_at(metric, place))

    def table(
        self, name: str, title: str, caption: str, arms: Sequence[Arm], may_win: Callable[[Arm], bool] | None = None
    ) -> Table:
        """Rows in the order of the arms; only competitors are set in bold, and of these those that may win."""
        competes = [self.scope.competes(arm) and (may_win is None or may_win(arm)) for arm in arms]
        cells = [tuple(fill(arm) for fill in self.fillers) for arm in arms]
        rows = tuple(Row(here, not good) for here, good in zip(cells, competes, strict=True))
        return Table(name, title, caption, tuple(self.columns), rows)


def _speed(run: FinishedRun) -> float | None:
    """The last logged speed, as the paper prints it; of older runs the mean."""
    last = cost("tokens_per_second_last")(run)
    return cost("tokens_per_second")(run) if last is None else last


def checkpoint_titles(scope: Scope) -> dict[int, str]:
    """Checkpoints, counted from the end, and how they are called: by their step where all runs share it."""
    found = [checkpoints(run) for arm in scope.competitors for run in scope.runs(arm)]
    if not found or not all(found):
        return {}
    words = {-2: "before the last task", -1: "at the end"}
    shared = range(-min(len(steps) for steps in found), 0)
    steps = {place: {known[place] for known in found} for place in shared}
    return {place: f"step {min(here):,}" if len(here) == 1 else words[place] for place, here in steps.items()}


def text_words(scope: Scope) -> str:
    """Which text score belongs to which task."""
    run, titles = scope.evidence.runs[0], scope.task_titles
    chosen = {task: text_metric(run, task) for task in scope.evidence.tasks}
    parts = []
    for metric in dict.fromkeys(name for name in chosen.values() if name is not None):
        tasks = [titles[task] for task, name in chosen.items() if name == metric]
        parts.append(f"{METRIC_TITLES.get(metric, metric)} on {', '.join(tasks)}")
    return f" Text scores: {'; '.join(parts)}." if parts else ""


# ------------------------------------------------------------------------------------------------------- the tables


def boundary_table(scope: Scope) -> Table:
    """Every task right after its own training, and what the run cost."""
    builder = Builder(scope)
    builder.add_heads()
    builder.add_scores(boundary_score)
    builder.add_bill()
    caption = (
        f"Task-boundary performance on {scope.order_words(scope.order)}: validation scores of every task right after "
        f"its own training, the last logged speed, and peak memory × hours. {INTERVALS}{text_words(scope)} Bold: the "
        f"best mean; joint and single-task runs and A/A twins do not compete.{dagger_words(scope)}"
    )
    return builder.table("boundary", "Task-boundary performance", caption, scope.arms)


def area_table(scope: Scope) -> Table:
    """AUFC before the last task and at the end."""
    if not checkpoint_titles(scope):
        raise LeftOut("needs runs of at least two tasks one after another")
    builder = Builder(scope)
    builder.add_heads()
    builder.add_areas()
    builder.add_bill()
    caption = (
        "Area under the forgetting curve (AUFC), divided by time, mean over past tasks: at the boundary before the "
        "last task and at the end. Perplexity in nats of log-perplexity; BLEU and token accuracy divided by the task's "
        f"gain where it is large enough. {INTERVALS} Bold: the smallest mean of an arm that learnt its tasks."
        f"{dagger_words(scope)}"
    )
    return builder.table("aufc", "Forgetting area", caption, scope.competitors, lambda arm: not scope.unlearnt(arm))


def ablation_table(scope: Scope) -> Table:
    """The paper's lesions: thalamus on and off × hippocampus (memory and replay) on and off, in two panels."""
    rows = {parts: arm for parts, arm in factorial(scope).items() if parts[1] == parts[2]}
    if len(rows) < 2:
        raise LeftOut("needs TRC² with and without its thalamus or hippocampus (memory and replay)")
    builder = Builder(scope)
    switches = {arm.title: parts for parts, arm in rows.items()}
    for name, place in (("thalamus", 0), ("hippocampus", 1)):
        builder.add(Column(name, is_head=True), _tick(switches, place))
    builder.add(Column("n", is_head=True), lambda arm: len(scope.runs(arm)))
    steps = scope.steps
    scores = f"Scores at the last step ({steps:,})"
    builder.add_scores(final_score, panel=scores)
    builder.add_bill(panel=scores)
    if checkpoint_titles(scope):
        areas = "Retention (AUFC)"
        builder.add_areas(panel=areas)
        builder.add_bill(panel=areas)
    size = next(iter(rows.values())).size
    caption = (
        f"Ablation of TRC² {size}: with (✓) and without (✗) its thalamus and its hippocampus, which is memory and "
        f"replay together. Above: validation scores after the last step. Below: forgetting areas. {INTERVALS}"
        f"{text_words(scope)}{dagger_words(scope)}"
    )
    return builder.table("ablation", "Ablation", caption, list(rows.values()))


def _tick(switches: dict[str, tuple[bool, bool, bool]], place: int) -> Callable[[Arm], str]:
    return lambda arm: "✓" if switches[arm.title][place] else "✗"


def distinct_models(scope: Scope) -> dict[str, Arm]:
    """One arm for every different model, by what to call it."""
    found: dict[str, Arm] = {}
    for arm in scope.evidence.arms:
        model = arm.runs[0].config.model.model_dump(exclude={"replay", "replay_seed"})
        found.setdefault(repr(model), arm)
    return {_model_title(arm): arm for arm in found.values()}


def _model_title(arm: Arm) -> str:
    missing = [part for part in arm.lesions if part != "replay"]
    return f"{arm.family.title} {arm.size}" + "".join(f" − {part}" for part in missing)


def budget_table(scope: Scope) -> Table:
    """Parameters, static memory and arithmetic of every model."""
    columns = [Column("model", is_head=True), Column("params"), Column("active"), Column("body")]
    columns += [Column("static MiB"), Column("forward", "FLOPs per token"), Column("training", "FLOPs per token")]
    columns.append(Column("with replay", "FLOPs per token"))
    rows = []
    for title, arm in distinct_models(scope).items():
        config = arm.runs[0].config
        numbers = budget_numbers(config)
        size = sum(part.bytes for part in static_budget(config.model).values()) / 2**20
        counts = [round(numbers[name]) for name in ("params", "active", "body")]
        flops = [round(numbers[name]) for name in ("forward", "training", "with replay")]
        rows.append(Row((title, *counts, Number(size), *flops)))
    caption = (
        "Budget of every model, counted, not measured. Active: parameters a token meets; body: of these, neither "
        "embedding nor positions; static: parameters and buffers. FLOPs of matrix products per token of the batch with "
        "a full memory; with replay: of its default size."
    )
    return Table("budget", "Budget", caption, tuple(columns), tuple(rows))


def component_table(scope: Scope) -> Table:
    """Shares of columns, hippocampus and thalamus in a TRC², in the paper's accounting."""
    titles = {"columns": "columns (%)", "hippocampus": "hippocampus (%)", "thalamus": "thalamus (%)"}
    columns = [Column("model", is_head=True)]
    columns += [Column(titles[name], "parameters") for name in PAPER_COLUMNS]
    columns += [Column(titles[name], "memory") for name in PAPER_COLUMNS]
    columns.append(Column("MiB", "memory"))
    rows = []
    for title, arm in distinct_models(scope).items():
        model = arm.runs[0].config.model
        if isinstance(model, TRC2Config):
            parts = [paper_accounting(model)[name] for name in PAPER_COLUMNS]
            shares = [100 * part[place] / sum(p[place] for p in parts) for place in (0, 1) for part in parts]
            total = sum(part[1] for part in parts) / GIB * 1024
            rows.append(Row((title, *map(Number, shares), Number(total))))
    if not rows:
        raise LeftOut("needs a run of TRC²")
    caption = (
        "Component shares of TRC² in the paper's accounting: trainable parameters, and static memory as float32 "
        "parameters with persistent buffers. Embedding and head are left out; percent of the three shown."
    )
    return Table("components", "Component shares", caption, tuple(columns), tuple(rows))
