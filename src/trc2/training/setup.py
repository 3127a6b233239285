"""Setting a run up: data, folder, observers."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trc2.backbones.saved import check_memory
from trc2.config import RunConfig
from trc2.config.pretrained import HFConfig
from trc2.distributed.group import Ranks, check_divides
from trc2.distributed.join import joined
from trc2.errors import UserError, plain
from trc2.evaluation.tasks import check_trusted
from trc2.metrics.text import text_scores
from trc2.runs.folder import RunFolder, Warn
from trc2.runs.lock import lock_folder
from trc2.runs.records import MetricsLog
from trc2.stream.packed import PreparedStream
from trc2.stream.prepare import LEARNING, TOKENIZER, WAITING, prepare_stream
from trc2.stream.tokenizer import Tokenizer
from trc2.system.allocator import keep_freed_memory
from trc2.system.machine import available_cores, busy_cores, crowding
from trc2.system.precision import choose_device
from trc2.system.rng import rng_unchanged, seed_everything
from trc2.system.torchrun import left_over, world_of_process
from trc2.training.forecast import Agenda, Forecast
from trc2.training.loop import Trainer
from trc2.training.observers import NotebookScreen, Screen, build_observers

MAX_USUAL_RATE = 1e-3  # of weights that are trained already


def start_run(config: RunConfig, console: Console) -> Path:
    """Train a recipe from the beginning into a new folder; returns the folder. A refused run leaves nothing behind."""
    if config.stream is None:
        raise UserError("This recipe has no stream of tasks: add `stream:`, or train one that has, such as demo.")
    with taking_part(config, console) as (ranks, console):
        _begin(RunFolder(config.output.folder), config, console, ranks)
    return config.output.folder


def _begin(folder: RunFolder, config: RunConfig, console: Console, ranks: Ranks) -> None:
    def check_is_free() -> None:
        folder.check_is_empty("choose another output.folder")

    ranks.on_first(check_is_free)  # before its lock is touched; and again when it is held
    new = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    is_ours = False
    try:
        with ExitStack() as held:
            ranks.on_first(lambda: held.enter_context(lock_folder(folder.path)))
            is_ours = ranks.is_first
            ranks.on_first(check_is_free)
            check_memory(config.model)
            set_up_process(config)
            warn_if_crowded(console)
            warn_if_fast(config, console)
            prepared = prepare_with_progress(config, console)
            trainer = Trainer(config, prepared, folder, [], ranks)
            ranks.on_first(lambda: describe_run(folder, config, prepared, console))
            watch(trainer, console)
            run(trainer)
    except BaseException:
        if is_ours and new and not folder.has_metrics:  # who did not get the lock removes nothing of whoever did
            _remove(new)
        raise


def describe_run(
    folder: RunFolder, config: RunConfig, prepared: PreparedStream, console: Console, parent: RunFolder | None = None
) -> None:
    """Write the files of a run that never change; computing the checksums of large weights takes a while."""
    # Rich's status needs ipywidgets in a notebook.
    with console.status("writing down what the run begins with") if console.is_terminal else nullcontext():
        folder.describe(config, prepared, parent)


@contextmanager
def taking_part(config: RunConfig, console: Console) -> Iterator[tuple[Ranks, Console]]:
    """The ranks this process trains with, and where it may speak: of several only the first one does."""
    check_divides(config.train.micro_batches, world_of_process())
    check_trusted(config.eval)
    if stray := left_over():
        warn_on(console)(f"{', '.join(stray)} in the environment describes no group of processes and is not used.")
    with joined(choose_device(config.output.device)) as ranks:
        yield ranks, console if ranks.is_first else Console(quiet=True)


def _remove(new: list[Path]) -> None:
    """A folder and those above it that were made for it, unless others have come to use them."""
    shutil.rmtree(new[0], ignore_errors=True)
    for folder in new[1:]:
        with suppress(OSError):
            folder.rmdir()


class Interrupted(UserError):
    """The run was stopped by a signal: no mistake, so the command exits with a signal's code, not with 2."""

    exit_code = 130


def run(trainer: Trainer) -> None:
    """Run to the end, or to the end of the step in which a SIGINT or SIGTERM arrives; observers are always closed."""

    def stop(signum: int, _frame: object) -> None:
        trainer.stop_requested = True

    # Only the main thread hears signals; a run in another one, of a web server say, goes on to its end.
    heard = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    earlier = {number: signal.signal(number, stop) for number in heard}
    try:
        trainer.run()
        if trainer.stopped and trainer.state.progress.step < trainer.schedule.total_steps:
            raise Interrupted(_where_it_stopped(trainer))
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        trainer.writer.join()  # it needs the metrics log
        trainer.recorder.close()


