"""The `trc2` command: one file each, which parses, calls and prints. `main` is the border around all of them."""

from __future__ import annotations

import io
import sys
from functools import cache
from importlib import import_module
from typing import Any

from rich.text import Text
from typer.main import get_command

from trc2.cli.app import app, err, out
from trc2.errors import UserError, plain, sentence_of
from trc2.system.console import plain_logs
from trc2.system.machine import end_with_parent
from trc2.system.plugins import blamed
from trc2.system.torchrun import is_worker

__all__ = ["COMMANDS", "app", "err", "main", "out"]

# `trc2 NAME` is NAME.py, with _ for -, which registers itself as it is imported. `trc2 --help` keeps this order.
COMMANDS = (
    "init", "recipes", "config", "train", "resume", "continue", "check", "promote", "rollback", "versions", "runs",
    "diff", "sweep", "eval", "lm-eval", "report", "generate", "teach", "forget", "recall", "serve", "dream", "export",
    "verify", "budget", "plan", "bench", "doctor", "data",
)  # fmt: skip
for _name in COMMANDS:
    _module = "continue_" if _name == "continue" else _name.replace("-", "_")  # `continue` is a keyword
    import_module(f"{__name__}.{_module}")
# One command may import another, which then registers earlier than its place.
app.registered_commands.sort(
    key=lambda command: COMMANDS.index(command.name or getattr(command.callback, "__name__", ""))
)


@cache
def parser() -> Any:
    """All commands as click sees them. Building them takes 50 ms, which a process that runs many commands pays once."""
    return get_command(app)


def main() -> None:
    """The border: what users or their disks did wrong is one sentence and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character must not stop a command
    if is_worker():
        end_with_parent()
    try:
        with plain_logs():
            parser()()
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except (Exception, SystemExit, GeneratorExit) as error:  # a plug-in may raise any of them
        sentence = sentence_of(error) or blamed(error)
        if sentence is None:
            raise
        code = error.exit_code if isinstance(error, UserError) else UserError.exit_code
        label = Text("error: ", style="bold red") if code == UserError.exit_code else Text()
        err.print(label + Text(plain(" ".join(sentence.split()))), soft_wrap=True)
        sys.exit(code)
