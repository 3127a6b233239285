"""Validation text for a source that brings none: some of its train documents, always the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trc2.stream.document import Document


class OnlyOneDocument(ValueError):
    """There is nothing to hold out: train needs the only document."""


@dataclass(frozen=True)
class Holdout:
    """A share of the documents, chosen by where they stand, so that rows appended later move no earlier one.

    By chance the share of a few documents can be none or all of them. Then the one nearest to the border, number
    `exception`, changes sides.
    """

    share: float
    exception: int | None = None

    @classmethod
    def of(cls, documents: Iterable[Document], share: float) -> Holdout:
        """Reads until there is a document on either side: a few dozen, or all of a small corpus."""
        if share == 0.0:
            return cls(share)
        nearest, distance, count = None, 2.0, 0
        sides = set()
        for number, document in enumerate(documents):
            sides.add(place_of(document.where) < share)
            if len(sides) == 2:
                return cls(share)
            if abs(place_of(document.where) - share) < distance:
                nearest, distance = number, abs(place_of(document.where) - share)
            count += 1
        if count == 1:
            raise OnlyOneDocument
        return cls(share, nearest)

    def held_out(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents that are validation."""
        if self.share == 0.0:
            return iter(())  # no need to read them all
        return (document for number, document in enumerate(documents) if self._is_held_out(number, document))

    def kept(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents that stay in train."""
        return (document for number, document in enumerate(documents) if not self._is_held_out(number, document))

    def _is_held_out(self, number: int, document: Document) -> bool:
        return (place_of(document.where) < self.share) != (number == self.exception)


def place_of(where: str) -> float:
    """A number from 0 to 1, spread evenly over documents and fixed for each."""
    # A file's name need not be valid UTF-8.
    mark = hashlib.blake2b(where.encode(errors="backslashreplace"), digest_size=8)
    return int.from_bytes(mark.digest(), "big") / 2**64
