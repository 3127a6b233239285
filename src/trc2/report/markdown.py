"""Text from outside inside our Markdown: names of folders, licences and sources are shown, never obeyed."""

from __future__ import annotations

import re

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


def _escape_leading(found: re.Match[str]) -> str:
    sign = found.group()
    return f"{sign}\\" if sign.isdigit() else f"\\{sign}"  # of a numbered list, what follows the number


def code(text: str) -> str:
    """The same for a short piece of code: nothing inside is special but what would end it, or a table's cell."""
    return f"`{' '.join(re.sub('[`|]', ' ', plain(text)).split())}`"
