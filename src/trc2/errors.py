"""The one error type that users are meant to read, and the sentences for what the system refuses."""

from __future__ import annotations

import difflib
import errno
import os
import unicodedata
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input, described in one sentence: the value, what would be right, what to do.

    The command line prints the sentence and exits with `exit_code`. All other exceptions are shown with a traceback.
    """

    exit_code = 2


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to append to "unknown name" messages: the nearest known name, else all of them."""
    choices = sorted(known)
    near = difflib.get_close_matches(name[:200], choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return "choose one of " + ", ".join(choices) + "."


def plain(text: str) -> str:
    """Text from outside as a terminal may show it: nothing in it moves the cursor, colours or reorders what is shown.

    Line ends and tabs stay. Everything else that Unicode calls control, format or surrogate becomes `�`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        sign if sign in "\n\t" or unicodedata.category(sign) not in ("Cc", "Cf", "Cs") else "\N{REPLACEMENT CHARACTER}"
        for sign in text
    )


def brief(reason: object, limit: int = 160) -> str:
    """Another library's error message, short enough to be part of one sentence."""
    text = plain(" ".join(str(reason).split())).rstrip(".")
    return (text if len(text) <= limit else text[:limit] + "…") or type(reason).__name__


REMEDIES = {
    errno.ENOSPC: "make room and try again",
    errno.EDQUOT: "make room and try again",
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "ask for the right to use it, or choose another place",
    errno.EPERM: "ask for the right to use it, or choose another place",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "choose a path whose parents are folders",
    errno.EEXIST: "choose another path",
    errno.ENOTEMPTY: "choose another path",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "check the symbolic links in the path",
    errno.EMFILE: "close other programs or raise `ulimit -n`",
    errno.EIO: "check the disk, and use a copy",
}


def sentence_of(error: BaseException, path: object = None) -> str | None:
    """The sentence shown to a user for an error that is not a bug of ours. None if it may be one.

    `path` is named where the system does not say which file it means.
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else path
        what = brief(error.strerror or error)
        remedy = REMEDIES.get(error.errno or 0, "check the path and the disk, and try again")
        return f"{where}: {what}; {remedy}." if where is not None else f"{what}; {remedy}."
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # pathlib's word for it before Python 3.13
        return f"{brief(error)}; {REMEDIES[errno.ELOOP]}."
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _is_about_memory(str(error))):
        return "There is not enough memory for this: choose smaller sizes, or a machine with more."
    return None


def _is_about_memory(reason: str) -> bool:
    """Torch has no error type of its own for what a CPU cannot hold."""
    return any(words in reason for words in ("not enough memory", "can't allocate memory", "Storage size calculation"))
