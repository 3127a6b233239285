"""`--notify COMMAND`: a command of the user's that runs after a verdict, without a shell."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping

from trc2.errors import UserError, brief
from trc2.system.files import to_json

PATIENCE = 60.0  # seconds


def check_command(command: str | None) -> None:
    """Reject a command that cannot be split into words, before anything is trained."""
    if command is None:
        return
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise UserError(f"--notify {brief(command, 80)} is not a command ({brief(problem)}): close quotes.") from None
    if not words:
        raise UserError("--notify is empty: give a command, such as 'mail -s trc2 me'.")


def notify(
    command: str | None, message: Mapping[str, object], facts: Mapping[str, object], warn: Callable[[str], None]
) -> None:
    """Run the command with the message as JSON on its standard input and the facts as TRC2_… in its environment.

    The command is split into words and run without a shell, so no name or text can become a command of its own. A
    failure is a warning.
    """
    if command is None:
        return
    variables = {f"TRC2_{name.upper()}": str(value) for name, value in facts.items() if value is not None}
    try:
        done = subprocess.run(
            shlex.split(command), input=to_json(message), text=True, env={**os.environ, **variables}, timeout=PATIENCE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, ValueError) as problem:
        warn(f"--notify {brief(command, 80)} could not run: {brief(problem)}.")
        return
    if done.returncode:
        said = f": {brief(done.stdout)}" if done.stdout.strip() else ""
        warn(f"--notify {brief(command, 80)} ended with exit code {done.returncode}{said}.")
