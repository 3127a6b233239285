"""WikiText articles from rows of one line each, which is how the hub and the original files store them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

from trc2.stream.document import BadRows, Document

TITLE = re.compile(r"\s*= (?!=).*(?<!=) =\s*")  # " = Title = ", but not the " = = Title = = " of a section
BLANK = " "  # in the original files; the hub has empty rows instead


def join_articles(rows: Iterable[Document], max_bytes: int, bad: BadRows) -> Iterator[Document]:
    """Join rows of one line to articles. A row of several lines is already an article.

    A title between blank lines begins an article. Without blank lines it may be a part of a table or a formula. At
    most one article is held in memory. An article beyond `max_bytes` goes to `bad`.
    """
    held: list[str] = []
    size, where = 0, ""
    before = BLANK
    for row, following in pairwise(chain(rows, [Document("", "")])):
        is_blank = not row.text.strip()
        line = BLANK if is_blank else row.text.removesuffix("\n")
        is_whole = "\n" in line
        if is_whole or (TITLE.fullmatch(line) and not before.strip() and not following.text.strip()):
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
