"""The house style of every figure: fonts, colours, direct labels, a title that states the finding and a caption.

with style():
    figure = Figure("curves", "Replay keeps WikiText", panels=3)
    …
    figure.write(folder)
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure

from trc2.errors import plain
from trc2.system.files import write_atomically

# Okabe–Ito colours can be told apart without full colour vision. Its yellow is hard to see on white and is left out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
MAX_SERIES = len(COLOURS)
DPI = 150
WIDTH = 8.0  # inches: 800 px at 100 dpi, at which 9 pt text is legible
MAX_PIXELS = 2**15  # of the longer side. Larger pictures cannot be saved
THEMES = {
    "light": {"ground": "#ffffff", "ink": "#222222", "grey": "#5a5a5a", "pale": "#b8b8b8", "bands": "#f5f7f9 #e9eef3"},
    "dark": {"ground": "#14181d", "ink": "#e8e8e8", "grey": "#b0b0b0", "pale": "#5f6770", "bands": "#1a1f26 #222932"},
}
FIXED = {
    "font.size": 9.0, "axes.titlesize": 10.0, "axes.labelsize": 9.0, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.titlelocation": "left",
    "svg.fonttype": "none", "svg.hashsalt": "trc2", "font.family": ["DejaVu Sans"], "lines.linewidth": 1.6,
}  # fmt: skip
_theme = "light"


def ink(name: str = "ink") -> str:
    """A colour of the current theme: ground, ink, grey or pale."""
    return THEMES[_theme][name]


def palette() -> tuple[str, ...]:
    """The colours of at most six series. Lighter in the dark theme."""
    return COLOURS if _theme == "light" else tuple(_mix(colour, "#ffffff", 0.25) for colour in COLOURS)


def text_colour(colour: str) -> str:
    """The colour mixed with ink, so that small text in it is legible."""
    return _mix(colour, ink(), 0.35)


def _mix(colour: str, other: str, share: float) -> str:
    channels = [(int(colour[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round((1 - share) * ours + share * theirs):02x}" for ours, theirs in channels)


@contextmanager
def style(theme: str = "light") -> Iterator[None]:
    """Fonts and colours of a theme, "light" or "dark", inside which figures are drawn and written."""
    global _theme
    before, _theme = _theme, theme
    colours = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), ink())
    ground = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), ink("ground"))
    settings: dict[Any, Any] = {**FIXED, **colours, **ground}
    try:
        with matplotlib.rc_context(settings), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # the font may lack letters of a name
            yield
    finally:
        _theme = before


def shorten(text: str, limit: int = 44) -> str:
    """A name on one line, cut at its end."""
    text = " ".join(plain(text).split())
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def label(text: str, limit: int = 44) -> str:
    """The same for matplotlib, which would read dollars as formulas."""
    return shorten(text, limit).replace("$", r"\$")


class InlineFigure(matplotlib.figure.Figure):
    """A figure that notebooks show and that pyplot does not know, so it needs no closing."""

    def lay_out(self) -> None:
        """Compute where the panels are."""
        engine = self.get_layout_engine()
        if engine is None:
            return
        with warnings.catch_warnings():  # labels of broken numbers can leave no room: then the panels stay as they are
            warnings.filterwarnings("ignore", message="constrained_layout not applied")
            engine.execute(self)

    def png(self, dpi: int = DPI, **metadata: str) -> bytes:
        content = io.BytesIO()
        self.lay_out()
        engine = self.get_layout_engine()
        self.set_layout_engine("none")  # `savefig` would draw everything twice, the first time to lay it out
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")
            dpi = int(min(dpi, MAX_PIXELS / max(self.get_size_inches())))
            self.savefig(content, format="png", dpi=dpi, metadata={"Software": None, **metadata})
        self.set_layout_engine(engine)
        return content.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()


class Figure:
    """A figure of panels with a finding above and a caption for the text around it."""

    def __init__(self, name: str, title: str, panels: int = 1, *, columns: int = 3, height: float = 2.9) -> None:
        self.name, self.title, self.caption = name, title, ""
        columns = min(columns, panels)
        rows = math.ceil(panels / columns)
        self.drawing = InlineFigure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
        self.drawing.suptitle(
            "\n".join(textwrap.wrap(label(title, 200), 82)), x=0.01, ha="left", fontsize=11, fontweight="bold"
        )
        axes = list(self.drawing.subplots(rows, columns, squeeze=False).flat)
        for empty in axes[panels:]:
            empty.set_visible(False)
        self.panels: list[Any] = axes[:panels]

    def lay_out(self) -> None:
        """Compute where the panels are, which labels are placed by."""
        self.drawing.lay_out()

    def write(self, folder: Path, dpi: int = DPI) -> list[Path]:
        """NAME.png, and NAME.svg with the title as its accessible name. The same data give the same bytes."""
        self.lay_out()
        self.drawing.set_layout_engine("none")  # it would run again for each format
        content = io.BytesIO()
        self.drawing.savefig(content, format="svg", metadata={"Date": None, "Creator": None, "Title": self.title})
        written = [folder / f"{self.name}.{suffix}" for suffix in ("png", "svg")]
        for path, data in zip(written, (self.drawing.png(dpi), content.getvalue()), strict=True):
            write_atomically(path, data)
        return written


# ------------------------------------------------------------------------------------------------------ parts of panels


def plain_log_ticks(axis: Any) -> None:
    """Ticks of a log axis as plain numbers such as 200, at most about six."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 1.0
    wide = [(4.0, (1.0,)), (2.0, (1.0, 3.0)), (0.7, (1.0, 2.0, 5.0))]
    steps = next((steps for least, steps in wide if decades > least), (1.0, 1.5, *range(2, 10)))
    axis.set_major_locator(LogLocator(subs=steps, numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if 10 <= value < 1e6 else f"{value:g}"))


