"""`trc2.train` and `trc2.load_run`: from a recipe, or from a folder, to a run one can look at."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from pathlib import Path

from trc2.api.arguments import Steps, Tasks, as_overrides, listed, run_config
from trc2.api.run import Run
from trc2.config import RunConfig
from trc2.errors import UserError
from trc2.report.summary import write_summary
from trc2.runs.folder import RunFolder
from trc2.system.console import PlainConsole
from trc2.system.torchrun import is_first_process
from trc2.training.resume import train_or_resume


def train(
    recipe: str | Path | RunConfig = "demo",
    tasks: Tasks | None = None,
    *,
    steps: Steps = None,
    folder: str | Path | None = None,
    overrides: Iterable[str] = (),
    quiet: bool = False,
    **settings: object,
) -> Run:
    """Train a model through a stream of tasks, one after the other, and return the finished run.

    recipe     a recipe's name or file, or a RunConfig: what `trc2 train` takes
    tasks      {"news": documents, …} instead of the recipe's tasks, in this order. Documents are a list of strings, or
               of rows with text, messages, or prompt and completion, or {"train": …, "validation": …, "test": …}. A
               folder or file, or a TaskConfig, will do as well
    steps      optimizer steps of every task, or {"news": 200, …}. 100 unless the recipe says otherwise
    folder     the run folder. By default the recipe's, with a number where that holds a run already
    overrides  ["train.seed=3", "model.d_model=256", …], as on the command line
    settings   the same by section: train={"seed": 3}, model="transformer". Overrides win
    quiet      no progress

    Ctrl-C, or the notebook's stop button, ends the step, saves, and raises: `trc2.load_run(folder).resume()` goes on.
    """
    chosen = [*as_overrides(settings), *listed(overrides)]
    config = run_config(recipe, tasks, steps, chosen)
    path = _free_folder(config.output.folder) if folder is None else Path(folder)
    config = config.replace(output={**config.output.model_dump(), "folder": path})
    path = train_or_resume(config, PlainConsole(quiet=quiet))
    if is_first_process():
        write_summary(path)
    return Run(path)


def _free_folder(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, … in which no run has begun: cells are run again and again."""
    names = (folder if number == 1 else folder.with_name(f"{folder.name}-{number}") for number in count(1))
    return next(path for path in names if not RunFolder(path).is_taken)


def load_run(folder: str | Path) -> Run:
    """A run that was trained before, here or by `trc2 train`, finished or not."""
    path = Path(folder)
    if not RunFolder(path).is_run:
        raise UserError(f"{path} is not a run folder: name one that holds a config.yaml.")
    return Run(path)
