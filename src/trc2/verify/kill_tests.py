"""Check on the user's own machine that a kill loses nothing: SIGKILL at random, then compare byte for byte."""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trc2.config import RunConfig, TaskConfig
from trc2.continuing.acceptance import ACCEPTANCE_FILE, REFUSED, Verdict, judge_child
from trc2.continuing.continue_run import continue_run
from trc2.continuing.trial_runs import save_trial_runs, try_shares
from trc2.generate.sampling import Sampling
from trc2.generate.self_replay import dream
from trc2.hf.export import export_run
from trc2.metrics.text import text_scores
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint
from trc2.runs.environment import git_revision
from trc2.runs.folder import RunFolder
from trc2.runs.lock import OWNER
from trc2.runs.records import Record
from trc2.runs.target import find_target
from trc2.stream.cache import STAMPS
from trc2.stream.prepare import prepare_stream
from trc2.system.failpoints import (
    CONTINUING,
    EXPORTING,
    GOING_BACK,
    JUDGING,
    PREPARING,
    PROMOTING,
    PRUNING,
    STOPPING,
    TRAINING,
)
from trc2.system.files import make_folder, write_atomically
from trc2.teaching.documents import read_documents
from trc2.teaching.teach import forget, stored_documents, teach
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_runner import Losses, Trial, kill_and_restart, kill_concurrently, run_in_child
from trc2.versions.registry import Versions, is_versions

# What depends on the clock. Everything else must be equal to the bit.
TIMED = ("train/tokens_per_second", "efficiency/")
WORDS = {
    "fruit": ("apple", "pear", "plum", "fig"),
    "tools": ("saw", "axe", "drill", "file"),
    "sky": ("sun", "moon", "star"),
}
NEWCOMER = "birds"
WORDS_OF_NEWCOMER = {NEWCOMER: ("owl", "hen", "tern")}
SHARES = {
    "train": 0.2, "continue": 0.25, "stop": 0.05, "check": 0.05, "trial_runs": 0.05, "export": 0.1, "teach": 0.05,
    "dream": 0.05, "prepare": 0.1, "promote": 0.1,
}  # fmt: skip
LIMIT = -1.0  # no rise is that small: the acceptance check refuses the child, and must do so after every kill
PROCESSES = 6  # that prepare one cold cache at once
QUIET = Console(quiet=True)


@dataclass(frozen=True)
class ResumeReport:
    """How often commands were killed and where, how often they ended, and what then differed from undisturbed ones."""

    kills: int
    seed: int
    revision: str | None  # the source's commit, with a plus sign if the source was changed
    killed_at: dict[str, int]
    ended: dict[str, int]
    tensors: int
    records: int
    differences: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        return {"schema": 2, "passed": self.passed, **asdict(self)}


