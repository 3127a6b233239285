"""Validation text for a source that brings none: some of its train documents, always the same ones."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trc2.stream.document import Document


class OnlyOneDocument(ValueError):
    """There is nothing to hold out: the only document is a single word."""


@dataclass(frozen=True)
class Holdout:
    """A share of the documents, chosen by where they stand, so that rows appended later move no earlier one.

    By chance the share of a few documents can be none or all of them. Then the one nearest to the border, number
    `exception`, changes sides. A single document is cut in two, at character `cut`, and its end is held out.
    """

    share: float
    exception: int | None = None
    cut: int | None = None

    @classmethod
    def of(cls, documents: Iterable[Document], share: float) -> Holdout:
        """Reads until there is a document on either side: a few dozen, or all of a small corpus."""
        if share in (0.0, 1.0):  # none, or all of them
            return cls(share)
        nearest, distance, count, text = None, 2.0, 0, ""
        sides = set()
        for number, document in enumerate(documents):
            sides.add(place_of(document.where) < share)
            if len(sides) == 2:
                return cls(share)
            if abs(place_of(document.where) - share) < distance:
                nearest, distance = number, abs(place_of(document.where) - share)
            count, text = count + 1, document.text
        if count == 1:
            return cls(share, cut=_place_to_cut(text, share))
        return cls(share, nearest)

    def held_out(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents that are validation."""
        if self.share == 0.0:
            return iter(())  # no need to read them all
        if self.cut is not None:
            return (Document(document.text[self.cut :].lstrip(), f"{document.where}, end") for document in documents)
        return (document for number, document in enumerate(documents) if self._is_held_out(number, document))

    def kept(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents that stay in train."""
        if self.cut is not None:
            return (Document(document.text[: self.cut].rstrip(), document.where) for document in documents)
        return (document for number, document in enumerate(documents) if not self._is_held_out(number, document))

    def _is_held_out(self, number: int, document: Document) -> bool:
        return (place_of(document.where) < self.share) != (number == self.exception)


def _place_to_cut(text: str, share: float) -> int:
    """Before the last share of a text: at a blank line if there is one nearby, else at a line's or a word's end."""
    ideal = int(len(text) * (1.0 - share))
    nearby = [text.rfind(border, ideal // 2, ideal + 1) for border in ("\n\n", "\n", " ")]
    first_word = re.match(r"\s*\S+", text)
    for cut in [*nearby, -1 if first_word is None else first_word.end()]:
        if cut > 0 and text[:cut].strip() and text[cut:].strip():
            return cut
    raise OnlyOneDocument


def place_of(where: str) -> float:
    """A number from 0 to 1, spread evenly over documents and fixed for each."""
    # A file's name need not be valid UTF-8.
    mark = hashlib.blake2b(where.encode(errors="backslashreplace"), digest_size=8)
    return int.from_bytes(mark.digest(), "big") / 2**64
