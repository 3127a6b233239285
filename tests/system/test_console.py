"""Text from outside is shown, never obeyed."""

from __future__ import annotations

import io
import logging
import sys
import warnings

import pytest
from rich.table import Table

from trc2.errors import plain
from trc2.system.console import PlainConsole, plain_logs, shown


def printed(thing: object) -> str:
    file = io.StringIO()
    PlainConsole(file=file, force_terminal=True, width=80, no_color=True).print(thing)
    return file.getvalue()


@pytest.mark.parametrize(
    "text", ["pip install 'trc2[trackio]'", "[/red]", "[bold]x[/]", "pattern '^[a-z0-9]*$'", ":smile:"]
)
def test_brackets_and_codes_are_text(text: str) -> None:
    assert text in printed(text)
    assert text in printed(shown(text))
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    assert printed(table).count(text) == 3


def test_control_characters_never_reach_the_terminal() -> None:
    nasty = "a\x1b[31mb\x07c\x9bd\x1b]0;title\x07e\u202ef\udce4"
    for thing in (nasty, shown(nasty)):
        shown_text = printed(thing)
        assert not any(sign in shown_text for sign in "\x1b\x07\x9b\u202e\udce4")
        assert all(letter in shown_text for letter in "abcdef")


def test_plain_text_stays_as_it_is() -> None:
    text = "Zeile\n\tзаголовок 标题 é 🙂 λ_rep ≤ 0.15"
    assert plain(text) == text


def test_logs_and_warnings_of_other_libraries_lose_their_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    factory = logging.getLogRecordFactory()  # another library may have set its own
    logger, handler = logging.getLogger("of.somebody"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    with plain_logs():
        logger.warning("key %s", "\x1b[2J")
        assert "\x1b" not in warnings.formatwarning("\x1b[2J", UserWarning, "file", 1)
    logger.removeHandler(handler)
    assert "key \N{REPLACEMENT CHARACTER}[2J" in capsys.readouterr().err
    logger.addHandler(handler)
    assert logging.getLogRecordFactory() is factory
    logger.removeHandler(handler)