def _where_it_stopped(trainer: Trainer) -> str:
    first, saved = trainer.folder.first_step, trainer.writer.saved_step
    step = trainer.state.progress.step - first
    if saved is not None:
        saved -= first
    if saved == step:
        done = f"Stopped at step {step} and saved"
    elif saved is None:
        done = f"Stopped at step {step}, before anything was saved"
    else:
        done = f"Stopped at step {step}, while steps failed; the last checkpoint is of step {saved}"
    return f"{done}: go on with `trc2 resume {trainer.folder}`."


def prepare_with_progress(
    config: RunConfig, console: Console, tokenizer: Tokenizer | None = None, known: Mapping[str, Any] | None = None,
    *, with_notes: bool = True,
) -> PreparedStream:  # fmt: skip
    """The run's data, with a word on what is being done; `known` is what the run's data.json says of its tasks.

    `with_notes` says which files were taken and which were not, unless that was said just before.
    """
    assert config.stream is not None
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("preparing data", total=None)

        def show(name: str, split: str, documents: int, tokens: int) -> None:
            progress.update(task, description=plain(_being_done(name, split, documents, tokens)))

        prepared = prepare_stream(config.stream, show, tokenizer, known)
    for packed in prepared.tasks.values() if with_notes else ():
        for note in packed.notes:
            console.print(plain(note), markup=False, highlight=False, soft_wrap=True)
        for message in packed.messages:
            warn_on(console)(message)
    return prepared


def _being_done(name: str, split: str, documents: int, tokens: int) -> str:
    if split == WAITING:
        return f"{name}: waiting for another process that prepares it"
    if split == TOKENIZER:
        return f"reading text for the tokenizer: {name}, {documents:,} documents, {tokens / 1e6:.1f} MB"
    if split == LEARNING:
        return f"training a tokenizer of {documents:,} entries on {tokens / 1e6:.1f} MB of text"
    return f"packing {name}/{split}: {documents:,} documents, {tokens:,} tokens"


def warn_on(console: Console) -> Warn:
    """Warnings in yellow, whatever is in them."""
    return lambda message: console.print(plain(message), style="yellow", markup=False, highlight=False)


def set_up_process(config: RunConfig) -> None:
    """Seeds, threads, memory and determinism: what is global in a process."""
    seed_everything(config.train.seed)
    keep_freed_memory()
    if config.output.threads is not None:
        torch.set_num_threads(config.output.threads)
    if config.output.deterministic:
        torch.use_deterministic_algorithms(True)


def warn_if_crowded(console: Console) -> None:
    """Say so before a run becomes several times slower than it need be."""
    advice = crowding(torch.get_num_threads(), busy_cores(), available_cores())
    if advice is not None:
        warn_on(console)(advice)


def warn_if_fast(config: RunConfig, console: Console) -> None:
    """Say so where a trained model would be overwritten at a rate meant for new weights, such as that of `demo`."""
    if isinstance(config.model, HFConfig) and config.train.learning_rate > MAX_USUAL_RATE:
        warn_on(console)(
            f"train.learning_rate={config.train.learning_rate:g} is high for {config.model.pretrained}, whose weights "
            "are trained already: train.learning_rate=1e-4 is usual and forgets less."
        )


def watch(trainer: Trainer, console: Console) -> None:
    """Give a run its diary, its screen, and whoever else the config names; of several ranks the first is watched."""
    if not trainer.ranks.is_first:
        return
    output, observers = trainer.config.output, trainer.recorder.observers
    trackers = build_observers(output.report_to, trainer.folder, trainer.config.model_dump(mode="json"))
    observers.append(keep_metrics_log(trainer))  # after what may be refused: a folder with a diary holds a run
    start = trainer.state.progress.step
    if trainer.config.eval.text_sequences:
        with rng_unchanged():
            text_scores([], [])  # imports its libraries, which takes seconds, before the first evaluation is timed
    forecast = Forecast(Agenda(trainer.config, trainer.schedule, trainer.stream_data), start, time.monotonic())
    screen = NotebookScreen if console.is_jupyter and not console.quiet else Screen
    observers.append(screen(trainer.schedule, console, output.log_every, start, forecast, trainer.folder.first_step))
    observers += trackers


def keep_metrics_log(trainer: Trainer) -> MetricsLog:
    """Open the run's metrics log and tie its checkpoints to it."""
    metrics_log = MetricsLog(trainer.folder.metrics_file)
    trainer.writer.bind(trainer.folder.binding(metrics_log))
    return metrics_log
