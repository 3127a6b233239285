"""Markdown, with text from outside in it: names of folders, licences and sources are shown, never obeyed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import jinja2

from trc2.errors import plain

# What is special within a line anywhere. An underscore between letters is not, nor a colon before a space, so that
# lab_trc2 and ordinary sentences stay readable in the source.
INLINE = re.compile(r"[\\`*\[\]<>|&~$@^{}]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=[wW]{3})\.|#$")
# What is special only where a line begins: lists, headings, quotes, rules.
LEADING = re.compile(r"^(?:[-+#=!]|\d+(?=[.)]))")


def markdown(text: str) -> str:
    """Text that Markdown, whether in a heading, a table or a paragraph, shows as it is, on one line."""
    line = INLINE.sub(r"\\\g<0>", " ".join(plain(text).split()))
    return LEADING.sub(_escape_leading, line)


def _escape_leading(match: re.Match[str]) -> str:
    sign = match.group()
    return f"{sign}\\" if sign.isdigit() else f"\\{sign}"  # of a numbered list, what follows the number


def code(text: str) -> str:
    """The same for a short piece of code. Only the characters that end the code or a table's cell are special."""
    return f"`{' '.join(re.sub('[`|]', ' ', plain(text)).split())}`"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table. `align` has l or r for each column. By default all columns but the first hold numbers."""
    rule = "|".join("---" if side == "l" else "---:" for side in align or "l" + "r" * (len(heads) - 1))
    return "\n".join([f"| {' | '.join(heads)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)])


def listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def fill_template(name: str, **values: object) -> str:
    """One of this folder's templates of Markdown. Where a part of it is empty, one blank line remains."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = {"markdown": markdown, "code": code, "json": json.dumps, "count": "{:,}".format, "four": "{:.4g}".format}
    environment.filters |= formats
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(name).render(values)).strip() + "\n"
