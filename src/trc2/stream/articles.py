"""WikiText out of its lines: the hub and the original files hold one line a row, a document is an article."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trc2.stream.document import BadRows, Document

TITLE = re.compile(r"\s*= (?!=).*(?<!=) =\s*")  # " = Title = ", but no section's " = = Title = = "
BLANK = " "  # what the original files have for the empty rows of the hub


def join_articles(rows: Iterable[Document], max_bytes: int, bad: BadRows) -> Iterator[Document]:
    """Articles from rows of one line; a row of several lines is an article already and is left as it is.

    A title between blank lines begins an article. Without the blank lines it is none: tables and formulas that were
    broken into lines look the same. No more than one article is held; one beyond `max_bytes` goes to `bad`.
    """
    held: list[str] = []
    size, where = 0, ""
    before = BLANK
    for row, after in _with_next(rows):
        is_blank = not row.text.strip()
        line = BLANK if is_blank else row.text.removesuffix("\n")
        is_whole = "\n" in line
        if is_whole or (TITLE.fullmatch(line) and not before.strip() and not after.strip()):
            yield from _article(held, size, where, max_bytes, bad)
            held, size = [], 0
        if is_whole:
            yield row
        elif size or not is_blank:  # the blank line before the first title belongs to no article
            where = where if size else row.where
            size += len(line.encode()) + 1
            if size - 1 <= max_bytes:
                held.append(line)
        before = BLANK if is_whole else line
    yield from _article(held, size, where, max_bytes, bad)


def _article(held: list[str], size: int, where: str, max_bytes: int, bad: BadRows) -> Iterator[Document]:
    if size - 1 > max_bytes:
        bad.add("over-long", where)
    elif held:
        yield Document("\n".join(held), where)


def _with_next(rows: Iterable[Document]) -> Iterator[tuple[Document, str]]:
    """Every row and the text of the one after it, empty after the last."""
    earlier: Document | None = None
    for row in rows:
        if earlier is not None:
            yield earlier, row.text
        earlier = row
    if earlier is not None:
        yield earlier, ""
