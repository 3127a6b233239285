"""What every figure is made with: one look for an arm everywhere, honest axes, a line that says what the data are.

Rebuilding gives the same bytes: no dates, fixed ids.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trc2.files import write_atomically
from trc2.report.evidence import Arm
from trc2.report.grid import Number
from trc2.report.old_figures import MAX_PIXELS, SHADES, label
from trc2.report.plots.ticks import linear_ticks, tick_words
from trc2.report.scope import NOT_LEARNT, Scope

DPI = 150
GREY, PALE = "#555555", "#c8c8c8"
FOOTER_ROW = 0.15  # inches
FEW = 6  # points that can have their names beside them
STYLE: dict[Any, Any] = {
    "font.size": 8.0, "axes.titlesize": 9.0, "axes.labelsize": 8.0, "xtick.labelsize": 8.0, "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.titlelocation": "left", "svg.fonttype": "none", "svg.hashsalt": "trc2", "path.simplify_threshold": 0.5,
    "font.family": ["DejaVu Sans"],
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """How an arm is drawn: the family's colour and marker; filled and solid with replay; bounds dotted.

    Of several arms that would look alike the later ones are paler; its number is the same in all figures.
    """

    number: int
    title: str
    colour: str
    marker: str
    is_filled: bool
    line: Any

    @property
    def markers(self) -> dict[str, Any]:
        face = self.colour if self.is_filled else "white"
        return {"marker": self.marker, "color": self.colour, "markerfacecolor": face, "markeredgecolor": self.colour}


def looks(scope: Scope) -> dict[str, Look]:
    """The look of every arm, by title."""
    alike: dict[tuple[str, bool, bool], int] = {}
    found = {}
    for number, arm in enumerate(scope.evidence.arms, start=1):
        kind = (arm.family.name, arm.replays, arm.is_bound)
        alike[kind] = alike.get(kind, -1) + 1
        line = ":" if arm.is_bound else "-" if arm.replays else (0, (4, 1.5))
        colour = paler(arm.family.colour, min(0.5, 0.25 * alike[kind]))
        found[arm.title] = Look(number, arm.title, colour, arm.family.marker, arm.replays, line)
    return found


def paler(colour: str, share: float) -> str:
    """The colour mixed with white."""
    channels = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(c + (255 - c) * share):02x}" for c in channels)


@dataclass
class Picture:
    """A figure that is drawn and not yet written."""

    name: str
    caption: str
    figure: Any

    def write(self, folder: Path, dpi: int = DPI) -> list[Path]:
        """NAME.png and NAME.svg."""
        written = [folder / f"{self.name}.{suffix}" for suffix in ("png", "svg")]
        with style():
            settle(self.figure)
            fits = min(dpi, MAX_PIXELS / max(self.figure.get_size_inches()))
            for path, metadata in zip(written, ({"Software": None}, {"Date": None, "Creator": None}), strict=True):
                content = io.BytesIO()
                self.figure.savefig(content, format=path.suffix[1:], dpi=fits, metadata=metadata)
                write_atomically(path, content.getvalue())
        return written


@contextmanager
def style() -> Iterator[None]:
    """Our fonts, frames and file settings, inside which all figures are drawn and written."""
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a script the font lacks is no reason to stop
        yield


def settle(figure: Any) -> None:
    """Compute the layout once; both files and labels placed by hand then use it."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)


