"""Draw the pictures of README.md and docs/ from the committed runs: `python -m docs.pictures`.

Each picture has a light and a dark version. Each PNG stores a hash of the numbers that it shows.
`tests/test_docs.py` compares the hash with the runs in `results/`.
A screenshot is taken by hand, because its server and models are not committed. The page that shows it says when.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.results_tables import BACKBONE, BASELINES, CONTROLLED, DEMO, LAB, ends, in_six_orders
from trc2.metrics.forgetting import TaskSpan
from trc2.report.figures import draw_tasks
from trc2.stats.intervals import mean_interval
from trc2.system.plot_style import Figure, ink, label_ends, palette, plain_log_ticks, style, text_colour

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "results" / "demo"
TASKS = ("prose", "code", "arithmetic")
SCREENSHOTS = ("serve-page",)  # taken by hand
THEMES = {"light": "", "dark": "-dark"}  # theme: what it adds to the name of a file
Row = tuple[str, list[float], list[float]]  # a configuration with the final losses and AUFCs of its seeds

LINES = {  # run of results/demo, task, colour (0: grey), label at the end of the line
    "forgetting": [
        ("plain", "prose", 1, "prose"),
        ("plain", "code", 2, "code"),
        ("plain", "arithmetic", 3, "arithmetic"),
    ],
    "replay": [("plain", "prose", 0, "prose, no replay"), ("large_share", "prose", 1, "prose, 44 % replay")],
}
MEASURES = ("final loss (nats)", "forgetting (AUFC, nats)")
METHODS = (
    f"{BACKBONE} only",
    "TRC² without replay",
    "TRC²",
    f"{BACKBONE} + {CONTROLLED}",
    f"{BACKBONE} + 25 % replay",
    f"{BACKBONE} + 44 % replay",
    f"{BACKBONE}, all tasks mixed",
)
LEARNED = tuple(name for name in BASELINES if name != "LoRA-DRS")  # it learned nothing after its first task
IN_ORDERS = ("TRC² without replay", "Transformer", "TRC²", f"Transformer + {CONTROLLED}")
ORDERS = ("C W G", "C G W", "W C G", "W G C", "G C W", "G W C")  # as `in_six_orders` has them
SHARES = {0: f"{BACKBONE} only", **{share: f"{BACKBONE} + {share} % replay" for share in (22, 33, 44, 56)}}


# --------------------------------------------------------------------------------------------------- numbers


def records(run: str) -> list[dict[str, Any]]:
    with gzip.open(RUNS / run / "metrics.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def curve(run: str, task: str) -> tuple[list[int], list[float]]:
    """Steps and perplexities of one task."""
    name = f"eval/{task}/perplexity"
    found = [(record["step"], float(record["metrics"][name])) for record in records(run) if name in record["metrics"]]
    return [step for step, _ in found], [value for _, value in found]


def row(name: str, folder: str) -> Row:
    runs = ends(folder).values()
    return name, [end.log for end in runs], [end.area for end in runs]


def methods() -> list[Row]:
    return [row(name, LAB[name]) for name in METHODS]


def backbones() -> list[tuple[Row, Row]]:
    """Each backbone without and with controlled replay."""
    pairs = [("TRC²", LAB["TRC² without replay"], LAB["TRC²"])]
    pairs += [(name, LAB[name], LAB[f"{name} + {CONTROLLED}"]) for name in LEARNED]
    return [(row(name, without), row(name, protected)) for name, without, protected in pairs]


def shares() -> list[Row]:
    return [row(str(share), DEMO[name]) for share, name in SHARES.items()]


def orders() -> list[tuple[str, list[float]]]:
    return [(name, [end.area for end in in_six_orders(LAB[name])]) for name in IN_ORDERS]


def weeks() -> list[dict[str, Any]]:
    content: dict[str, Any] = json.loads((ROOT / "results" / "weeks" / "weeks.json").read_text(encoding="utf-8"))
    return list(content["weeks"])


# --------------------------------------------------------------------------------------------------- drawings


def draw_curves(name: str, title: str) -> Figure:
    boundaries = [record["step"] for record in records("plain") if record["kind"] == "boundary"]
    spans = [TaskSpan(task, start, end) for task, start, end in zip(TASKS, [0, *boundaries], boundaries, strict=False)]
    figure = Figure(name, title, height=3.6)
    axes, labels = figure.panels[0], []
    for run, task, place, text in LINES[name]:
        steps, values = curve(run, task)
        colour = palette()[place - 1] if place else ink("grey")
        axes.plot(steps, values, color=colour, marker="o", markersize=4, clip_on=False)
        labels.append((values[-1], text, colour))
    axes.set(yscale="log", ylabel="perplexity (lower is better)")
    plain_log_ticks(axes.yaxis)
    figure.lay_out()
    draw_tasks(axes, spans, {task: f"{task} text" for task in TASKS}, boundaries[-1])
    axes.set_xlabel("training step (one kind of text after the other)")
    label_ends(axes, labels)
    return figure


def draw_methods(name: str, title: str) -> Figure:
    figure = Figure(name, title, panels=2, height=2.8)
    rows = methods()
    for panel, (axes, what) in enumerate(
        zip(figure.panels, ("final loss (nats)", "forgetting (AUFC, nats)"), strict=True)
    ):
        for height, shown in enumerate(reversed(rows)):
            colour = palette()[0] if "44 %" in shown[0] else ink("grey")
            _dot(axes, shown[1 + panel], height, colour)
        axes.set(yticks=range(len(rows)), ylim=(-0.6, len(rows) - 0.4), xlabel=f"{what}, lower is better")
        axes.set_yticklabels([shown[0] for shown in reversed(rows)] if panel == 0 else [])
        axes.grid(axis="x", color=ink("pale"), linewidth=0.4)
    figure.panels[1].set_xlim(left=0)
    return figure


def draw_backbones(name: str, title: str) -> Figure:
    figure = Figure(name, title, height=2.9)
    axes, pairs = figure.panels[0], backbones()[::-1]
    colours = (ink("grey"), palette()[0])
    for height, pair in enumerate(pairs):
        means = [mean_interval(shown[2]).mean for shown in pair]
        axes.plot(means, [height, height], color=ink("pale"), linewidth=1)
        for shown, colour in zip(pair, colours, strict=True):
            _dot(axes, shown[2], height, colour)
    top = len(pairs) - 1
    for shown, colour, text in zip(pairs[-1], colours, ("without replay", "with controlled replay"), strict=True):
        axes.annotate(text, (mean_interval(shown[2]).mean, top), xytext=(0, 9), textcoords="offset points",
                      ha="center", fontsize=8.5, color=text_colour(colour))  # fmt: skip
    axes.set(yticks=range(len(pairs)), ylim=(-0.6, top + 0.9), xlabel="forgetting (AUFC, nats), lower is better")
    axes.set_xlim(left=0)
    axes.set_yticklabels([without[0] for without, _ in pairs])
    axes.grid(axis="x", color=ink("pale"), linewidth=0.4)
    return figure


def draw_shares(name: str, title: str) -> Figure:
    figure = Figure(name, title, panels=2, height=2.6)
    for panel, (axes, what) in enumerate(
        zip(figure.panels, ("final loss (nats)", "forgetting (AUFC, nats)"), strict=True)
    ):
        points = [(int(shown[0]), mean_interval(shown[1 + panel]).mean) for shown in shares()]
        axes.plot(*zip(*points, strict=True), color=palette()[0], linewidth=1)
        for shown in shares():
            seeds = shown[1 + panel]
            axes.plot([int(shown[0])] * len(seeds), seeds, "o", color=palette()[0], markersize=5, alpha=0.7)
            mean = mean_interval(seeds).mean
            digits = (2, 3)[panel]
            axes.annotate(f"{mean:.{digits}f}", (int(shown[0]), mean), xytext=(4, 7), textcoords="offset points",
                          fontsize=8.5)  # fmt: skip
        axes.set(xlabel="replayed share of the tokens (%)", ylabel=what, xticks=[int(shown[0]) for shown in shares()])
        axes.grid(axis="y", color=ink("pale"), linewidth=0.4)
    for axes in figure.panels:
        axes.set(ylim=(axes.get_ylim()[0], axes.get_ylim()[1] * 1.05), xlim=(-3, 63))
    return figure


def draw_orders(name: str, title: str) -> Figure:
    figure = Figure(name, title, height=3.0)
    axes, labels = figure.panels[0], []
    markers = ("o", "s")
    for place, (variant, areas) in enumerate(orders()):
        colour = palette()[place % 2]
        filled = colour if place >= 2 else ink("ground")
        axes.plot(areas, color=colour, marker=markers[place % 2], markerfacecolor=filled,
                  linestyle="-" if place >= 2 else "--")  # fmt: skip
        labels.append((areas[-1], variant, colour))
    axes.set(xticks=range(len(ORDERS)), ylabel="forgetting (AUFC, nats)")
    axes.set_xticklabels([" → ".join(order.split()) for order in ORDERS])
    axes.set_xlabel("order of the tasks (C: C4, W: WikiText-2, G: GSM8K)")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=ink("pale"), linewidth=0.4)
    figure.lay_out()
    label_ends(axes, labels)
    return figure


def draw_weeks(name: str, title: str) -> Figure:
    """The scores of the accepted version: of a refused week those from before it."""
    figure = Figure(name, title, height=3.4)
    axes, rows, labels = figure.panels[0], weeks(), []
    numbers, taught = [row["week"] for row in rows], [row for row in rows if row["accepted"]]
    for place, (task, text) in enumerate({"old": "old text", "news-earlier": "news of earlier weeks"}.items()):
        scores = [row["perplexity" if row["accepted"] else "before"][task] for row in rows]
        axes.plot(numbers, scores, color=palette()[place])
        labels.append((scores[-1], text, palette()[place]))
    for key, text, colour, face in (
        ("before", "this week's news before", ink("grey"), ink("ground")),
        ("perplexity", "this week's news after", palette()[2], palette()[2]),
    ):
        scores = [row[key]["news"] for row in taught]
        style = {"color": colour, "markerfacecolor": face, "markersize": 4, "linestyle": "none", "marker": "o"}
        axes.plot([row["week"] for row in taught], scores, **style)
        labels.append((scores[-1], text, colour))
    axes.set(yscale="log", xlabel="week", ylabel="perplexity (lower is better)", xlim=(0, len(rows) + 1))
    top = axes.get_ylim()[1] * 1.15
    axes.set_ylim(top=top * 1.15)
    refused = [row["week"] for row in rows if not row["accepted"]]
    axes.plot(refused, [top] * len(refused), "x", color=palette()[1], markersize=7)
    for week in refused:
        axes.axvline(week, color=ink("pale"), linewidth=0.8, zorder=0)
    axes.annotate("refused", (refused[-1], top), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8.5,
                  color=text_colour(palette()[1]))  # fmt: skip
    plain_log_ticks(axes.yaxis)
    figure.lay_out()
    label_ends(axes, labels)
    return figure


def _dot(axes: Any, values: Sequence[float], height: float, colour: str) -> None:
    """The mean over seeds with its 95 % interval. A reference without forgetting has no dot."""
    known = mean_interval(list(values))
    if known.mean == known.mean:
        axes.plot([known.low, known.high], [height, height], color=colour, linewidth=1.4)
        axes.plot([known.mean], [height], "o", color=colour, markersize=6)


# --------------------------------------------------------------------------------------------------- pictures


@dataclass(frozen=True)
class Picture:
    """A picture with what it shows. The title states the finding."""

    file: str
    title: str
    data: Callable[[], Any]
    draw: Callable[[str, str], Figure]

    def fingerprint(self) -> str:
        """A hash of all numbers that the picture shows."""
        return hashlib.sha256(json.dumps(self.data()).encode()).hexdigest()[:16]


def _curves(name: str) -> Callable[[], Any]:
    return lambda: [curve(run, task) for run, task, *_ in LINES[name]]


PICTURES = {
    "weeks": Picture(
        "every-week",
        "52 weeks: old text is kept, new text is learned, harmful weeks are refused",
        weeks,
        draw_weeks,
    ),
    "forgetting": Picture(
        "continual-learning-forgetting",
        "Without protection, learning arithmetic destroys prose and code",
        _curves("forgetting"),
        draw_curves,
    ),
    "replay": Picture(
        "continual-learning-replay",
        "With 44 % replay, prose improves while later tasks are learned",
        _curves("replay"),
        draw_curves,
    ),
    "methods": Picture(
        "results-methods",
        "44 % replay comes close to training on all tasks mixed",
        methods,
        draw_methods,
    ),
    "backbones": Picture(
        "results-backbones",
        "The same replay removes about two thirds of the forgetting on every backbone",
        backbones,
        draw_backbones,
    ),
    "shares": Picture(
        "results-share",
        "More replay gives less forgetting and a lower loss, up to about half of the tokens",
        shares,
        draw_shares,
    ),
    "orders": Picture(
        "results-orders",
        "With the same replay, the Transformer forgets less than TRC² in five of six orders",
        orders,
        draw_orders,
    ),
}


def draw(folder: Path) -> None:
    for name, picture in PICTURES.items():
        for theme, suffix in THEMES.items():
            with style(theme):
                drawing = picture.draw(name, picture.title).drawing
                path = folder / f"{picture.file}{suffix}.png"
                path.write_bytes(drawing.png(Description=picture.fingerprint()))


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