def verify_resume(
    folder: Path, kills: int, seed: int = 0, watch: Callable[[str], None] = lambda _: None
) -> ResumeReport:
    """Run every command that writes once undisturbed and many times with kills. Compare all they leave behind."""
    begun, revision = time.monotonic(), git_revision()
    rng = random.Random(seed)
    write_small_data(folder / "data", WORDS)
    write_small_data(folder / "data", WORDS_OF_NEWCOMER)
    text_scores(["a word"], ["a word"])  # imports its libraries here, and not in every process that is forked
    losses = Losses(Counter(), Counter(), [])
    trials = _trials(folder)
    lengths = {}
    for name, trial in trials.items():
        watch(f"{name}: undisturbed")
        lengths[name] = run_in_child(trial.attempt, folder / name / "whole", exit_code=trial.exit_code)
    for name, count in shares(kills).items():
        parted = folder / name / "parted"
        kill_and_restart(trials[name], parted, folder / name / "whole", count, lengths[name], rng, losses, watch)
    watch(f"prepare: {PROCESSES} processes at once")
    together, whole = folder / "prepare" / "together", folder / "prepare" / "whole"
    for _ in range(max(1, kills // 50)):
        kill_concurrently(trials["prepare"], together, whole, PROCESSES, 2, lengths["prepare"], rng, losses)
    whole_run = RunFolder(folder / "train" / "whole")
    last = load_checkpoint(list_checkpoints(whole_run.checkpoints)[-1])
    return ResumeReport(
        kills=sum(losses.killed.values()),
        seed=seed,
        revision=revision,
        killed_at=dict(sorted(losses.killed.items())),
        ended=dict(losses.ended),
        tensors=len(last.tensors),
        records=len(_timeless(whole_run.records())),
        differences=tuple(losses.differences),
        seconds=time.monotonic() - begun,
    )


def shares(kills: int) -> dict[str, int]:
    """Kills by command. `kills` in all, and every command gets some if there are enough."""
    least = 1 if kills > len(SHARES) else 0
    counts = {name: max(least, int(kills * share)) for name, share in SHARES.items() if name != "train"}
    return {"train": kills - sum(counts.values()), **counts}


def _trials(folder: Path) -> dict[str, Trial]:
    """The commands, each begun or gone on with as a user would."""
    config, trained, exported = small_run(folder), folder / "train" / "whole", folder / "export" / "whole"

    def train(target: Path) -> None:
        if RunFolder(target).is_run:
            resume_run(target, [], QUIET)
        else:
            start_run(config.replace(output={**config.output.model_dump(), "folder": target}), QUIET)

    newcomer, child = TaskConfig(name=NEWCOMER, folder=NEWCOMER, steps=8), folder / "continue" / "whole"

    def go_on(target: Path) -> None:
        if target.exists():
            resume_run(target, [], QUIET)
        else:
            continue_run(trained, target, newcomer, QUIET, limit=LIMIT)
        _exit_as(judge_child(target, QUIET.print))

    def stop(target: Path) -> None:
        if target.exists():
            resume_run(target, [], QUIET)
        else:
            continue_run(trained, target, newcomer, QUIET, stop_at=0.0)

    def check(target: Path) -> None:
        if not target.exists():  # a child that has ended and was not judged
            copy = shutil.copytree(child, target.with_name("copy"), dirs_exist_ok=True)
            (copy / ACCEPTANCE_FILE).unlink(missing_ok=True)
            copy.rename(target)
        _exit_as(judge_child(target, QUIET.print, again=True))

    def trial_runs(target: Path) -> None:
        trials = try_shares(trained, newcomer, LIMIT, (0.1,), beside=target)
        make_folder(target)
        save_trial_runs(trials, target / "child")

    def dream_texts(target: Path) -> None:
        net, tokenizer = find_target(str(trained)).trained_model(QUIET.print)
        texts = [sample.text for sample in dream(net, tokenizer, Sampling(16), tokens=100)]
        make_folder(target)
        write_atomically(target / "dreams.jsonl", json.dumps(texts).encode())

    def export(target: Path) -> None:
        if not target.exists():
            export_run(trained, target, "0")

    def teach_and_forget(target: Path) -> None:
        if not target.exists():
            shutil.copytree(exported, target.with_name("copy"), dirs_exist_ok=True).rename(target)
        taught = folder / "data" / NEWCOMER / "train.jsonl"
        if stored_documents(str(target)) is None:
            teach(str(target), read_documents([taught], QUIET.print), QUIET.print)
        store = stored_documents(str(target))
        assert store is not None
        if store.documents[0].number == 1:
            forget(str(target), QUIET.print, documents=["1"])

    def prepare(target: Path) -> None:
        assert config.stream is not None
        prepare_stream(config.stream.replace(cache=target))

    def promote(target: Path) -> None:
        versions = Versions(target)
        if not is_versions(target):
            versions.promote(trained, first=True)
        if len(versions.all()) == 1:
            versions.promote(child, anyway=True)
        if versions.events()[-1].kind == "promote":
            versions.rollback()
        versions.prune(keep_checkpoints=1)

    return {
        "train": Trial("train", train, TRAINING, _different_runs),
        "continue": Trial("continue", go_on, CONTINUING + TRAINING + JUDGING, _different_children, REFUSED),
        "stop": Trial("stop", stop, CONTINUING + TRAINING + STOPPING, _different_runs),
        "check": Trial("check", check, JUDGING, _different_children, REFUSED),
        "trial_runs": Trial("trial_runs", trial_runs, CONTINUING + TRAINING, _different_files),
        "dream": Trial("dream", dream_texts, (), _different_files),
        "export": Trial("export", export, EXPORTING, _different_files),
        "teach": Trial("teach", teach_and_forget, (), _different_files),
        "prepare": Trial("prepare", prepare, PREPARING, _different_files),
        "promote": Trial("promote", promote, PROMOTING + GOING_BACK + PRUNING, _different_versions),
    }


def small_run(folder: Path) -> RunConfig:
    """A stream with everything switched on that trains in about a second."""
    return RunConfig(
        model={
            "vocab_size": 300, "d_model": 16, "num_columns": 3, "num_heads": 4, "num_kv_heads": 2, "max_positions": 16,
            "num_experts": 4, "d_ff": 16, "thalamic_rank": 4, "memory_slots": 32, "memory_key_dim": 8,
            "replay_recent_chunks": 8, "replay_long_chunks": 16, "replay_chunk_length": 8,
        },
        stream={
            "tasks": [{"name": name, "folder": name, "steps": 8} for name in WORDS],
            "data_root": folder / "data", "cache": folder / "cache", "tokenizer": {"vocab_size": 300},
            "control_batches": 1,
        },
        train={"sequence_length": 16, "batch_size": 2, "micro_batches": 2, "warmup_steps": 2},
        control={"every_steps": 5},
        eval={"every_steps": 4, "batch_size": 4, "max_batches": 1, "text_sequences": 1, "recall": "boundaries"},
        output={"checkpoint_every": 3, "threads": 1},
    )  # fmt: skip


def compare_runs(whole: Path, parted: Path) -> tuple[list[str], int, int]:
    """Names of everything that differs: tensors, state and records, time aside."""
    a, b = (load_checkpoint(list_checkpoints(RunFolder(path).checkpoints)[-1]) for path in (whole, parted))
    differences = [
        name
        for name in sorted(a.tensors.keys() | b.tensors.keys())
        if name not in a.tensors or name not in b.tensors or not torch.equal(a.tensors[name], b.tensors[name])
    ]
    for state in (a.state, b.state):
        for name in ("train_seconds", "total_seconds"):
            state["progress"].pop(name)
    differences += [f"state.{name}" for name in a.state if a.state[name] != b.state.get(name)]
    first, second = (_timeless(RunFolder(path).records()) for path in (whole, parted))
    differences += [f"record {n}: {x} ≠ {y}" for n, (x, y) in enumerate(zip(first, second, strict=False)) if x != y]
    if len(first) != len(second):
        differences.append(f"{len(first)} records against {len(second)}")
    return differences, len(a.tensors), len(first)


def _timeless(records: list[Record]) -> list[str]:
    """Records as text without what depends on the clock. Resume marks are not part of the story."""
    lines = []
    for record in records:
        if record.kind != "resume":
            metrics = {name: value for name, value in record.metrics.items() if not name.startswith(TIMED)}
            lines.append(json.dumps([record.kind, record.step, record.task, metrics]))
    return lines


def _different_runs(whole: Path, parted: Path) -> list[str]:
    """Also that nothing else was left behind: no hidden files beside the run."""
    left = [path.name for path in parted.parent.iterdir() if path.name.startswith(".")]
    return compare_runs(whole, parted)[0] + [f"{name} was left behind" for name in left]


def _different_children(whole: Path, parted: Path) -> list[str]:
    """The same of a continued run, and that its verdict is the same except for the name of its folder."""
    first, second = (json.loads((path / ACCEPTANCE_FILE).read_text(encoding="utf-8")) for path in (whole, parted))
    for verdict in (first, second):
        del verdict["child"]
    return _different_runs(whole, parted) + ([] if first == second else [f"verdict: {first} ≠ {second}"])


def _different_versions(whole: Path, parted: Path) -> list[str]:
    """Names of versions and events that differ, time aside, and files of versions that are not as they were added."""
    first, second = (
        [f"{event.number}: {event.kind} {event.version} {event.removed}" for event in Versions(path).events()]
        for path in (whole, parted)
    )
    for version in Versions(parted).all():
        version.check()
    names = sorted(path.name for path in whole.iterdir()), sorted(path.name for path in parted.iterdir())
    return sorted(set(first) ^ set(second)) + sorted(set(names[0]) ^ set(names[1]))


def _exit_as(verdict: Verdict | None) -> None:
    """End the process as the command does: with 3 where the acceptance check refused the child."""
    assert verdict is not None
    sys.exit(0 if verdict.passed else REFUSED)


def _different_files(whole: Path, parted: Path) -> list[str]:
    """Names of files that differ in a byte, apart from those that name a time or a process, and of what was left."""
    first, second = (
        {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and path.name not in (STAMPS, OWNER)
        }
        for root in (whole, parted)
    )
    left = [f"{path.name} was left behind" for path in parted.parent.iterdir() if path.name.startswith(".")]
    return [name for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)] + left


def write_small_data(root: Path, words: Mapping[str, tuple[str, ...]]) -> None:
    """Tasks of made-up sentences, a few kilobytes each."""
    rng = random.Random(0)
    for name, choices in words.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for split, count in (("train", 40), ("validation", 4), ("test", 4)):
            texts = [f"{split} {n}: " + " ".join(rng.choice(choices) for _ in range(50)) for n in range(count)]
            rows = [json.dumps({"text": text}) for text in texts]
            (root / name / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
