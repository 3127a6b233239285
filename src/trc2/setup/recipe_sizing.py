"""`trc2 init`: a recipe for folders of text that fits this machine and the time asked for."""

from __future__ import annotations

import math
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from trc2.config import RunConfig, TaskConfig, parse_settings, settings_text
from trc2.config.pretrained import DESCRIBED, describe
from trc2.errors import UserError
from trc2.runs.equal_cost import budget_of
from trc2.runs.schedule import TaskSchedule
from trc2.setup.speed_probe import Speed, measure_speed
from trc2.stream.packed import PreparedStream
from trc2.stream.sources import FileSource
from trc2.system.machine import available_cores
from trc2.system.precision import choose_device, peak_matmul_flops
from trc2.training.data import StreamData
from trc2.training.forecast import tokens_to_score

MIN_STEPS = 150  # of a task, before a larger model is worth its time
MAX_PASSES = 10  # over a task's text. More steps would only memorise it
EVALUATIONS = 4  # per task
UTILISATION = 0.25  # of a large product's speed, to begin with. The probe corrects it
BYTES_PER_TOKEN = 3.0
OVERHEAD = 1.03  # metrics log, checkpoints
SHARE_OF_SCORING = 0.15  # of the time, at most
REPLAY_SHARE = 0.4444  # of a step's tokens: the best trade-off that we found (docs/which-recipe.md)
NEW_ROWS = 5 / 8  # of a step without such a share: with its replay a step costs as much as one of the paper's
PROBE_SECONDS = 4.0
COMPRESSION = 3


@dataclass(frozen=True)
class Size:
    """A model of the ladder, from the smallest to the paper's."""

    d_model: int
    num_columns: int
    num_heads: int
    num_experts: int
    learning_rate: float


SIZES = (
    Size(32, 2, 2, 2, 4e-3), Size(64, 2, 4, 2, 3e-3), Size(64, 4, 4, 4, 3e-3), Size(128, 4, 8, 4, 2e-3),
    Size(192, 6, 8, 4, 1.5e-3), Size(256, 6, 8, 8, 1e-3), Size(384, 8, 8, 8, 8e-4), Size(512, 10, 8, 8, 6e-4),
    Size(768, 8, 8, 8, 3e-4), Size(1024, 6, 8, 8, 3e-4),
)  # fmt: skip


@dataclass(frozen=True)
class Corpus:
    """A folder of text, or a file, and the bytes of its train text."""

    name: str
    path: Path
    size: int

    @property
    def tokens(self) -> float:
        return self.size / BYTES_PER_TOKEN


def look_at(folders: Sequence[str | Path]) -> list[Corpus]:
    """The size of each folder, given as FOLDER or NAME=FOLDER. Raises a UserError for one without text."""
    corpora: list[Corpus] = []
    for folder in folders:
        given, path = _name_and_path(str(folder))
        taken = [corpus.name for corpus in corpora]
        if given in taken:
            raise UserError(f"Two folders are called {given}: give every one its own name, as NAME=FOLDER.")
        name = given or _task_name(path, taken)
        if not path.exists():
            raise UserError(f"There is no folder or file {path}: name one with text in it.")
        source = FileSource(TaskConfig(name=name, folder=str(path.resolve())), path.resolve())
        source.identity()  # raises an error if there are no train files
        sizes = {file: file.stat().st_size for file in source.files["train"]}
        size = sum(count * (COMPRESSION if file.suffix in (".gz", ".zst") else 1) for file, count in sizes.items())
        if size < 100:
            raise UserError(f"{path} has {size} bytes of train text, too few to learn from: put more there.")
        corpora.append(Corpus(name, path.resolve(), size))
    return corpora


def _name_and_path(folder: str) -> tuple[str | None, Path]:
    """NAME=FOLDER in two. A path that exists as it is written may have a '=' of its own."""
    name, equals, path = folder.partition("=")
    return (None, Path(folder)) if not equals or Path(folder).exists() else (name, Path(path))


