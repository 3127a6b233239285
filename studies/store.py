"""How much of the past must be stored: retention against the stored fraction of the stream.

    python -m studies.store results/lab_store        # writes results/lab_store/store/

The stored fraction is the reservoir's tokens (model.replay_long_chunks × model.replay_chunk_length) over the new tokens
of the stream. Two tests are declared before the runs: the slope of the final loss per decade of the stored fraction,
and TRC² minus its backbone with the same replay at the smallest fraction.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from studies.paper.roles import Roles, mean
from trc2.config.model import PARTS
from trc2.errors import UserError
from trc2.report.markdown import markdown
from trc2.report.run import AUFC, Measure, Run
from trc2.report.runs import RunTable, interval_of, read_runs
from trc2.report.tables import Column, Table, interval_text
from trc2.report.variants import title_of
from trc2.runs.identity import variant_settings
from trc2.stats.paired import paired_difference
from trc2.system.files import write_atomically
from trc2.system.plot_style import COLOURS, DPI, Figure, label, plain_log_ticks, style

STORES = {"model.replay_long_chunks", "model.replay_recent_chunks", "model.replay_seed"}
TITLES = {"final_loss": "final loss ↓", "aufc": "forgetting (AUFC) ↓", "gap": "held-out old − stored loss"}
LATE = 0.1  # share of the logged steps at the end over which the loss on stored text is averaged


def stored_tokens(run: Run) -> int:
    model = run.config.model
    return model.replay_long_chunks * model.replay_chunk_length


def stored_loss(run: Run) -> float | None:
    """Loss on replayed chunks at the end of training, which is text that the store holds."""
    values = [value for value in run.series("train", "train/loss_replay")[1] if value > 0]
    return mean(values[-max(1, round(LATE * len(values))) :]) if values else None


def past_loss(run: Run) -> float | None:
    """Loss on held-out text of the tasks before the last one, at the end."""
    scores = [run.score("perplexity", task, run.end) for task in run.order[:-1]]
    known = [math.log(score) for score in scores if score is not None and score > 0]
    return mean(known) if known and len(known) == len(scores) else None


def overfitting(run: Run) -> float | None:
    """Held-out loss of past tasks minus the loss on stored text: how much the network knows only what is stored."""
    held_out, stored = past_loss(run), stored_loss(run)
    return None if held_out is None or stored is None else held_out - stored


GAP = Measure("gap", "held-out loss of old tasks − loss on stored text", overfitting, unit="nats")


@dataclass(frozen=True)
class Series:
    """One configuration at several sizes of the reservoir: the variant of each stored fraction, in percent."""

    title: str
    variants: dict[float, str]


class Store:
    """Runs whose reservoirs differ in size."""

    def __init__(self, table: RunTable) -> None:
        self.table, self.roles = table, Roles(table)
        self.measures = (table.final_loss, AUFC, GAP)

    @cached_property
    def stream_tokens(self) -> float:
        """New tokens of the stream: the most that a run was trained on, so that equal stores have equal fractions."""
        return max(run.config.train.tokens_per_step * run.end for run in self.table.by_name.values())

    @cached_property
    def series(self) -> list[Series]:
        """Configurations that replay at two sizes or more and differ in nothing else. Most runs first."""
        groups: dict[str, dict[float, str]] = {}
        for variant in self.table.competitors:
            run = self.table.example(variant)
            if self.table.variants.replays[variant]:
                settings = variant_settings(run.config)
                key = repr([(path, settings[path]) for path in sorted(settings) if path not in STORES])
                groups.setdefault(key, {})[100 * stored_tokens(run) / self.stream_tokens] = variant
        several = [dict(sorted(sizes.items())) for sizes in groups.values() if len(sizes) > 1]
        if not several:
            raise UserError(
                "No configuration was trained with two sizes of the reservoir: vary model.replay_long_chunks, for "
                "example with `trc2 sweep lab_store`."
            )
        several.sort(key=lambda sizes: -sum(int(self.table.variants.n[variant]) for variant in sizes.values()))
        return [Series(title, sizes) for title, sizes in zip(self._titles(several), several, strict=True)]

    def _titles(self, groups: Sequence[dict[float, str]]) -> list[str]:
        """Titles from settings. A number where two configurations read alike."""
        titles = [title_of(self.table.example(next(iter(sizes.values()))).config) for sizes in groups]
        numbered = list(enumerate(titles))
        return [title if titles.index(title) == place else f"{title} ({place + 1})" for place, title in numbered]

    def slopes(self, series: Series, measure: Measure) -> dict[int, float]:
        """Change of a measure per tenfold stored fraction, by the seeds that all sizes have."""
        known = [self.roles.seeds(measure, variant) for variant in series.variants.values()]
        places = np.log10(list(series.variants))
        seeds = sorted(set.intersection(*map(set, known)))
        return {seed: float(np.polyfit(places, [values[seed] for values in known], 1)[0]) for seed in seeds}

    def smallest(self) -> tuple[str, str, float] | None:
        """TRC² and its backbone at the smallest stored fraction that both have."""
        ours = [s for s in self.series if not self.roles.missing(next(iter(s.variants.values())))]
        theirs = [s for s in self.series if self.roles.missing(next(iter(s.variants.values()))) == set(PARTS[:2])]
        pairs = [
            (first, second, size)
            for one in ours
            for other in theirs
            for size, first in one.variants.items()
            for near, second in other.variants.items()
            if math.isclose(size, near) and self._alike(first, second)
        ]
        return min(pairs, key=lambda pair: pair[2], default=None)

    def _alike(self, one: str, other: str) -> bool:
        """Whether two configurations differ only in thalamus and memory."""
        first, second = (variant_settings(self.table.example(variant).config) for variant in (one, other))
        skipped = {"model.thalamus", "model.memory", "model.replay_seed"}
        return all(first.get(path) == second.get(path) for path in first.keys() | second.keys() if path not in skipped)


def retention_table(store: Store) -> Table:
    """Every configuration at every stored fraction."""
    rows: dict[str, dict[str, object]] = {}
    means = {measure: store.table.means(measure) for measure in store.measures}
    for series in store.series:
        for size, variant in series.variants.items():
            run = store.table.example(variant)
            cells: dict[str, object] = {"stored (%)": size, "stored tokens": stored_tokens(run),
                                        "n": int(store.table.variants.n[variant])}  # fmt: skip
            for measure in store.measures:
                cells[measure.label] = means[measure].loc[variant] if variant in means[measure].index else None
            rows[f"{series.title}, {size:.2g} %"] = cells
    index = pd.Index(list(rows))
    names = ("stored (%)", "stored tokens", "n")
    columns = [Column(name, pd.Series([rows[row][name] for row in index], index=index)) for name in names]
    for measure in store.measures:
        known = {row: rows[row][measure.label] for row in index if rows[row][measure.label] is not None}
        columns.append(Column(measure.label, pd.DataFrame(known).T[["mean", "low", "high"]]))
    caption = (
        f"Retention against the stored fraction of {store.stream_tokens:,.0f} new tokens. Mean [95 % t-interval] over "
        "seeds. The last column grows where the network learns the stored chunks by heart."
    )
    return Table("retention", "Retention against the stored fraction", caption, index, columns, head="configuration")


def slope_table(store: Store) -> Table:
    """The declared test: slopes per decade of the stored fraction."""
    columns: list[Column] = []
    for measure in store.measures:
        rows = {}
        for series in store.series:
            slopes = list(store.slopes(series, measure).values())
            if slopes:
                interval = interval_of(slopes)
                rows[series.title] = interval.mean, interval.low, interval.high, interval.n
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high", "n"])
        columns += [Column("n", frame.n)] if not columns else []
        columns.append(Column(f"{measure.title} per decade ({measure.unit})", frame[["mean", "low", "high"]]))
    caption = "Change per tenfold stored fraction: slope over all fractions by seed, then mean [95 % t-interval]."
    index = pd.Index([series.title for series in store.series])
    return Table("slopes", "Slope per decade of the stored fraction", caption, index, columns, head="configuration")


def smallest_words(store: Store) -> str:
    """The other declared test, in a sentence."""
    found = store.smallest()
    if found is None:
        return "TRC² minus its backbone at the smallest fraction: needs runs of both at one stored fraction."
    ours, theirs, size = found
    a, b = (store.roles.seeds(store.table.final_loss, variant) for variant in (ours, theirs))
    if not set(a) & set(b):
        return "TRC² minus its backbone at the smallest fraction: needs a seed that both have."
    known = paired_difference(a, b)
    text = interval_text({"mean": known.mean, "low": known.interval.low, "high": known.interval.high})
    return (
        f"TRC² minus its backbone with the same replay at {size:.2g} % stored: {text} nats of final loss "
        f"(n = {known.n} seeds, p = {known.p:.2g}); negative means that TRC² is better."
    )


def retention_figure(store: Store) -> Figure:
    """Final loss, forgetting and the gap between held-out and stored text against the stored fraction."""
    drawn = store.series[: len(COLOURS)]
    slopes = [mean(list(store.slopes(series, store.table.final_loss).values())) for series in drawn]
    known = [slope for slope in slopes if math.isfinite(slope)]
    span = " to ".join(dict.fromkeys(f"{slope:+.2f}" for slope in (min(known), max(known))))
    title = f"Ten times more stored text changes the final loss by {span} nats"
    figure = Figure("retention", title.replace("-", "−"), len(store.measures), height=3.2)
    for axes, measure in zip(figure.panels, store.measures, strict=True):
        means = store.table.means(measure)
        for series, colour in zip(drawn, COLOURS, strict=False):
            points = [(size, means.loc[variant]) for size, variant in series.variants.items() if variant in means.index]
            if not points:
                continue
            sizes, middle = [size for size, _ in points], [row["mean"] for _, row in points]
            axes.plot(sizes, middle, color=colour, marker="o", markersize=4)
            low, high = [row["low"] for _, row in points], [row["high"] for _, row in points]
            axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
        axes.set_xlabel("stored (% of the stream)")
        axes.set_title(label(TITLES[measure.name]))
        axes.set_ylabel(measure.unit)
    figure.drawing.legend(
        handles=[Line2D([], [], color=colour, marker="o", markersize=4, label=label(series.title, 60))
                 for series, colour in zip(drawn, COLOURS, strict=False)],
        loc="outside lower center", ncols=2, frameon=False, fontsize=8.5,
    )  # fmt: skip
    skipped = len(store.series) - len(drawn)
    more = f" {skipped} more configurations are in the table." if skipped else ""
    figure.caption = (
        f"Final loss, forgetting (AUFC), and held-out loss of old tasks minus the loss on stored text. Bands: 95 % "
        f"t-intervals over seeds. Stream of {store.stream_tokens:,.0f} new tokens, {store.table.order}.{more}"
    )
    return figure


def write_store(folders: Sequence[Path], out: Path, dpi: int = DPI) -> Path:
    """README.md with the two declared tests, the tables and the figure."""
    store = Store(read_runs(folders))
    out.mkdir(parents=True, exist_ok=True)
    lines = ["# Retention against the stored fraction", "", markdown(smallest_words(store)), ""]
    for table in (slope_table(store), retention_table(store)):
        table.write(out)
        lines += [f"## {markdown(table.title)}", "", table.to_markdown(), "", markdown(table.caption), ""]
    with style():
        figure = retention_figure(store)
        figure.write(out, dpi)
    lines += [f"![{markdown(figure.title)}](retention.png)", "", markdown(figure.caption), ""]
    write_atomically(out / "README.md", "\n".join(lines).encode())
    return out / "README.md"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.store", description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, or folders that hold runs")
    parser.add_argument("--out", type=Path, help="where everything goes; by default FOLDER/store")
    asked = parser.parse_args(arguments)
    try:
        print(write_store(asked.folders, asked.out or asked.folders[0] / "store"))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
