"""Setting a run up: data, folder, observers."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trc2.backbones.saved import check_memory
from trc2.config import RunConfig
from trc2.distributed.group import Ranks, check_divides
from trc2.distributed.join import joined
from trc2.errors import UserError, plain
from trc2.evaluation.tasks import check_trusted
from trc2.metrics.text import text_scores
from trc2.runs.folder import RunFolder, Warn
from trc2.runs.lock import lock_folder
from trc2.runs.records import MetricsLog
from trc2.stream.packed import PreparedStream
from trc2.stream.prepare import prepare_stream
from trc2.stream.sources import refuse_output_among_texts
from trc2.stream.tokenizer import Tokenizer
from trc2.system.machine import available_cores, busy_cores, crowding, keep_freed_memory
from trc2.system.precision import choose_device
from trc2.system.rng import rng_unchanged, seed_everything
from trc2.system.torchrun import left_over, world_of_process
from trc2.training.forecast import Forecast
from trc2.training.loop import Trainer
from trc2.training.observers import NotebookScreen, Screen, build_observers

MAX_USUAL_RATE = 1e-3  # of weights that are trained already


def start_run(config: RunConfig, console: Console) -> Path:
    """Train a recipe from the beginning into a new folder, and return the folder."""
    with join_ranks(config, console) as (ranks, console):
        begin_run(config, console, ranks)
    return config.output.folder


def begin_run(config: RunConfig, console: Console, ranks: Ranks) -> None:
    """Train a recipe from the beginning. A run that is rejected removes the folders it made."""
    if config.stream is None:
        raise UserError("This recipe has no stream of tasks: add `stream:`, or train one that has, such as demo.")
    folder, stream = RunFolder(config.output.folder), config.stream

    def check_is_free() -> None:
        folder.check_is_empty("choose another output.folder")
        refuse_output_among_texts(folder.path, stream)

    ranks.on_first(check_is_free)  # before the lock is touched, and again when it is held
    new_folders = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    has_lock = False
    try:
        with ExitStack() as held:
            ranks.on_first(lambda: held.enter_context(lock_folder(folder.path)))
            has_lock = ranks.is_first
            ranks.on_first(check_is_free)
            check_memory(config.model)
            set_up_process(config)
            warn_if_crowded(console)
            warn_if_fast(config, console)
            prepared = prepare_with_progress(config, console)
            trainer = Trainer(config, prepared, folder, [], ranks)
            ranks.on_first(lambda: describe_run(folder, config, prepared, console))
            add_observers(trainer, console)
            run_trainer(trainer)
    except BaseException:
        if has_lock and new_folders and not folder.has_metrics:
            shutil.rmtree(new_folders[0], ignore_errors=True)
            with suppress(OSError):  # a folder above it is not empty: another process uses it
                for path in new_folders[1:]:
                    path.rmdir()
        raise


def describe_run(
    folder: RunFolder, config: RunConfig, prepared: PreparedStream, console: Console, parent: RunFolder | None = None
) -> None:
    """Write the files of a run that never change. Computing the checksums of large weights takes a while."""
    # Rich's status needs ipywidgets in a notebook.
    with console.status("writing down what the run begins with") if console.is_terminal else nullcontext():
        folder.describe(config, prepared, parent)


@contextmanager
def join_ranks(config: RunConfig, console: Console) -> Iterator[tuple[Ranks, Console]]:
    """The ranks this process trains with, and its console, which is quiet on all ranks but the first."""
    check_divides(config.train.micro_batches, world_of_process())
    check_trusted(config.eval)
    if stray := left_over():
        warn_on(console)(f"{', '.join(stray)} in the environment describes no group of processes and is not used.")
    with joined(choose_device(config.output.device)) as ranks:
        yield ranks, console if ranks.is_first else Console(quiet=True)


class Interrupted(UserError):
    """A signal stopped the run. This is not a mistake of the user, so the exit code is that of a signal, not 2."""

    exit_code = 130


@contextmanager
def heeding_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when a SIGINT or SIGTERM arrives, instead of ending the process.

    Only the main thread receives signals. A run in another thread, such as one of a web server, runs to its end.
    """
    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    earlier = {number: signal.signal(number, lambda *_: stop()) for number in signals}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def run_trainer(trainer: Trainer) -> None:
    """Run to the end, or to the end of the step in which a SIGINT or SIGTERM arrives. Close the observers."""
    try:
        with heeding_signals(trainer.request_stop):
            trainer.run()
            if trainer.stopped and trainer.state.progress.step < trainer.schedule.total_steps:
                raise Interrupted(_stop_message(trainer))
    finally:
        trainer.writer.join()  # it needs the metrics log
        trainer.recorder.close()