def _task_name(path: Path, taken: list[str]) -> str:
    """A name that metrics can have, from a folder's own."""
    stem = path.resolve().name.split(".")[0] if path.is_file() else path.resolve().name
    name = re.sub(r"[^a-z0-9_-]+", "-", stem.lower()).strip("-_")[:40] or "task"
    number = 2
    while name in taken:
        name, number = f"{name.rstrip('0123456789')}{number}", number + 1
    return name


@dataclass(frozen=True)
class Proposal:
    """A recipe and what it is expected to take, in seconds."""

    config: RunConfig
    speed: Speed
    start_up: float
    seconds: float = math.nan

    @property
    def steps(self) -> int:
        return TaskSchedule.of_run(self.config).total_steps

    def caution(self) -> str | None:
        """A sentence on a busy machine: the same command gives another recipe when it is not."""
        remark = self.speed.remark()
        if remark is None:
            return None
        alone = self.seconds * (1 - self.speed.waiting)  # the start was slowed as the steps were
        return (
            f"{remark} When other programs have ended, this recipe takes about {alone / 60:.1f} minutes, and "
            "`trc2 init` gives one with more steps or a larger model."
        )


Prepare = Callable[[RunConfig], PreparedStream]
Probe = Callable[[RunConfig, float], Speed]


def propose(
    corpora: list[Corpus],
    seconds: float,
    folder: Path,
    prepare: Prepare,
    probe: Probe = measure_speed,
    pretrained: str | None = None,
) -> Proposal:
    """Choose a model, measure it, prepare the data it needs, and lay steps and evaluations into the time.

    With `pretrained` that model of transformers goes on learning, and only the steps are chosen.
    """
    start_up = _start_up_seconds()
    budget = max(0.3 * seconds, seconds - start_up)
    candidates = [partial(_config, corpora, size, folder) for size in SIZES]
    if pretrained is not None:
        candidates = [partial(_pretrained_config, corpora, pretrained, folder)]
    proposal = _sized(candidates, MIN_STEPS * len(corpora), budget, probe, start_up)
    config = proposal.config
    stream_data = StreamData(config, TaskSchedule.of_run(config), prepare(config))  # raises what training would raise
    return _timed(proposal, corpora, stream_data, seconds)


def _sized(
    candidates: Sequence[Callable[[int], RunConfig]], wanted: int, budget: float, probe: Probe, start_up: float
) -> Proposal:
    """The largest model that gets enough steps. If times are only estimates, the first that measures well enough."""
    flops = UTILISATION * peak_matmul_flops(choose_device("auto"))
    guesses = [candidate(wanted) for candidate in candidates]
    fitting = [n for n, g in enumerate(guesses) if budget_of(g).training_flops_per_step / flops * wanted <= budget]
    number = max(fitting, default=0)
    while True:
        config = guesses[number]
        speed = probe(config, min(PROBE_SECONDS, max(0.5, 0.1 * budget)))
        steps = int(budget * (1 - SHARE_OF_SCORING) / speed.step)
        if number == 0 or steps >= 0.6 * wanted:
            return Proposal(candidates[number](max(1, steps)), speed, start_up)
        number -= 1


