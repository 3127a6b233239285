"""What all commands share: the app, the two consoles, how a model is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from trc2 import __version__
from trc2.errors import plain
from trc2.system.console import PlainConsole, shown
from trc2.system.files import to_json
from trc2.system.torchrun import is_first_process, is_worker, speaks_for_machine

if TYPE_CHECKING:
    from trc2.config import RunConfig

EXIT_CODES = (
    "Exit codes: 0 done, 1 a check failed or a process was lost, 2 bad input (one sentence on standard error), "
    "3 the acceptance check of a continued run refused it, 130 stopped by a signal."
)


@contextmanager
def _plain_usage_errors() -> Iterator[None]:
    """Usage errors quote what was typed: show it without signs that move or reorder what a terminal shows."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message") and isinstance(getattr(error, "message", None), str):
            error.message = plain(error.message)  # type: ignore[attr-defined]
        raise


class Commands(TyperGroup):
    """All commands, with usage errors that are safe to print."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _plain_usage_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _plain_usage_errors():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    name="trc2",
    help="Language models that keep learning.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
MAX_COUNT, MAX_SEED = 2**31 - 1, 2**32 - 1

out = PlainConsole(quiet=not is_first_process())
err = PlainConsole(stderr=True, quiet=not speaks_for_machine())


def complete_recipe(incomplete: str) -> list[str]:
    """Recipes of the package that begin with this text, for completion. The shell itself completes file names."""
    from trc2.config import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


Target = Annotated[
    str,
    typer.Argument(
        help="A recipe's name or file, a run folder, or a folder with a saved model.", autocompletion=complete_recipe
    ),
]
Trained = Annotated[str, typer.Argument(help="A run folder, a versions folder, or a folder with a saved model.")]
Saved = Annotated[str, typer.Argument(help="A folder with a saved model: an export, or a Hugging Face folder.")]
Recipe = Annotated[
    str,
    typer.Argument(
        help="A recipe's name or file. The recipe must have a stream of tasks.", autocompletion=complete_recipe
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings to change, e.g. model.d_model=256.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Processes = Annotated[
    int, typer.Option("--nproc", help="Processes on this machine that train together.", min=1, max=1024)
]
Restarts = Annotated[
    int, typer.Option(help="How often --nproc restarts the processes if one is lost.", min=0, max=1_000_000)
]
TopP = Annotated[float, typer.Option(help="Draw from the smallest set of tokens with this probability.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"trc2 {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def show(as_json: bool, data: object, *texts: Any) -> None:
    """Print `data` as JSON for programs, or the tables and sentences for people."""
    if as_json:
        print_json(data)
        return
    for text in texts:
        out.print(text, soft_wrap=isinstance(text, str))


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on standard error. The function that it yields changes the text."""
    with err.status(text) as status:
        yield lambda message: status.update(shown(message))


def launched(nproc: int, max_restarts: int, config: RunConfig) -> bool:
    """Run this command in `nproc` processes, unless this is one of them. Exit with their exit code if it is not 0."""
    if nproc == 1 or is_worker():
        return False
    from trc2.distributed.group import check_divides
    from trc2.distributed.launch import launch

    check_divides(config.train.micro_batches, nproc)  # before anything is started
    code = launch(sys.argv[1:], nproc, max_restarts)
    if code:
        raise typer.Exit(code)
    return True


def warn(message: str) -> None:
    """Print a warning on standard error. The command continues."""
    err.print(message, style="yellow", soft_wrap=True)


def print_json(value: object) -> None:
    """The only thing on standard output, for programs. NaN and infinity are strings, see `to_json`."""
    print(to_json(value, indent=2))


def show_summary(
    folder: Path, as_json: bool = False, extra: Mapping[str, object] | None = None, place: Path | None = None
) -> None:
    """Write a run's summary, then show it without its pictures, with its path. With `as_json`, print its numbers.

    `extra` goes into the JSON beside the numbers.
    """
    from rich.markdown import Markdown

    from trc2.report.summary import write_summary

    if not is_first_process():
        return
    written = write_summary(folder, place)
    if as_json:
        from trc2.report.summary import run_numbers

        print_json({**run_numbers(folder), **(extra or {})})
        return
    text = written[0].read_text(encoding="utf-8")
    out.print(Markdown("\n".join(line for line in text.splitlines() if not line.startswith("!["))))
    out.print("  ".join(str(path) for path in written), soft_wrap=True)
