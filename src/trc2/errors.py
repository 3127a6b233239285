"""The one error type that users are meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input, told in one sentence: the value, what would be right, what to do.

    The command line prints the sentence and exits with `exit_code`; nothing else of ours is shown without a traceback.
    """

    exit_code = 2


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to append to "unknown name" messages: the nearest known name, else all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return "choose one of " + ", ".join(choices) + "."
