"""Names from outside are text in every place of a report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from trc2.errors import plain
from trc2.report.markdown import code, markdown

READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
ODD = ["[x](http://evil) <script>", "a|b", "a\nb", "*a*", "_a_", "__a__", "a\\", "`a`", "# a #", "1. a", "- a", "+ a"]
ODD += ["> a", "===", "---", "&lt;", "![x](y)", "~~a~~", "\x1b[31m", "<http://evil>", "a  b", "  a", "[a]: b", "$x$"]


def shown(source: str) -> tuple[list[str], str]:
    """The kinds of blocks and spans a text is made of, and the words that are read in it."""
    kinds, words = [], []
    for token in READER.parse(source):
        kinds.append(token.type)
        for child in token.children or []:
            kinds.append(child.type)
            words.append(child.content if child.type == "text" else "")
    return kinds, "".join(words)


def check_shown_as_it_is(text: str) -> None:
    expected = " ".join(plain(text).split())
    heading, in_heading = shown(f"# {markdown(text)}")
    assert in_heading == expected
    assert set(heading) <= {"heading_open", "inline", "text", "heading_close"}
    sentence, in_sentence = shown(markdown(f"{text} forgot least."))
    assert in_sentence == f"{expected} forgot least.".strip()
    assert set(sentence) <= {"paragraph_open", "inline", "text", "paragraph_close"}
    table, in_table = shown(f"| a | b |\n|---|---|\n| {markdown(text)} | c |")
    assert in_table == f"ab{expected}c"
    assert table.count("td_open") == 2


@pytest.mark.parametrize("text", ODD)
def test_odd_names_are_read_as_they_are(text: str) -> None:
    check_shown_as_it_is(text)


@given(st.text() | st.text(alphabet="ab1 *_`[]()<>|\\#-+=!&~.:@w\n"))
def test_any_text_is_read_as_it_is(text: str) -> None:
    check_shown_as_it_is(text)


@pytest.mark.parametrize("name", ["lab_trc2", "demo-2", "Salesforce/wikitext", "CC BY-SA 4.0", "runs (old)", "größe"])
def test_ordinary_names_stay_readable_in_the_source(name: str) -> None:
    assert markdown(name) == name


@given(st.text(alphabet="ab`| \n\\<*", min_size=1))
def test_code_does_not_end_early(text: str) -> None:
    kinds, _ = shown(f"- {code('x' + text)}.")
    assert kinds.count("code_inline") == 1
    assert "html_inline" not in kinds