def _stop_message(trainer: Trainer) -> str:
    first, step, saved = trainer.folder.first_step, trainer.state.progress.step, trainer.writer.saved_step
    if saved is None:
        done = ", before anything was saved"
    else:
        done = " and saved" if saved == step else f", while steps failed after the checkpoint of step {saved - first}"
    return f"Stopped at step {step - first}{done}: go on with `trc2 resume {trainer.folder}`."


def prepare_with_progress(
    config: RunConfig, console: Console, tokenizer: Tokenizer | None = None, known: Mapping[str, Any] | None = None,
    *, with_notes: bool = True,
) -> PreparedStream:  # fmt: skip
    """The run's data, prepared with a progress line. `known` are the tasks in the run's data.json.

    `with_notes` prints which files were used and which were not.
    """
    assert config.stream is not None
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("preparing data", total=None)
        prepared = prepare_stream(
            config.stream, lambda text: progress.update(task, description=plain(text)), tokenizer, known
        )
    for packed in prepared.tasks.values() if with_notes else ():
        for note in packed.notes:
            console.print(plain(note), markup=False, highlight=False, soft_wrap=True)
        for message in packed.messages:
            warn_on(console)(message)
    return prepared


def warn_on(console: Console) -> Warn:
    """A function that prints warnings in yellow."""
    return lambda message: console.print(plain(message), style="yellow", markup=False, highlight=False)


def set_up_process(config: RunConfig) -> None:
    """Seeds, threads, memory and determinism, which are global in a process."""
    seed_everything(config.train.seed)
    keep_freed_memory()
    if config.output.threads is not None:
        torch.set_num_threads(config.output.threads)
    if config.output.deterministic:
        torch.use_deterministic_algorithms(True)


def warn_if_crowded(console: Console) -> None:
    """Warn if other programs use the cores, which makes a run with several threads much slower."""
    if advice := crowding(torch.get_num_threads(), busy_cores(), available_cores()):
        warn_on(console)(advice)


def warn_if_fast(config: RunConfig, console: Console) -> None:
    """Warn if the learning rate is meant for new weights, such as that of `demo`, but the model is pretrained."""
    if config.model.pretrained_from is not None and config.train.learning_rate > MAX_USUAL_RATE:
        warn_on(console)(
            f"train.learning_rate={config.train.learning_rate:g} is high for {config.model.pretrained_from}, whose "
            "weights are trained already: train.learning_rate=1e-4 is usual and forgets less."
        )


def add_observers(trainer: Trainer, console: Console) -> None:
    """Add the metrics log, the screen and the configured trackers, on the first rank only."""
    if not trainer.ranks.is_first:
        return
    output, observers = trainer.config.output, trainer.recorder.observers
    trackers = build_observers(output.report_to, trainer.folder, trainer.config.model_dump(mode="json"))
    observers.append(keep_metrics_log(trainer))  # after the trackers, which may fail: a folder with a log is a run
    start = trainer.state.progress.step
    if trainer.config.eval.text_sequences:
        with rng_unchanged():
            text_scores([], [])  # imports its libraries, which takes seconds, before the first evaluation
    forecast = Forecast(trainer.config, trainer.schedule, trainer.stream_data)
    screen = NotebookScreen if console.is_jupyter and not console.quiet else Screen
    observers.append(screen(trainer.schedule, console, output.log_every, start, forecast, trainer.folder.first_step))
    observers += trackers


def keep_metrics_log(trainer: Trainer) -> MetricsLog:
    """Open the run's metrics log and tie its checkpoints to it."""
    metrics_log = MetricsLog(trainer.folder.metrics_file)
    trainer.writer.bind(trainer.folder.binding(metrics_log))
    return metrics_log