class Sheet:
    """A figure of panels with a legend and a footer below; grows as they do."""

    def __init__(self, scope: Scope, rows: int, columns: int, *, size: tuple[float, float] = (3.1, 2.5)) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.scope, self.looks = scope, looks(scope)
        self.figure = Figure(figsize=(max(4.5, size[0] * columns), size[1] * rows), dpi=DPI, layout="constrained")
        FigureCanvasAgg(self.figure)
        self.panels = [axes for row in self.figure.subplots(rows, columns, squeeze=False) for axes in row]
        self._key: dict[str, Any] = {}
        self._places: dict[str, int] = {}
        self._has_daggers = False
        self._points: list[tuple[Any, list[tuple[Arm, float, float]], bool]] = []
        self._ends: list[tuple[Any, list[tuple[Arm, float, float]]]] = []

    def finish(self, name: str, caption: str, footer: str) -> Picture:
        """Add the legend, if anything was keyed, and the line that says what the data are; then place labels."""
        width, height = self.figure.get_size_inches()
        if self._has_daggers:
            footer += f" {NOT_LEARNT}: a run did not learn one of its tasks."
        lines = textwrap.wrap(label(footer, 600).strip().replace(" %", "\N{NO-BREAK SPACE}%"), int(width / 0.063))
        below = FOOTER_ROW * len(lines) + 0.08
        legend = self._legend(width) if self._key else None
        tall = legend.get_window_extent().height / self.figure.dpi if legend else 0.0
        whole = height + below + tall
        self.figure.set_size_inches(width, whole)
        self.figure.text(0.05 / width, 0.05 / whole, "\n".join(lines), fontsize=7, color=GREY, va="bottom")
        if legend:
            legend.set_bbox_to_anchor((0.5, below / whole), transform=self.figure.transFigure)
        share = (below + tall) / whole
        engine: Any = self.figure.get_layout_engine()
        engine.set(rect=(0, share, 1, 1 - share))
        self._place_labels()
        return Picture(name, caption, self.figure)

    def _legend(self, width: float) -> Any:
        """Rows of entries, as many columns as fit."""
        names = sorted(self._key, key=lambda name: self._places.get(name, 0))
        longest = max(map(len, names)) * 0.066 + 0.5
        columns = max(1, min(len(names), int(width / longest)))
        legend = self.figure.legend(
            [self._key[name] for name in names], names, ncols=columns,
            loc="lower center", frameon=False, handlelength=2.4, columnspacing=1.4, borderaxespad=0.0, fontsize=7.5,
        )  # fmt: skip
        legend.set_in_layout(False)
        return legend

    # ---------------------------------------------------------------------------------------------- the legend

    def key(self, text: str, handle: Any) -> None:
        """An entry of the legend, once."""
        self._key.setdefault(text, handle)

    def words(self, arm: Arm, limit: int = 48) -> str:
        """The arm's title as it may be drawn, with a dagger where a run of it did not learn a task."""
        marked = self.scope.title(arm)
        if marked == arm.title:
            return label(marked, limit).strip()
        self._has_daggers = True
        return f"{label(arm.title, limit - 2).strip()} {NOT_LEARNT}"

    def key_arm(self, arm: Arm, *, numbered: bool = False, line: bool = False) -> None:
        from matplotlib.lines import Line2D

        look = self.looks[arm.title]
        text = f"{look.number}  {self.words(arm)}" if numbered else self.words(arm)
        self._places[text] = look.number
        style: Any = look.line if line else "none"
        self.key(text, Line2D([], [], linestyle=style, markersize=4.5, linewidth=1.5, **look.markers))

    # ---------------------------------------------------------------------------------------------- marks

    def point(self, axes: Any, arm: Arm, x: Number | float, y: Number | float, size: float = 5.5) -> None:
        """A marker with the 95 % intervals of both coordinates; never cut off by the frame."""
        look = self.looks[arm.title]
        (left, right), (down, up) = _half(x), _half(y)
        if max(left, right, down, up) > 0:
            errors = {"xerr": [[left], [right]], "yerr": [[down], [up]]}
            axes.errorbar(value_of(x), value_of(y), **errors, fmt="none", ecolor=look.colour, elinewidth=0.9, alpha=0.7)
        axes.plot(
            [value_of(x)], [value_of(y)], linestyle="none", markersize=size, clip_on=False, zorder=4, **look.markers
        )

    def label_points(self, axes: Any, places: Sequence[tuple[Arm, float, float]], *, is_wide: bool = False) -> None:
        """A name beside each of few points in a wide panel, else a number, which the legend explains."""
        is_named = is_wide and len(places) <= FEW
        self._points.append((axes, list(places), is_named))
        for arm, _, _ in places:
            if not is_named:
                self.key_arm(arm, numbered=True)

    def label_ends(self, axes: Any, places: Sequence[tuple[Arm, float, float]]) -> None:
        """The arm's number at the right end of its line, moved up or down where it would lie on another."""
        self._ends.append((axes, list(places)))
        for arm, _, _ in places:
            self.key_arm(arm, numbered=True, line=True)

    def _place_labels(self) -> None:
        """After the legend is there: compute the layout, then put labels where they cover nothing."""
        room = [axes.text(1.0, 0.5, "    00", transform=axes.transAxes, fontsize=6.5) for axes, _ in self._ends]
        settle(self.figure)
        for text in room:
            text.remove()
        for axes, places, is_named in self._points:
            _place(axes, [(*self._words(arm, is_named), x, y) for arm, x, y in places])
        for axes, places in self._ends:
            end_labels(axes, [(*self._words(arm), x, y) for arm, x, y in places])

    def _words(self, arm: Arm, is_named: bool = False) -> tuple[str, str]:
        look = self.looks[arm.title]
        return self.words(arm) if is_named else str(look.number), look.colour


