"""Output to the terminal. Markup and control characters in text from outside have no effect."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trc2.errors import plain


class PlainConsole(Console):
    """A console for text of unknown origin: no markup, no emoji codes, no control characters.

    `[/red]` in a file's name is six signs, and so is `[trackio]` in `pip install '.[trackio]'`. Colour is asked for
    with `style=`, never inside the text.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, *args: Any, **settings: Any) -> Text:
        """Every string that is printed, also in tables, passes through this function."""
        return super().render_str(plain(text), *args, **settings)


def shown(text: str) -> Text:
    """For the parts of rich that read markup whatever the console says: spinners and progress columns."""
    return Text(plain(text))


def table_of(heads: Sequence[str], rows: Iterable[Iterable[str]] = (), align: str = "", **settings: Any) -> Table:
    """A table. By default all columns but the first hold numbers.

    `align` has a letter for each column: l for text, w for text that is never wrapped, r for numbers.
    """
    table = Table(**settings)
    for head, kind in zip(heads, align or "l" + "r" * (len(heads) - 1), strict=True):
        table.add_column(head, justify="right" if kind == "r" else "left", no_wrap=kind == "w")
    for row in rows:
        table.add_row(*row)
    return table


@contextmanager
def plain_logs() -> Iterator[None]:
    """Remove control characters from logs and warnings of other libraries, which may quote a file."""
    make, show = logging.getLogRecordFactory(), warnings.formatwarning

    def record(*args: Any, **settings: Any) -> logging.LogRecord:
        made = make(*args, **settings)
        with suppress(Exception):  # a message that does not fit its arguments: logging itself says so
            made.msg, made.args = plain(made.getMessage()), ()
        return made

    logging.setLogRecordFactory(record)
    warnings.formatwarning = lambda *args, **settings: plain(show(*args, **settings))
    try:
        yield
    finally:
        logging.setLogRecordFactory(make)
        warnings.formatwarning = show


def clock(seconds: float | None) -> str:
    """A time that is left, for people."""
    if seconds is None:
        return "time left unknown"
    minutes = int(seconds // 60)
    return f"{minutes // 60}:{minutes % 60:02d} h left" if minutes >= 60 else f"{minutes}:{int(seconds % 60):02d} left"
