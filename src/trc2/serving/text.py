"""Text of an answer while its tokens arrive: whole characters, stop sequences, and the place of every token."""

from __future__ import annotations

from collections.abc import Sequence

from trc2.stream.tokenizer import Tokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class GrowingText:
    """The text of the tokens so far. Text that may start a stop sequence is held back until that is decided."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.ids: list[int] = []
        self.text = ""
        self.shown = 0  # characters that `add` has returned
        self.is_stopped = False

    def add(self, token: int) -> str:
        """The text that is certain after one more token."""
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids)
        cut = self._first_stop(text)
        if cut is not None:
            self.text, self.is_stopped = text[:cut], True
            return self._show(cut)
        self.text = text
        return "" if text.endswith(INCOMPLETE) else self._show(len(text) - self._held_back(text))

    @property
    def num_whole(self) -> int:
        """Characters of the text so far, without one at the end of which only a part is there."""
        return len(self.text) if self.is_stopped else len(self.text.rstrip(INCOMPLETE))

    def rest(self) -> str:
        """What was held back, at the end of the answer."""
        return self._show(len(self.text))

    def _show(self, end: int) -> str:
        piece = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return piece

    def _first_stop(self, text: str) -> int | None:
        starts = [text.find(word, max(0, self.shown - len(word) + 1)) for word in self.stop]
        return min((start for start in starts if start >= 0), default=None)

    def _held_back(self, text: str) -> int:
        """The length of the longest end of the text that begins a stop sequence."""
        longest = max(map(len, self.stop), default=1) - 1
        sizes = range(min(longest, len(text)), 0, -1)
        return next((size for size in sizes if any(word.startswith(text[-size:]) for word in self.stop)), 0)


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as text. A part of a character has no text, so it is named by its id."""
    text = tokenizer.decode([token])
    return f"<token {token}>" if not text or INCOMPLETE in text else text


def token_offsets(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The number of characters before each token, and last the length of the whole text."""
    offsets, position, whole, begin, read = [], 0, 0, 0, 0
    for end in range(1, len(ids) + 1):
        offsets.append(position + whole)
        # A few tokens before the new one are decoded with it: some tokenizers drop a space at the start of a text.
        known, text = tokenizer.decode(list(ids[begin:read])), tokenizer.decode(list(ids[begin:end]))
        whole = len(text.rstrip(INCOMPLETE)) - len(known)  # before a character of which only a part is there
        if not text.endswith(INCOMPLETE):
            position, whole = position + whole, 0
            begin, read = read, end
    return [*offsets, position]
