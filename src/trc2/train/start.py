"""Setting a run up: data, folder, observers."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from trc2.config import RunConfig
from trc2.errors import UserError, plain
from trc2.stream.prepare import PreparedStream, prepare_stream
from trc2.stream.tokenizer import Tokenizer
from trc2.train.allocator import keep_freed_memory
from trc2.train.budget import budget_of
from trc2.train.chance import seed_everything
from trc2.train.environment import describe_environment
from trc2.train.lock import lock_folder
from trc2.train.loop import Trainer
from trc2.train.observers import Diary, Observer, Screen, build_observers
from trc2.train.plan import Plan


def start_run(config: RunConfig, console: Console) -> Path:
    """Train a recipe from the beginning into a new folder; returns the folder."""
    if config.stream is None:
        raise UserError("This recipe has no stream of tasks: add `stream:`, or train one that has, such as demo.")
    folder = config.output.folder
    if (folder / "metrics.jsonl").exists():
        raise UserError(f"{folder} already holds a run: choose another output.folder, or `trc2 resume {folder}`.")
    with lock_folder(folder):
        set_up_process(config)
        prepared = prepare_with_progress(config, console)
        write_description(folder, config, prepared)
        run(Trainer(config, prepared, folder, build_observers_for(config, folder, console)))
    return folder


class Interrupted(UserError):
    """The run was asked to stop and has saved where it stands: no mistake, so it exits as a signal would."""

    exit_code = 130


def run(trainer: Trainer) -> None:
    """Run to the end, or to the end of the step in which a SIGINT or SIGTERM arrives; observers are always closed."""

    def stop(signum: int, _frame: object) -> None:
        trainer.stop_requested = True

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        trainer.run()
        if trainer.stop_requested and trainer.progress.step < trainer.plan.total_steps:
            raise Interrupted(
                f"Stopped at step {trainer.progress.step} and saved: go on with `trc2 resume {trainer.folder}`."
            )
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        for observer in trainer.observers:
            observer.close()


def prepare_with_progress(config: RunConfig, console: Console, tokenizer: Tokenizer | None = None) -> PreparedStream:
    assert config.stream is not None
    with console.status("preparing data") as status:

        def watch(task: str, split: str, documents: int, tokens: int) -> None:
            status.update(f"preparing {task}/{split}: {documents:,} documents, {tokens:,} tokens")

        prepared = prepare_stream(config.stream, watch, tokenizer)
    for task in prepared.tasks.values():
        for message in task.messages:
            console.print(plain(message), style="yellow", markup=False, highlight=False)
    return prepared


def write_description(folder: Path, config: RunConfig, prepared: PreparedStream) -> None:
    """The parts of the run folder that never change: config, environment, data, tokenizer."""
    settings = config.model_dump(mode="json")
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    (folder / "budget.json").write_text(json.dumps(budget_of(config).describe(), indent=2))
    (folder / "environment.json").write_text(json.dumps(describe_environment(), indent=2))
    (folder / "data.json").write_text(json.dumps(prepared.describe(), indent=2))
    (folder / "tokenizer.json").write_text(prepared.tokenizer.to_json(), encoding="utf-8")


def read_run_config(folder: Path) -> RunConfig:
    """The resolved config of a run folder."""
    try:
        values: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"{folder} is not a run folder: it has no config.yaml.") from None
    except yaml.YAMLError:
        raise UserError(f"{folder / 'config.yaml'} is not valid YAML: restore it from a copy.") from None
    return RunConfig(**values)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer a run or a saved model brings along."""
    try:
        return Tokenizer.from_json((folder / "tokenizer.json").read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"There is no {folder / 'tokenizer.json'}: put the model's tokenizer there.") from None


def set_up_process(config: RunConfig) -> None:
    """Seeds, threads, memory and determinism: what is global in a process."""
    seed_everything(config.train.seed)
    keep_freed_memory()
    if config.output.threads is not None:
        torch.set_num_threads(config.output.threads)
    if config.output.deterministic:
        torch.use_deterministic_algorithms(True)


def build_observers_for(config: RunConfig, folder: Path, console: Console, start: int = 0) -> list[Observer]:
    """The diary, the screen, and whoever else the config names."""
    assert config.stream is not None
    screen = Screen(Plan.of_run(config), console, config.output.log_every, start)
    settings = config.model_dump(mode="json")
    return [Diary(folder / "metrics.jsonl"), screen, *build_observers(config.output.report_to, folder, settings)]
