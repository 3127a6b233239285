"""Validation text for a source without a validation split: some of its train documents, always the same ones."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trc2.stream.document import Document


class OnlyOneDocument(ValueError):
    """The only document is a single word or a conversation, so nothing can be held out."""


@dataclass(frozen=True)
class Holdout:
    """A share of the documents, chosen by a hash of their position, so that appended rows do not move earlier ones.

    If the hash puts all of a few documents on one side, the document nearest to the border, number `exception`,
    changes sides. A single document is cut in two at character `cut`, and its end is held out.
    """

    share: float
    exception: int | None = None
    cut: int | None = None

    @classmethod
    def of(cls, documents: Iterable[Document], share: float) -> Holdout:
        """Read documents until both sides have one: a few dozen, or all of a small corpus."""
        if share in (0.0, 1.0):  # none, or all of them
            return cls(share)
        nearest, distance, count, text, is_chat = None, 2.0, 0, "", False
        sides = set()
        for number, document in enumerate(documents):
            place = place_of(document.where)
            sides.add(place < share)
            if len(sides) == 2:
                return cls(share)
            if abs(place - share) < distance:
                nearest, distance = number, abs(place - share)
            count, text, is_chat = count + 1, document.text, document.chat is not None
        if count == 1 and is_chat:
            raise OnlyOneDocument("one conversation")
        if count == 1:
            return cls(share, cut=_place_to_cut(text, share))
        return cls(share, nearest)

    def held_out(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The validation documents."""
        if self.share == 0.0:
            return iter(())  # no need to read them all
        if self.cut is not None:
            return (Document(document.text[self.cut :].lstrip(), f"{document.where}, end") for document in documents)
        return (document for number, document in enumerate(documents) if self._is_held_out(number, document))

    def kept(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents that stay train text."""
        if self.cut is not None:
            return (Document(document.text[: self.cut].rstrip(), document.where) for document in documents)
        return (document for number, document in enumerate(documents) if not self._is_held_out(number, document))

    def _is_held_out(self, number: int, document: Document) -> bool:
        return (place_of(document.where) < self.share) != (number == self.exception)


def _place_to_cut(text: str, share: float) -> int:
    """Where the last share of a text begins: at a blank line nearby, else at the end of a line or a word."""
    ideal = int(len(text) * (1.0 - share))
    nearby = [text.rfind(border, ideal // 2, ideal + 1) for border in ("\n\n", "\n", " ")]
    first_word = re.match(r"\s*\S+", text)
    for cut in [*nearby, -1 if first_word is None else first_word.end()]:
        if cut > 0 and text[:cut].strip() and text[cut:].strip():
            return cut
    raise OnlyOneDocument("one word")


def place_of(where: str) -> float:
    """A hash as a number from 0 to 1, spread evenly over documents. A file's name need not be valid UTF-8."""
    digest = hashlib.blake2b(where.encode(errors="backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
