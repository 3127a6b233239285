"""Validation text for a source without a validation split: some of its train documents, always the same ones."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import filterfalse, islice

from trc2.stream.document import Document


class OnlyOneDocument(ValueError):
    """The only document is a single word or a conversation, so nothing can be held out."""


@dataclass(frozen=True)
class Holdout:
    """A share of the documents, chosen by a hash of their content.

    So equal documents are on one side, also in later weeks, and appended or renamed files do not move others.
    If the hash puts all of a few documents on one side, those whose hash is nearest to the border, `exception`, change
    sides. A single document, whatever its copies, is cut in two at character `cut`, and its end is held out.
    """

    share: float
    exception: float | None = None
    cut: int | None = None

    @classmethod
    def of(cls, documents: Iterable[Document], share: float) -> Holdout:
        """Read documents until both sides have one: a few dozen, or all of a small corpus."""
        if share in (0.0, 1.0):  # none, or all of them
            return cls(share)
        nearest, places = None, set[float]()
        for document in documents:
            place = place_of(document.content)
            if any((place < share) != (other < share) for other in islice(places, 1)):
                return cls(share)
            places.add(place)
            if nearest is None or abs(place - share) < abs(nearest - share):
                nearest = place
            text, is_chat = document.text, document.chat is not None
        if len(places) == 1 and is_chat:
            raise OnlyOneDocument("one conversation")
        if len(places) == 1:
            return cls(share, cut=_place_to_cut(text, share))
        return cls(share, nearest)

    def held_out(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The validation documents."""
        if self.share == 0.0:
            return iter(())  # no need to read them all
        if self.cut is not None:
            return (Document(document.text[self.cut :].lstrip(), f"{document.where}, end") for document in documents)
        return filter(self._is_held_out, documents)

    def kept(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents that stay train text."""
        if self.cut is not None:
            return (Document(document.text[: self.cut].rstrip(), document.where) for document in documents)
        return filterfalse(self._is_held_out, documents)

    def _is_held_out(self, document: Document) -> bool:
        place = place_of(document.content)
        return (place < self.share) != (place == self.exception)


def _place_to_cut(text: str, share: float) -> int:
    """Where the last share of a text begins: at a blank line nearby, else at the end of a line or a word."""
    ideal = int(len(text) * (1.0 - share))
    nearby = [text.rfind(border, ideal // 2, ideal + 1) for border in ("\n\n", "\n", " ")]
    first_word = re.match(r"\s*\S+", text)
    for cut in [*nearby, -1 if first_word is None else first_word.end()]:
        if cut > 0 and text[:cut].strip() and text[cut:].strip():
            return cut
    raise OnlyOneDocument("one word")


def place_of(content: bytes) -> float:
    """A hash as a number from 0 to 1, spread evenly over documents."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") / 2**64
