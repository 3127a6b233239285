"""The command as users type it, without a new process: through the real border, with what it printed."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest import mock

from trc2 import cli


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def trc2(*arguments: str) -> Done:
    """Run one command. An exception that passes the border passes here too."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["trc2", *arguments]),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
