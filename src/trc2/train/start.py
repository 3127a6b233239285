"""Setting a run up: data, folder, observers."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import torch
from rich.console import Console

from trc2.artifact import check_memory
from trc2.config import RunConfig, read_settings, settings_text
from trc2.console import shown
from trc2.errors import UserError, plain
from trc2.files import reading, write_atomically
from trc2.stream.prepare import WAITING, PreparedStream, prepare_stream
from trc2.stream.tokenizer import Tokenizer
from trc2.train.allocator import keep_freed_memory
from trc2.train.budget import budget_of
from trc2.train.chance import seed_everything
from trc2.train.checkpoint import list_checkpoints
from trc2.train.diary import Diary
from trc2.train.environment import describe_environment
from trc2.train.lock import lock_folder
from trc2.train.loop import Trainer
from trc2.train.observers import Screen, build_observers


def start_run(config: RunConfig, console: Console) -> Path:
    """Train a recipe from the beginning into a new folder; returns the folder. A refused run leaves nothing behind."""
    if config.stream is None:
        raise UserError("This recipe has no stream of tasks: add `stream:`, or train one that has, such as demo.")
    folder = config.output.folder
    is_new = not folder.exists()
    try:
        with lock_folder(folder):
            check_is_no_run(folder, "choose another output.folder")
            check_memory(config.model)
            set_up_process(config)
            prepared = prepare_with_progress(config, console)
            trainer = Trainer(config, prepared, folder, [])
            write_description(folder, config, prepared)
            watch(trainer, console)
            run(trainer)
    except UserError:
        if is_new and not (folder / "metrics.jsonl").exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def check_is_no_run(folder: Path, advice: str) -> None:
    """Refuse a folder in which a run has begun."""
    if (folder / "metrics.jsonl").exists() or list_checkpoints(folder / "checkpoints"):
        raise UserError(f"{folder} already holds a run: {advice}, or `trc2 resume {folder}`.")


class Interrupted(UserError):
    """The run was asked to stop: no mistake, so it exits as a signal would."""

    exit_code = 130


def run(trainer: Trainer) -> None:
    """Run to the end, or to the end of the step in which a SIGINT or SIGTERM arrives; observers are always closed."""

    def stop(signum: int, _frame: object) -> None:
        trainer.stop_requested = True

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        trainer.run()
        if trainer.stop_requested and trainer.progress.step < trainer.plan.total_steps:
            raise Interrupted(_where_it_stopped(trainer))
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        trainer.writer.join()  # it needs the diary
        for observer in trainer.observers:
            observer.close()


def _where_it_stopped(trainer: Trainer) -> str:
    step, saved = trainer.progress.step, trainer.saved_step
    if saved == step:
        done = f"Stopped at step {step} and saved"
    elif saved is None:
        done = f"Stopped at step {step}, before anything was saved"
    else:
        done = f"Stopped at step {step}, while steps failed; the last checkpoint is of step {saved}"
    return f"{done}: go on with `trc2 resume {trainer.folder}`."


def prepare_with_progress(config: RunConfig, console: Console, tokenizer: Tokenizer | None = None) -> PreparedStream:
    assert config.stream is not None
    with console.status("preparing data") as status:

        def show(task: str, split: str, documents: int, tokens: int) -> None:
            if split == WAITING:
                status.update(shown(f"{task}: waiting for another process that prepares it"))
            elif tokens:
                status.update(shown(f"preparing {task}/{split}: {documents:,} documents, {tokens:,} tokens"))
            else:
                status.update(shown(f"preparing {task}/{split}: {documents:,} documents"))

        prepared = prepare_stream(config.stream, show, tokenizer)
    for task in prepared.tasks.values():
        for message in task.messages:
            console.print(plain(message), style="yellow", markup=False, highlight=False)
    return prepared


def write_description(folder: Path, config: RunConfig, prepared: PreparedStream) -> None:
    """The parts of the run folder that never change: data, tokenizer, environment, and last the config.

    The config makes it a run folder: where it is, the others are.
    """
    write_atomically(folder / "budget.json", json.dumps(budget_of(config).describe(), indent=2).encode())
    write_atomically(folder / "environment.json", json.dumps(describe_environment(), indent=2).encode())
    write_atomically(folder / "data.json", json.dumps(prepared.describe(), indent=2).encode())
    write_atomically(folder / "tokenizer.json", prepared.tokenizer.to_json().encode())
    write_atomically(folder / "config.yaml", settings_text(config.model_dump(mode="json")).encode())


def read_run_config(folder: Path) -> RunConfig:
    """The resolved config of a run folder."""
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not a run folder: it has no config.yaml.")
    return RunConfig(**read_settings(folder / "config.yaml"))


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer a run or a saved model brings along."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"There is no {path}: put the model's tokenizer there.")
    with reading(path):
        return Tokenizer.from_json(path.read_text(encoding="utf-8"))


def set_up_process(config: RunConfig) -> None:
    """Seeds, threads, memory and determinism: what is global in a process."""
    seed_everything(config.train.seed)
    keep_freed_memory()
    if config.output.threads is not None:
        torch.set_num_threads(config.output.threads)
    if config.output.deterministic:
        torch.use_deterministic_algorithms(True)


def watch(trainer: Trainer, console: Console) -> None:
    """Give a run its diary, its screen, and whoever else the config names."""
    output = trainer.config.output
    trainer.bind(Diary(trainer.folder / "metrics.jsonl"))
    trainer.observers.append(Screen(trainer.plan, console, output.log_every, trainer.progress.step))
    trainer.observers += build_observers(output.report_to, trainer.folder, trainer.config.model_dump(mode="json"))