def _timed(proposal: Proposal, corpora: list[Corpus], stream_data: StreamData, seconds: float) -> Proposal:
    """Scale the steps until steps and evaluations take the time. A short text, read `MAX_PASSES` times, takes less."""
    per_step = stream_data.tasks[corpora[0].name].batch_size * stream_data.tasks[corpora[0].name].micro_batches
    most = {c.name: max(1, MAX_PASSES * stream_data.tasks[c.name].num_pool // per_step) for c in corpora}
    steps = {name: max(1, proposal.steps // len(corpora)) for name in most}
    for _ in range(6):
        steps = {name: max(1, min(most[name], count)) for name, count in steps.items()}
        proposal = _with_steps(proposal, steps)
        schedule = TaskSchedule.of_run(proposal.config)
        scored = float(tokens_to_score(proposal.config, schedule, stream_data)[0])
        length, rows = proposal.config.train.sequence_length, proposal.config.eval.batch_size
        scoring = scored * proposal.speed.scoring / (rows * length)
        work = OVERHEAD * (schedule.total_steps * proposal.speed.step + scoring)
        proposal = replace(proposal, seconds=proposal.start_up + work)
        factor = max(0.05, seconds - proposal.start_up) / work
        steps = {name: max(1, round(count * factor)) for name, count in steps.items()}
    return proposal


def _with_steps(proposal: Proposal, steps: dict[str, int]) -> Proposal:
    """The same recipe with other steps, and evaluations that take their share of the time and no more."""
    values: dict[str, Any] = proposal.config.model_dump(mode="json")
    for task in values["stream"]["tasks"]:
        task["steps"] = steps[task["name"]]
    total, tasks = sum(steps.values()), len(steps)
    every = max(1, max(steps.values()) // EVALUATIONS)
    evaluations = tasks * (tasks + 1) / 2 * EVALUATIONS + 3 * tasks
    share = SHARE_OF_SCORING * total * proposal.speed.step
    values["eval"] |= {
        "every_steps": every,
        "max_batches": min(8, max(1, int(share / evaluations / proposal.speed.scoring))),
    }
    values["control"]["every_steps"] = every
    values["train"]["warmup_steps"] = min(20, max(1, min(steps.values()) // 10))
    return replace(proposal, config=RunConfig(**values))


def _config(corpora: list[Corpus], size: Size, folder: Path, steps: int) -> RunConfig:
    """A run of one size over all corpora."""
    vocabulary = _vocabulary(sum(corpus.size for corpus in corpora), size)
    length, rows = _batch(corpora, 256 if torch.cuda.is_available() or size.d_model >= 256 else 128)
    new_rows = max(1, round(NEW_ROWS * rows))
    return RunConfig(
        model={
            "vocab_size": vocabulary, "d_model": size.d_model, "num_columns": size.num_columns,
            "num_heads": size.num_heads, "num_kv_heads": max(1, size.num_heads // 2), "num_experts": size.num_experts,
            "max_positions": length, "memory_slots": 1024 if size.d_model < 256 else 4096,
            "memory_key_dim": 32 if size.d_model < 256 else 128, **_stores(length),
            "replay_share": REPLAY_SHARE, "replay_long_fraction": 1.0,
        },
        stream={
            "tokenizer": {"vocab_size": vocabulary, "max_train_bytes": 5_000_000}, "control_batches": 2,
            "tasks": _tasks(corpora, steps, new_rows * length),
        },
        train={"sequence_length": length, "batch_size": new_rows, "learning_rate": size.learning_rate},
        control={"mode": "fixed"},
        eval={"batch_size": rows, "text_sequences": 0},
        output={"folder": folder},
    )  # fmt: skip


def _pretrained_config(corpora: list[Corpus], pretrained: str, folder: Path, steps: int) -> RunConfig:
    """A model of transformers, with its own tokenizer, that goes on learning on all corpora."""
    length, rows = _batch(corpora, min(256, describe(pretrained)["max_positions"]))
    return RunConfig(
        model={"name": "hf", "pretrained": pretrained, "replay_share": 0.1, **_stores(length)},
        stream={"control_batches": 2, "tasks": _tasks(corpora, steps, rows * length)},
        train={"sequence_length": length, "batch_size": rows, "learning_rate": 1e-4, "schedule": "wsd"},
        eval={"batch_size": rows, "text_sequences": 0},
        output={"folder": folder},
    )


def _batch(corpora: list[Corpus], length: int) -> tuple[int, int]:
    """Tokens of a row and rows of a step: smaller where there is little text."""
    smallest = min(corpus.tokens for corpus in corpora)
    rows = 32 if torch.cuda.is_available() else 16
    while length * rows * 3 > smallest * 0.9 and length * rows > 32:  # a step, its control subset, and some to spare
        length, rows = (length // 2, rows) if length > 64 or rows <= 2 else (length, rows // 2)
    return length, rows


def _stores(length: int) -> dict[str, int]:
    return {"replay_recent_chunks": 512, "replay_long_chunks": 4096, "replay_chunk_length": min(64, length)}


def _tasks(corpora: list[Corpus], steps: int, tokens_per_step: int) -> list[dict[str, Any]]:
    """One task per corpus. No more of a large one is read than so many steps need."""
    share = math.ceil(steps / len(corpora)) * tokens_per_step
    wanted = max(1_000_000, int(1.5 * share * BYTES_PER_TOKEN))
    return [
        {"name": c.name, "folder": str(c.path), "steps": max(1, steps // len(corpora)),
         **({"max_train_bytes": wanted} if c.size > wanted else {}), "max_eval_bytes": 1_000_000}
        for c in corpora
    ]  # fmt: skip


def _vocabulary(size: int, model: Size) -> int:
    """Larger for more text, but no embedding that outweighs the model."""
    by_text = 512 if size < 300_000 else 2048 if size < 5_000_000 else 4096 if size < 200_000_000 else 16_384
    return min(by_text, max(512, 32 * model.d_model))


def _start_up_seconds() -> float:
    """A run takes about as long to begin as this process did, and again as long for the pictures at its end."""
    return 2.0 * max(1.0, time.time() - psutil.Process().create_time())


# ------------------------------------------------------------------------------------------------------ as a recipe


def recipe_text(proposal: Proposal, corpora: list[Corpus], command: str) -> str:
    """The recipe with a comment on every choice. Reading it gives back the proposal."""
    config = proposal.config
    assert config.stream is not None
    values = config.model_dump(mode="json", exclude_defaults=True)
    values["model"].pop("replay_seed", None)  # follows train.seed
    if config.model.pretrained_from is not None:
        chosen = {name: value for name, value in values["model"].items() if name not in DESCRIBED}
        values["model"] = {"name": config.model.name, **chosen}
    for task in values["stream"]["tasks"]:
        task.pop("builtin", None)
    text = "\n".join(_lines(proposal, corpora, values, command)) + "\n"
    if RunConfig(**parse_settings(text, "the recipe")) != config:
        raise AssertionError("the recipe does not say what was proposed")
    return text


def _lines(proposal: Proposal, corpora: list[Corpus], values: dict[str, Any], command: str) -> Iterator[str]:
    config, speed = proposal.config, proposal.speed
    rate = speed.tokens_per_second(config)
    tasks = "one task" if len(corpora) == 1 else f"{len(corpora)} tasks, one after the other"
    yield f"# {', '.join(c.name for c in corpora)}: {tasks}."
    yield f"# Made by `{command}` for {available_cores()} cores and a {choose_device('auto').type};"
    yield f"# about {proposal.seconds / 60:.1f} minutes: {proposal.steps} steps of {speed.step:.3f} s,"
    yield f"# {rate:,.0f} tokens/s, and evaluations between them. `trc2 config THIS_FILE` explains every setting."
    caution = proposal.caution()
    if caution is not None:
        yield from textwrap.wrap(caution, 110, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
    comments = {
        "model": "the model you have, and a tenth of every step's tokens from earlier text"
        if config.model.pretrained_from is not None
        else "the largest size with enough steps in the time. replay_share of the tokens is earlier text",
        "stream": "tasks in the order they are learned. Of large folders only as much is read as the steps need",
        "train": "a step reads batch_size × micro_batches new rows of sequence_length tokens. Replay comes on top",
        "control": "how often forgetting is measured. mode: closed_loop lets it control replay"
        if config.control.mode == "fixed"
        else "how often replay is adjusted to what is being forgotten",
        "eval": "about a seventh of the time at most. text_sequences=16 adds BLEU and the like, which is slow",
        "output": "the run folder. `trc2 report` and `trc2 resume` take it",
    }
    for section, comment in comments.items():
        if section in values:
            yield f"# {comment}"
            yield settings_text({section: values[section]}).rstrip()
