"""Documents: how rows of a dataset become documents, and the rows that cannot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from trc2.errors import UserError, brief, did_you_mean
from trc2.stream.conversation import BadRow, Conversation, PackedRow, conversation_of, packed_row_of

MAX_EXAMPLES = 5
DUPLICATE = "duplicate"
FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
BY_LINE = "wikitext"  # rows are lines, which `join_articles` joins
TITLE = re.compile(r"\s*= (?!=).*(?<!=) =\s*")  # of WikiText: " = Title = ", but not the " = = Title = = " of a section
BLANK = " "  # in the original files. The hub has empty rows instead
TEXT = "text"
NAMED = {TEXT: "{text}", "gsm8k": "Question: {question}\nAnswer: {answer}", BY_LINE: "{text}"}

Chat = Conversation | PackedRow
Format = Callable[[Mapping[str, Any], int], str | Chat]
"""Makes the text of a row. A row with more characters than the second argument is refused before its text is made."""


@dataclass(frozen=True)
class Document:
    """A text and where it is from. A conversation is rendered when it is packed. `text` is then only what is said."""

    text: str
    where: str
    chat: Chat | None = None

    @property
    def content(self) -> bytes:
        """Equal for equal documents. A conversation differs from a text with the same words."""
        return self.text.encode() if self.chat is None else f"{self.text}\0{self.chat!r}".encode()


@dataclass
class BadRows:
    """Skipped rows: how many of each kind, and where the first ones are."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, where: str) -> None:
        self.counts[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(where)

    def total(self) -> int:
        """Rows with a fault. Exact duplicates are skipped too, but do not count as faults."""
        return sum(count for kind, count in self.counts.items() if kind != DUPLICATE)

    def to_json(self) -> dict[str, object]:
        return {kind: {"rows": count, "first": self.examples[kind]} for kind, count in sorted(self.counts.items())}

    def sentence(self) -> str:
        """The number of skipped rows by kind, and where to look."""
        kinds = [(kind, count) for kind, count in self.counts.most_common() if kind != DUPLICATE]
        parts = [f"{count} {kind} (first at {self.examples[kind][0]})" for kind, count in kinds]
        hint = " If the text has another encoding, name it by the task's encoding, e.g. latin-1."
        is_coded = any(kind.startswith("invalid ") for kind, _ in kinds)
        skipped = "1 row was" if self.total() == 1 else f"{self.total()} rows were"
        return f"{skipped} skipped: " + ", ".join(parts) + "." + hint * is_coded


def text_format(name: str, *, with_chat: bool = False) -> Format:
    """`text`, `gsm8k`, `wikitext`, or a template whose {fields} are filled in. Nothing else in it is interpreted.

    `with_chat` makes `text` also take rows of conversations, unless they have a text.
    """
    template = NAMED.get(name, name)
    fields = FIELD.findall(template)
    if not fields:
        raise UserError(
            f"format='{brief(name)}' names no field: {did_you_mean(name, NAMED)} A template such as "
            "'{title}: {text}' works too."
        )

    def render(row: Mapping[str, Any], limit: int) -> str | Chat:
        if with_chat and name == TEXT:
            is_text = isinstance(row.get("text"), str)
            chat = packed_row_of(row) if is_text else conversation_of(row, limit)
            if chat is not None:
                return chat
        size = 0
        for field_name in fields:
            if field_name not in row:
                raise BadRow(f"without '{field_name}'")
            if not isinstance(row[field_name], str):
                raise BadRow(f"where '{field_name}' is not a string")
            size += len(row[field_name])
        if size > limit:  # a template may name a field a thousand times
            raise BadRow("over-long")
        text = FIELD.sub(lambda match: row[match.group(1)], template)
        if not text.strip() and name != BY_LINE:
            raise BadRow("empty")
        return text

    return render


def render_row(row: Any, where: str, render: Format, max_bytes: int, bad: BadRows) -> Iterator[Document]:
    """The document of a row. If there is none, the reason goes to `bad`."""
    try:
        if not isinstance(row, dict):
            raise BadRow("not an object")
        content = render(row, max_bytes)
        text, chat = (content, None) if isinstance(content, str) else (content.text, content)
        if len(text.encode(errors="surrogatepass")) > max_bytes:
            raise BadRow("over-long")
        text.encode()  # fails for lone surrogates, which JSON can contain
        yield Document(text, where, chat)
    except BadRow as fault:
        bad.add(str(fault), where)
    except UnicodeEncodeError:
        bad.add("invalid UTF-8", where)


def limited(documents: Iterable[Document], max_bytes: int | None) -> Iterator[Document]:
    """Documents until their total size passes a number of bytes."""
    size = 0
    for document in documents:
        if max_bytes is not None and size >= max_bytes:
            return
        size += len(document.text.encode())
        yield document


def join_articles(rows: Iterable[Document], max_bytes: int, bad: BadRows) -> Iterator[Document]:
    """Join rows of one line to articles, as the hub and the original files of WikiText have them.

    A row of several lines is already an article. A title between blank lines begins an article. Without blank lines it
    may be a part of a table or a formula. At most one article is held in memory. An article beyond `max_bytes` goes to
    `bad`.
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
