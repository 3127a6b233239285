"""A run in a notebook: one output that is drawn again as the run goes on, instead of line after line."""

from __future__ import annotations

import html
import time
from collections.abc import Callable
from typing import Any

from trc2.runs.records import Record
from trc2.system.console import clock
from trc2.training.forecast import Forecast
from trc2.training.observers import perplexities

SECONDS_BETWEEN = 0.2  # a browser has no use for more pictures than this

Show = Callable[[str], None]
"""Puts HTML in place of what it put there before."""


class NotebookBar:
    """An observer: a bar, the newest loss, and a line of perplexities for the last evaluation.

    `first` is the step the bar begins at, `total` the one it ends at.
    """

    def __init__(self, total: int, first: int = 0, forecast: Forecast | None = None, show: Show | None = None) -> None:
        self.first, self.total, self.forecast = first, total, forecast
        self.show = cell_output() if show is None else show
        self.step, self.task, self.line, self.scores, self.shown_at = first, "", "", "", 0.0
        self._draw()

    def see(self, record: Record) -> None:
        now = time.monotonic()
        if self.forecast is not None:
            self.forecast.see(record, now)
        self.step, self.task = max(self.step, record.step), record.task
        if record.kind == "train":
            speed = record.metrics["train/tokens_per_second"]
            self.line = f"loss {record.metrics['train/loss_lm']:.3f} · {speed:,.0f} tokens/s"
        elif record.kind == "nonfinite":
            self.line = "gradients are not finite: the step was skipped"
        elif record.kind == "eval":
            scores = perplexities(record)
            if scores:
                self.scores = " · ".join(f"{name} {value:.4g}" for name, value in scores.items())
        if now - self.shown_at >= SECONDS_BETWEEN or record.kind in ("eval", "end"):
            self._draw()

    def close(self) -> None:
        """The last state stays in the notebook."""
        self._draw()

    def _draw(self) -> None:
        self.shown_at = time.monotonic()
        done, of = self.step - self.first, self.total - self.first
        left = None if self.forecast is None or done >= of else self.forecast.left()
        parts = [f"{done}/{of}", self.task, self.line, *([] if left is None else [clock(left)])]
        text = html.escape(" · ".join(part for part in parts if part))
        scores = f"<br><small>perplexity: {html.escape(self.scores)}</small>" if self.scores else ""
        self.show(f'<div><progress value="{done}" max="{of}"></progress> {text}{scores}</div>')


def cell_output() -> Show:
    """An output of the cell that runs now."""
    from IPython.display import HTML, display

    handle: Any = display(HTML(""), display_id=True)
    return lambda content: handle.update(HTML(content))
