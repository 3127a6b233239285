"""The report of several runs: report.md with tables and figures, and an HTML page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pandas as pd

from trc2.report.figures import FIGURES, data_caption
from trc2.report.markdown import code, listed, markdown
from trc2.report.page import write_page
from trc2.report.run import AUFC, Run
from trc2.report.runs import RunTable
from trc2.report.tables import NOTHING, TABLES, NotWritten, Table
from trc2.system.files import make_folder, write_atomically
from trc2.system.numbers import number_text, short
from trc2.system.plot_style import DPI, Figure, style

T = TypeVar("T")  # tables and figures are made from: a RunTable, or what a study has
FEW_RUNS = 12  # up to so many runs are listed one by one


@dataclass
class Report:
    """The folder that tables and figures are written to. Parts that the runs cannot fill are noted with the reason."""

    folder: Path
    written: list[Path] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def count(self, suffix: str) -> int:
        """How many files of a kind were written."""
        return sum(path.suffix == suffix for path in self.written)

    def write_text(self, name: str, text: str) -> Path:
        path = self.folder / name
        write_atomically(path, text.encode())
        self.written.append(path)
        return path

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """Note a part that raises `NotWritten`, and go on without it."""
        try:
            yield
        except NotWritten as reason:
            self.left_out[title] = str(reason)

    def write_figures(self, figures: Sequence[tuple[str, Callable[[T], Figure]]], source: T, dpi: int) -> list[str]:
        """Draw figures/ from the runs, and return the section of Markdown that shows them."""
        make_folder(self.folder / "figures")
        lines = ["## Figures", ""]
        for title, draw in figures:
            with self.part(title), style():
                figure = draw(source)
                png, svg = figure.write(self.folder / "figures", dpi)
                self.written += [png, svg]
                alt = markdown(f"{title}: {figure.title}")
                lines += [f"### {markdown(title)}", "", f"![{alt}](figures/{png.name})", ""]
                lines += [f"{markdown(figure.caption)} [svg](figures/{svg.name})", ""]
        return lines

    def write_tables(self, tables: Sequence[tuple[str, Callable[[T], Table]]], source: T) -> list[str]:
        """Write tables/ of the runs, and return the section of Markdown that shows them."""
        make_folder(self.folder / "tables")
        lines = ["## Tables", ""]
        for title, make in tables:
            with self.part(title):
                table = make(source)
                paths = table.write(self.folder / "tables")
                self.written += paths
                links = " · ".join(f"[{path.suffix[1:]}](tables/{path.name})" for path in paths)
                lines += [f"### {markdown(table.title)}", "", table.to_markdown(), ""]
                lines += [f"{markdown(table.caption)} {links}", ""]
        return lines

    def left_out_lines(self) -> list[str]:
        reasons = [f"- {markdown(title)}: {markdown(reason)}." for title, reason in self.left_out.items()]
        return ["## Left out", "", *reasons, ""] if reasons else []


def write_report(table: RunTable, folder: Path, *, dpi: int = DPI) -> Report:
    """tables/, figures/, report.md and report.html."""
    report = Report(folder)
    sections = report.write_figures(FIGURES, table, dpi) + report.write_tables(TABLES, table)
    report.write_text("tables/runs.csv", table.runs.drop(columns="folder").to_csv(lineterminator="\n"))
    sections += ["Every run with its variant, seed, order and cost: [runs.csv](tables/runs.csv)", ""]
    title = [f"# {markdown(title_of_report(table))}", ""]
    with report.part("Page"):
        report.written.append(write_page(table, findings(table), folder / "report.html"))
        title += ["[The same as a page with filters](report.html)", ""]
    report.write_text("report.md", "\n".join([*title, *_opening(table), *sections, *report.left_out_lines()]))
    return report


def title_of_report(table: RunTable) -> str:
    """The title of the matrix, if all runs share one."""
    titles = set(table.runs.matrix_title)
    return titles.pop() or "Report" if len(titles) == 1 else "Report"


def _opening(table: RunTable) -> list[str]:
    """Which runs the report is about, and what they show."""
    lines = [*map(markdown, findings(table)), ""]
    caption = data_caption(table, list(table.variants.index))
    lines += [f"{len(table.runs)} runs of {table.runs.variant.nunique()} variants. {markdown(caption)}", ""]
    if len(table.orders) > 1:
        lines += [
            f"The tasks were trained in {len(table.orders)} orders. Tables and figures are about the first, "
            f"{markdown(table.orders[0])}, unless they say otherwise.",
            "",
        ]
    if table.unfinished:
        lines += [f"Unfinished and not counted: {', '.join(map(code, table.unfinished))}.", ""]
    if len(table.runs) <= FEW_RUNS:
        frame = run_rows(table)
        frame = frame.rename(columns=markdown, index=markdown)
        lines += [f"## Runs\n\n{RUN_CAPTION}", "", frame.to_markdown(disable_numparse=True), ""]
    return lines


# ------------------------------------------------------------------------------------------------------ in words


def findings(table: RunTable) -> list[str]:
    """Sentences about the main numbers, for the head of the report, the page and the terminal."""
    sentences = []
    for measure, phrase in ((table.final_loss, "ends with the lowest loss"), (AUFC, "forgets least")):
        ranked = table.learned if measure.is_forgetting else table.competitors
        means = table.means(measure)["mean"]
        values = {name: float(means[name]) for name in means.index.intersection(ranked)}
        broken = [name for name, value in values.items() if not math.isfinite(value)]
        if broken:
            sentences.append(f"The {measure.title} of {listed(broken)} is not finite.")
        names = sorted((name for name in values if name not in broken), key=values.__getitem__)
        texts = [f"{number_text(values[name])} {measure.unit}" for name in names]
        best = [name for name, text in zip(names, texts, strict=True) if text == texts[0]]
        if 0 < len(best) < len(texts):
            verb = phrase if len(best) == 1 else phrase.replace("ends", "end").replace("forgets", "forget")
            sentences.append(f"{listed(best)} {verb} ({texts[0]}), {names[-1]} is last ({texts[-1]}).")
        elif best:
            sentences.append(f"{listed(best)}: {measure.title.split(',')[0]} {texts[0]}.")
    verdicts = table.differences(table.final_loss)
    verdicts = verdicts[verdicts.index.isin(table.learned)]
    if len(verdicts) and (verdicts.n > 1).any():
        counts = verdicts.verdict.value_counts()
        parts = [f"{counts[v]} {v}" for v in ("better", "worse", "equivalent", "undecided") if v in counts]
        sentences.append(
            f"Compared with {len(verdicts)} other variants on equal seeds, the final loss of {table.reference} is: "
            f"{', '.join(parts)}."
        )
    failed = [variant for variant in table.competitors if variant not in table.learned]
    if failed:
        sentences.append(f"Not ranked by forgetting, because a run did not learn one of its tasks: {listed(failed)}.")
    if table.variants.n.max() == 1:
        sentences.append("There is one seed of each variant, so differences of a few percent can be chance.")
    return sentences


RUN_CAPTION = (
    "Validation perplexity of each task right after its training → after the last step, in brackets if the run did not "
    "train it; mean forgetting of past tasks at the end and its area (AUFC), in nats of log-perplexity."
)


def run_rows(table: RunTable) -> pd.DataFrame:
    """One row per run, in the order in which the runs were given."""
    rows = {}
    for name, run in table.by_name.items():
        summary = run.summary()
        speed = run.final("end").get("efficiency/tokens_per_second")
        lost = [summary.get(f"cl/perplexity/{key}") for key in ("forgetting", "aufc")]
        rows[name] = [_learned_and_kept(run, task) for task in table.all_tasks]
        rows[name] += [NOTHING if value is None else f"{value:.3f}" for value in lost]
        rows[name].append(NOTHING if speed is None else f"{speed:,.0f}")
    columns = [*table.all_tasks, "forgetting", "AUFC", "tokens/s"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("run")


def _learned_and_kept(run: Run, task: str) -> str:
    def score(step: int) -> str:
        value = run.score("perplexity", task, step)
        return NOTHING if value is None else short(value)

    span = next((span for span in run.spans if span.task == task), None)
    if span is None:
        return f"({score(run.end)})" if task in run.tasks else NOTHING
    return score(run.end) if span.end == run.end else f"{score(span.end)}→{score(run.end)}"