def label_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names right of the last panel, at the heights at which their lines end, moved apart where they would overlap.

    `ends` are (height, name, colour). Heights are in data units and may be NaN.
    """
    places = []
    for height, text, colour in ends:
        if math.isfinite(height):
            places.append((axes.transLimits.transform(axes.transScale.transform((0, height)))[1], text, colour))
    limit = 28 if axes.get_subplotspec().get_gridspec().ncols > 1 else 44
    gap = 0.16 / (axes.get_position().height * axes.figure.get_size_inches()[1])  # a line of text
    previous = -math.inf
    heights = []
    for height, _, _ in sorted(places, key=lambda place: place[0]):
        previous = max(height, previous + gap)
        heights.append(previous)
    over = max(0.0, (heights[-1] if heights else 0.0) - 1.0 - gap / 2)
    for (_, text, colour), height in zip(sorted(places, key=lambda place: place[0]), heights, strict=True):
        axes.annotate(
            label(text, limit), (1.0, height - over), xytext=(4, 0), textcoords="offset points",
            xycoords="axes fraction",
            va="center", fontsize=8.5, color=text_colour(colour),
            annotation_clip=False,
        )  # fmt: skip


def label_points(axes: Any, points: Sequence[tuple[float, float, str, str]]) -> None:
    """Names beside points, (x, y, name, colour): right of a point in the left half of the panel, else left of it.

    A name that would cover an earlier one moves down by a line.
    """
    taken: list[tuple[bool, float, float]] = []
    for x, y, text, colour in sorted(points, key=lambda point: -point[1]):
        across, up = axes.transLimits.transform(axes.transScale.transform((x, y)))
        is_left = across < 0.55
        line = 0.14 / (axes.get_position().height * axes.figure.get_size_inches()[1])
        height = up + 0.2 * line + 0.02  # above the whiskers of the point
        while any(side == is_left and abs(place - height) < line and abs(start - across) < 0.6
                  for side, start, place in taken):  # fmt: skip
            height -= line
        taken.append((is_left, across, height))
        axes.annotate(
            label(text, 36), (x, y), xytext=(across + (0.015 if is_left else -0.015), height),
            textcoords="axes fraction", va="center", ha="left" if is_left else "right", fontsize=8.5,
            color=text_colour(colour),
        )  # fmt: skip
