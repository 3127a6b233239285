"""Text from outside is shown, never obeyed."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from trc2.console import PlainConsole, shown
from trc2.errors import plain


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