def value_of(number: Number | float) -> float:
    return number.value if isinstance(number, Number) else number


def _half(number: Number | float) -> tuple[float, float]:
    half = number.half if isinstance(number, Number) and math.isfinite(number.half) else 0.0
    return half, half


# --------------------------------------------------------------------------------------------------- labels


# Slanted first: lines and whiskers are level or upright.
AROUND = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))


def _place(axes: Any, texts: list[tuple[str, str, float, float]]) -> None:
    """Greedy: every label takes the nearest free place around its point; what finds none takes the least covered."""
    renderer = axes.figure.canvas.get_renderer()
    scale = axes.figure.dpi / 72
    points = [axes.transData.transform((x, y)) for _, _, x, y in texts]
    taken = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale) for x, y in points]
    frame, sheet = axes.get_window_extent(renderer), axes.figure.bbox
    rightmost = min(frame.x1 + 6 * scale, sheet.x1 - 4 * scale)  # a little beyond the panel, never beyond the picture
    for (text, colour, x, y), (px, py) in zip(texts, points, strict=True):
        if not (math.isfinite(px) and math.isfinite(py)):
            continue
        drawn = axes.annotate(
            text, (x, y), xytext=(0, 0), textcoords="offset points", fontsize=7, color=darker(colour), zorder=5,
            annotation_clip=False,
        )  # fmt: skip
        size = drawn.get_window_extent(renderer)
        width, height = size.width, size.height
        best: tuple[float, float, float, tuple[float, float, float, float]] | None = None
        for distance in (5, 9, 14, 20, 28):
            for dx, dy in AROUND:
                left = px + dx * distance * scale - (0 if dx > 0 else width if dx < 0 else width / 2)
                low = py + dy * distance * scale - height / 2
                box = (left, low, left + width, low + height)
                outside = max(0, frame.x0 - left) + max(0, left + width - rightmost) + max(0, low + height - sheet.y1)
                cost = sum(_overlap(box, other) for other in taken) + 20 * outside + 0.01 * distance
                if best is None or cost < best[0]:
                    best = (cost, left, low, box)
            if best is not None and best[0] < 1:
                break
        assert best is not None
        cost, left, low, box = best
        drawn.set_position(((left - px) / scale, (low - py) / scale))
        if abs(left + width / 2 - px) > width / 2 + 8 * scale or abs(low + height / 2 - py) > height / 2 + 8 * scale:
            axes.annotate(
                "", (x, y), xytext=((left + width / 2 - px) / scale, (low + height / 2 - py) / scale),
                textcoords="offset points", arrowprops={"arrowstyle": "-", "color": PALE, "lw": 0.6, "shrinkA": 4},
                annotation_clip=False, zorder=2,
            )  # fmt: skip
        taken.append(box)


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Area that two boxes share, in pixels."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def darker(colour: str, share: float = 0.25) -> str:
    """The colour mixed with black, for words."""
    return "#" + "".join(f"{round(int(colour[at : at + 2], 16) * (1 - share)):02x}" for at in (1, 3, 5))


