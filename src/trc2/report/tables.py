"""Tables of variants, each written as Markdown to read, CSV to compute with and LaTeX to print."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from trc2.costs.tables import budget_numbers
from trc2.errors import plain
from trc2.metrics.forgetting import METRICS
from trc2.report.markdown import markdown
from trc2.report.run import (
    AUFC,
    BACKWARD,
    FORGETTING,
    MEMORY_HOURS,
    SPEED,
    Measure,
    area_at,
    checkpoints,
    final_score,
    own_score,
    scores_in,
)
from trc2.report.runs import RunTable
from trc2.system.files import write_atomically
from trc2.system.numbers import number_text

NOTHING = "–"  # not measured, or not defined
NOT_LEARNED = "†"
METRIC_TITLES = {"perplexity": "perplexity", "bleu": "BLEU", "token_accuracy": "token accuracy"}
INTERVALS = "Mean [95 % t-interval] over n seeds; A/A repeats of a seed are averaged first."


class NotWritten(Exception):
    """A table or figure that these runs cannot fill. The message says what is missing."""


def interval_text(row: Any) -> str:
    """5.22 [5.15, 5.30]"""
    spread = (row["high"] - row["low"]) / 2
    if not math.isfinite(spread):
        return number_text(row["mean"])
    low, high = (number_text(row[end], spread) for end in ("low", "high"))
    return f"{number_text(row['mean'], spread)} [{low}, {high}]"


@dataclass(frozen=True)
class Column:
    """A column of a table. `data` has one entry per row, or is a frame of means with their intervals."""

    title: str
    data: pd.Series | pd.DataFrame
    better: Literal["lower", "higher"] | None = None
    competes: Sequence[str] = ()  # rows that may be set in bold
    is_shown: bool = True  # otherwise only in the CSV

    @property
    def head(self) -> str:
        return self.title + {"lower": " ↓", "higher": " ↑", None: ""}[self.better]

    def best(self) -> str | None:
        """The row with the best mean, if its interval does not overlap the interval of the next."""
        if self.better is None or not isinstance(self.data, pd.DataFrame):
            return None
        rows = self.data.loc[self.data.index.intersection(list(self.competes))].dropna()
        rows = rows.sort_values("mean", ascending=self.better == "lower")
        if len(rows) < 2:
            return None
        first, second = rows.iloc[0], rows.iloc[1]
        is_apart = first.high < second.low if self.better == "lower" else first.low > second.high
        return str(rows.index[0]) if is_apart else None

    def texts(self, index: pd.Index) -> pd.Series:
        """What is printed, by row."""
        texts = self.data.apply(interval_text, axis=1) if isinstance(self.data, pd.DataFrame) else self.data.map(_cell)
        return texts.astype(object).reindex(index).fillna(NOTHING)

    @property
    def is_text(self) -> bool:
        return isinstance(self.data, pd.Series) and any(isinstance(cell, str) for cell in self.data)

    def numbers(self, index: pd.Index) -> dict[str, pd.Series]:
        """What the CSV holds: numbers in full, with the bounds of their intervals where there are any."""
        if not isinstance(self.data, pd.DataFrame):
            return {self.title: self.data.reindex(index)}
        named = {self.title: "mean", f"{self.title} low": "low", f"{self.title} high": "high"}
        data = self.data.reindex(index)
        return {title: data[end] for title, end in named.items() if end == "mean" or data[end].notna().any()}


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return NOTHING
    return f"{int(value):,}" if float(value).is_integer() else number_text(value)


@dataclass(frozen=True)
class Table:
    """Rows by variant, or by whatever `index` names."""

    name: str
    title: str
    caption: str
    index: pd.Index
    columns: list[Column] = field(default_factory=list)
    head: str = "variant"

    def shown(
        self, bold: Callable[[str], str], escape: Callable[[str], str], escape_number: Callable[[str], str]
    ) -> pd.DataFrame:
        """The printed cells."""
        cells = {}
        for column in self.columns:
            if column.is_shown:
                texts = column.texts(self.index)
                texts = texts.map(escape if column.is_text else escape_number)
                best = column.best()
                if best is not None:
                    texts[best] = bold(texts[best])
                cells[escape(column.head)] = texts
        frame = pd.DataFrame(cells, index=self.index)
        frame.index = pd.Index([escape(str(row)) for row in self.index], name=escape(self.head))
        return frame

    def to_markdown(self) -> str:
        frame = self.shown(lambda text: f"**{text}**", markdown, str)
        aligned = ["left", *("right" for _ in frame.columns)]
        return str(frame.to_markdown(colalign=aligned, disable_numparse=True))

    def to_csv(self) -> str:
        numbers = {title: data for column in self.columns for title, data in column.numbers(self.index).items()}
        frame = pd.DataFrame(numbers, index=self.index).rename(columns=_inert)
        frame.index = pd.Index([_inert(str(row)) for row in self.index], name=self.head)
        for title in frame.columns:
            frame[title] = frame[title].map(lambda cell: _inert(cell) if isinstance(cell, str) else cell)
        return str(frame.to_csv(lineterminator="\n"))

    def to_latex(self) -> str:
        r"""A table* for \input, which needs booktabs."""
        frame = self.shown(lambda text: rf"\textbf{{{text}}}", latex, latex).reset_index()
        layout = "l" + "r" * (len(frame.columns) - 1)
        tex = frame.to_latex(index=False, caption=latex(self.caption), label=f"tab:{self.name}", column_format=layout)
        return (
            str(tex)
            .replace(r"\begin{table}", r"\begin{table*}[t]" + "\n\\centering\\scriptsize")
            .replace(r"\end{table}", r"\end{table*}")
        )

    def write(self, folder: Path) -> list[Path]:
        """NAME.md, NAME.csv and NAME.tex."""
        texts = {
            "md": f"# {markdown(self.title)}\n\n{self.to_markdown()}\n\n{markdown(self.caption)}\n",
            "csv": self.to_csv(),
            "tex": self.to_latex(),
        }
        written = [folder / f"{self.name}.{suffix}" for suffix in texts]
        for path, text in zip(written, texts.values(), strict=True):
            write_atomically(path, text.encode())
        return written


def _inert(text: str) -> str:
    """A cell that a spreadsheet does not run as a formula."""
    text = " ".join(plain(text).split())
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


SPECIAL = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "²": r"\textsuperscript{2}", "−": "$-$", "×": r"$\times$",
    "·": r"$\cdot$", "→": r"$\rightarrow$", "↓": r"$\downarrow$", "↑": r"$\uparrow$", "–": "--", "…": r"\ldots{}",
    "∞": r"$\infty$", "±": r"$\pm$", "✓": r"$+$", "✗": r"$-$", "†": r"$\dagger$", "\N{REPLACEMENT CHARACTER}": "?",
})  # fmt: skip


def latex(text: str) -> str:
    """Text that LaTeX prints as it is, on one line."""
    return " ".join(plain(text).split()).translate(SPECIAL)


# ------------------------------------------------------------------------------------------------- columns of variants


def variant_titles(table: RunTable, variants: Iterable[str]) -> pd.Index:
    """Titles, with a dagger where a run did not learn one of its tasks."""
    return pd.Index([marked(table, variant) for variant in variants])


def marked(table: RunTable, variant: str) -> str:
    return f"{variant} {NOT_LEARNED}" if table.variants.unlearned[variant] else variant


def not_learned_note(table: RunTable) -> str:
    """What the dagger means, if there is one."""
    if not table.variants.unlearned.any():
        return ""
    return f" {NOT_LEARNED}: a run did not learn one of its tasks, so its forgetting has no meaning."


def _variant_table(
    table: RunTable, name: str, title: str, caption: str, variants: Sequence[str], measures: Sequence[Measure],
    *, first: Sequence[Column] = (),
) -> Table:  # fmt: skip
    """One row per variant, one column per measure. Names of variants get their dagger here."""
    chosen = table.variants.loc[list(variants)].set_axis(variant_titles(table, variants))
    columns = [*first, Column("parameters", chosen.parameters), Column("n", chosen.n)]
    for measure, column in zip(measures, measure_columns(table, variants, measures), strict=True):
        columns.append(replace(column, is_shown=_is_main(measure)))
    return Table(name, title, caption, chosen.index, columns)


def measure_columns(table: RunTable, variants: Sequence[str], measures: Iterable[Measure]) -> list[Column]:
    """A column for each measure: means with intervals. Names of variants get their dagger here."""
    titles = dict(zip(variants, variant_titles(table, variants), strict=True))
    columns = []
    for measure in measures:
        ranked = table.learned if measure.is_forgetting else table.competitors
        means = table.means(measure)
        means = means.loc[means.index.intersection(list(variants))].rename(index=titles)
        means[["mean", "low", "high"]] *= measure.factor
        competes = [titles[variant] for variant in ranked if variant in titles]
        columns.append(Column(measure.label, means, measure.better if measure.is_ranked else None, competes))
    return columns


def score_measures(table: RunTable, when: Callable[[str, str], Callable[[Any], float | None]]) -> list[Measure]:
    """Every metric of every task, perplexity first."""
    measures = []
    for name, metric in scores_in(table.by_name.values()).items():
        for task in table.all_tasks:
            better: Literal["lower", "higher"] = "lower" if metric.direction == "min" else "higher"
            title = f"{METRIC_TITLES.get(name, name.replace('_', ' '))} {table.task_titles[task]}"
            is_share = name == "token_accuracy"
            measures.append(Measure(
                f"{name}/{task}", title, when(task, name), better, unit="%" if is_share else "", is_log=metric.is_log,
                factor=100.0 if is_share else 1.0,
            ))  # fmt: skip
    return measures


def _is_main(measure: Measure) -> bool:
    """Perplexity and metrics of plug-ins are shown. BLEU and token accuracy are in the CSV."""
    name = measure.name.split("/")[0]
    return name == "perplexity" or name not in METRICS


# ------------------------------------------------------------------------------------------------------- the tables


def boundary_table(table: RunTable) -> Table:
    """Every task right after its own training."""
    caption = (
        f"Validation perplexity of every task right after its own training, order {table.order}. {INTERVALS} Intervals "
        "of perplexities are computed on the log scale. Joint and single-task runs are references. Bold: the best "
        "mean, where its interval does not overlap the next. The CSV has all metrics." + not_learned_note(table)
    )
    title = "Scores right after each task's own training"
    measures = score_measures(table, own_score)
    return _variant_table(table, "boundary", title, caption, list(table.variants.index), measures)


def final_table(table: RunTable) -> Table:
    """Every task after the last step."""
    caption = (
        f"Validation perplexity of every task after the last step, order {table.order}, and the final loss, the mean "
        f"log-perplexity of all tasks. {INTERVALS} Intervals of perplexities are computed on the log scale. Bold: the "
        "best mean, where its interval does not overlap the next. The CSV has all metrics." + not_learned_note(table)
    )
    measures = [table.final_loss, *score_measures(table, final_score)]
    return _variant_table(table, "final", "Scores after the last step", caption, list(table.variants.index), measures)


def forgetting_table(table: RunTable) -> Table:
    """Forgetting (AUFC) before the last task and at the end, and what was lost in the end."""
    measures = [*area_measures(table), FORGETTING, BACKWARD]
    caption = (
        "Area under the forgetting curve (AUFC), mean over past tasks, divided by time: at the boundary before the "
        "last task and at the end. In nats of log-perplexity. Other metrics are in the CSV, divided by the task's gain "
        f"where it has one. {INTERVALS} Bold: the smallest mean of a variant that learned its tasks, where its "
        "interval does not overlap the next." + not_learned_note(table)
    )
    return _variant_table(table, "aufc", "Forgetting", caption, table.competitors, measures)


def area_measures(table: RunTable) -> list[Measure]:
    """Forgetting (AUFC) by every metric that all competitors have, at the checkpoints."""
    runs = [run for variant in table.competitors for run in table.runs_of(variant)]
    titles = checkpoint_titles(table)
    if not titles:
        raise NotWritten("needs runs that train at least two tasks one after another")
    return [
        Measure(f"{name}/aufc", f"AUFC {METRIC_TITLES.get(name, name)}, {title}", area_at(name, place),
                unit="nats" if metric.is_log else "", is_forgetting=True)
        for name, metric in scores_in(runs).items() if all(name in run.tables for run in runs)
        for place, title in titles.items()
    ]  # fmt: skip


def checkpoint_titles(table: RunTable) -> dict[int, str]:
    """Checkpoints, counted from the end, with their step where all runs share it."""
    by_run = [checkpoints(run) for variant in table.competitors for run in table.runs_of(variant)]
    if not by_run or not all(by_run):
        return {}
    names = {-2: "before the last task", -1: "at the end"}
    steps = {place: {steps[place] for steps in by_run} for place in range(-min(map(len, by_run)), 0)}
    return {place: f"step {min(own):,}" if len(own) == 1 else names[place] for place, own in steps.items()}


def paired_table(table: RunTable, measure: Measure) -> Table:
    """The reference against every other variant on equal seeds."""
    pairs = table.differences(measure)
    if pairs.empty:
        raise NotWritten("needs a second variant with a seed that the reference has too")
    pairs.index = variant_titles(table, pairs.index)
    reference, margin = table.reference, table.margin(measure)
    columns = [
        Column("pairs", pairs.n),
        Column(f"{reference} − other ({measure.unit})", pairs[["mean", "low", "high"]]),
        Column("p", pairs.p),
        Column("p (Holm)", pairs.p_holm),
        Column("verdict", pairs.verdict),
    ]
    equivalence = (
        f" Equivalent: within ±{margin:.3g} by two one-sided tests, a margin from A/A repeats."
        if margin is not None
        else " Without A/A repeats there is no margin, so no variant is called equivalent."
    )
    caption = (
        f"{reference} − other variant on equal seeds, {measure.title}; {measure.better} is better. Mean [95 % "
        f"t-interval]; p-values of paired t-tests, corrected for {int(pairs.p.notna().sum())} comparisons (Holm). "
        f"The verdict is about {reference}, at a corrected p below 0.05.{equivalence}{not_learned_note(table)}"
    )
    name, title = f"paired_{measure.name}", f"Differences: {measure.title}"
    return Table(name, title, caption, pairs.index, columns, head="other variant")


def paired_loss_table(table: RunTable) -> Table:
    return paired_table(table, table.final_loss)


def paired_forgetting_table(table: RunTable) -> Table:
    return paired_table(table, AUFC)


def cost_table(table: RunTable) -> Table:
    """What every variant costs: counted parameters and FLOPs, measured speed and memory."""
    variants = list(table.variants.index)
    counted = pd.DataFrame({variant: budget_numbers(table.example(variant).config) for variant in variants}).T
    counted.index = variant_titles(table, counted.index)
    titles = {
        "active": "active parameters",
        "training": "FLOPs per token",
        "with replay": "FLOPs per token with replay",
    }
    first = [Column(title, counted[name].round()) for name, title in titles.items()]
    caption = (
        "Cost of every variant. Counted: parameters that a token meets, and FLOPs of matrix products per new token in "
        "training with a full memory, without replay and with replay of its default size. Measured: training speed, "
        f"and peak memory × time. {INTERVALS} Intervals of measured costs are computed on the log scale."
    )
    measured = [SPEED, MEMORY_HOURS]
    return _variant_table(table, "cost", "Cost", caption, variants, measured, first=first)


TABLES: tuple[tuple[str, Callable[[RunTable], Table]], ...] = (
    ("Scores after the last step", final_table),
    ("Scores right after each task's own training", boundary_table),
    ("Forgetting", forgetting_table),
    ("Differences: final loss", paired_loss_table),
    ("Differences: forgetting", paired_forgetting_table),
    ("Cost", cost_table),
)