def end_labels(axes: Any, ends: Sequence[tuple[str, str, float, float]]) -> None:
    """Words at the right ends of lines, moved apart vertically where they would lie on each other."""
    settle(axes.figure)
    scale = axes.figure.dpi / 72
    gap = 7.5 * scale
    frame = axes.get_window_extent(axes.figure.canvas.get_renderer())
    known = [(text, colour, axes.transData.transform((x, y))) for text, colour, x, y in ends if math.isfinite(y)]
    known.sort(key=lambda entry: entry[2][1])
    heights = spread([float(place[1]) for _, _, place in known], gap, frame.y0, frame.y1)
    right = frame.x1 + 8 * scale
    back = axes.transAxes.inverted()
    for (text, colour, place), height in zip(known, heights, strict=True):
        start, stop = back.transform((place[0] + 3 * scale, place[1])), back.transform((right, height))
        axes.plot(
            [start[0], stop[0]], [start[1], stop[1]], transform=axes.transAxes, color=PALE, linewidth=0.6,
            clip_on=False, zorder=1,
        )  # fmt: skip
        axes.text(
            stop[0], stop[1], f" {text}", transform=axes.transAxes, fontsize=6.5, color=darker(colour), va="center",
            clip_on=False,
        )  # fmt: skip


def spread(heights: list[float], gap: float, low: float, high: float) -> list[float]:
    """Sorted places moved as little as needed to be a gap apart; if all do not fit, evenly from bottom to top."""
    if len(heights) * gap > high - low and len(heights) > 1:
        step = (high - low) / (len(heights) - 1)
        return [low + step * place for place in range(len(heights))]
    placed = [min(max(height, low), high) for height in heights]
    for _ in range(60 if placed else 0):
        is_moved = False
        for place in range(len(placed) - 1):
            lack = gap - (placed[place + 1] - placed[place])
            if lack > 1e-6:
                placed[place] -= lack / 2
                placed[place + 1] += lack / 2
                is_moved = True
        below, above = low - placed[0], placed[-1] - high
        placed = [height + max(0.0, below) - max(0.0, above) for height in placed]
        if not is_moved:
            break
    return placed


# --------------------------------------------------------------------------------------------------- axes


def bands(scope: Scope, axes: Any, stretches: Sequence[Any], end: int, *, words: bool = True) -> None:
    """Task stretches as pale bands with their names on top; whole steps."""
    known: dict[tuple[int, int], list[str]] = {}
    for stretch in stretches:
        known.setdefault((stretch.start, stretch.end), []).append(scope.task_titles[stretch.task])
    many = len(known) > 5
    width = axes.figure.get_size_inches()[0]
    for index, ((start, stop), here) in enumerate(known.items()):
        axes.axvspan(start, stop, color=SHADES[index % 2], zorder=0, linewidth=0)
        text = here[0] if len(here) == 1 else "all"
        room = max(2, int((stop - start) / end * width / 0.08))
        text = str(index + 1) if many else text if len(text) <= max(room, 5) else f"{text[: max(room, 5) - 1]}…"
        if words:
            axes.text(
                (start + stop) / 2, 1.0, label(text).strip(), transform=axes.get_xaxis_transform(), ha="center",
                va="bottom", fontsize=6.5, color=GREY,
            )  # fmt: skip
    axes.set_xlim(-0.015 * end, 1.015 * end)
    linear_ticks(axes.xaxis, whole=True)
    tick_words(axes.xaxis)
    axes.set_xlabel("optimizer step")


def grid_of(count: int, widest: int = 3) -> tuple[int, int]:
    """Rows and columns for a number of panels."""
    columns = min(widest, max(1, count))
    return math.ceil(count / columns), columns


def hide_rest(panels: Sequence[Any], used: int) -> None:
    for axes in panels[used:]:
        axes.set_visible(False)
