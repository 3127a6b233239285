"""52 weeks of one small model: taught every week, refused in six of them, with a bounded past.

`python -m studies.weeks` writes results/weeks/weeks.json, which docs/pictures.py draws. It takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import trc2
import trc2.hf.export  # here, because every week would import transformers once more
from trc2.config import TaskConfig
from trc2.continuing.acceptance import judge_child
from trc2.continuing.continue_run import continue_run
from trc2.continuing.request import ContinuationRequest
from trc2.report.run import read_run
from trc2.stream.builtin import documents
from trc2.system.console import PlainConsole
from trc2.versions.attempt import plan_attempt
from trc2.versions.registry import Versions

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "results" / "weeks" / "weeks.json"
HARMFUL = (3, 6, 9, 20, 33, 46)  # weeks with garbled text and a learning rate that is 30 times too large
LIMIT, STEPS, KEEP_MODELS = 0.1, 12, 4
DOCUMENTS = 200  # a week: a fifth is held out, so the 200 documents of the past are there before week 10
SIZES = [
    "model.d_model=32", "model.num_columns=2", "model.vocab_size=512", "stream.tokenizer.vocab_size=512",
    "train.batch_size=8", "train.sequence_length=64", "model.replay_chunk_length=32", "eval.max_batches=1",
    "model.replay_recent_chunks=64", "model.replay_long_chunks=512", "output.threads=1",
]  # fmt: skip


def week_text(week: int, count: int) -> list[str]:
    """News of a week: sentences over words of which a few are new every week."""
    rng = random.Random(week)
    if week in HARMFUL:
        return ["".join(chr(rng.randint(33, 126)) for _ in range(300)) for _ in range(count)]
    syllables = ["ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "wu"]
    names = ["".join(random.Random(number).choices(syllables, k=3)) for number in range(4 * week, 4 * week + 24)]
    verbs = ["meets", "sells", "visits", "follows", "leaves"]
    sentence = "{} {} {} in {}."
    return [
        " ".join(
            sentence.format(rng.choice(names), rng.choice(verbs), rng.choice(names), rng.choice(names))
            for _ in range(12)
        )
        for _ in range(count)
    ]


def write_week(folder: Path, week: int, count: int) -> Path:
    """The same folder every week, as an inbox would be."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps({"text": text}) + "\n" for text in week_text(week, count))
    (folder / "documents.jsonl").write_text(rows, encoding="utf-8")
    return folder


def opened_files() -> list[str]:
    """A list to which every file is added that this process opens from now on."""
    paths: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            paths.append(arguments[0])

    sys.addaudithook(note)
    return paths


def reference_seconds() -> float:
    """CPU time of a fixed piece of work, which shows how fast the machine is at this moment."""
    begun, matrix = time.process_time(), torch.ones(256, 256)
    for _ in range(300):
        torch.softmax(matrix @ matrix, dim=-1).sum().item()
    return time.process_time() - begun


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def run_weeks(home: Path, weeks: int) -> Iterator[dict[str, Any]]:
    """Teach a small model for some weeks; one row of numbers for each.

    Every week has a process of its own, as with cron. In one process for all weeks, the same work took 12 % more time
    in weeks 43 to 52 than in weeks 11 to 20, and only 2 % more in new processes.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(1, maxtasksperchild=1) as pool:
        pool.apply(first_version, (home,))
        for week in range(1, weeks + 1):
            yield pool.apply(teach_week, (home, week))


def first_version(home: Path) -> None:
    old = [document.text for document, _ in zip(documents("prose", "train"), range(150), strict=False)]
    cache = f"stream.cache={json.dumps(str(home / 'cache'))}"
    run = trc2.train(
        "demo_large_share", {"old": old, "news": week_text(0, 60)}, steps={"old": 150, "news": 30}, quiet=True,
        overrides=[*SIZES, cache, "stream.tasks.old.holdout=0.2", "stream.tasks.news.holdout=0.2"],
        folder=home / "first",
    )  # fmt: skip
    Versions(home / "versions").promote(run.folder, first=True)


def teach_week(home: Path, week: int) -> dict[str, Any]:
    """Do what the weekly command does, and count what it takes."""
    reference, opened = reference_seconds(), opened_files()
    begun = time.process_time()
    versions = Versions(home / "versions")
    inbox = write_week(home / "inbox", week, DOCUMENTS)
    task = TaskConfig(name="news", folder=str(inbox), steps=STEPS, holdout=0.2)
    rate = ("train.learning_rate=0.03",) if week in HARMFUL else ("train.learning_rate=1e-3",)
    attempt = plan_attempt(versions, ContinuationRequest((task,), None, rate, (), LIMIT))
    continue_run(
        attempt.parent, attempt.folder, task, PlainConsole(quiet=True), overrides=rate, keep=attempt.keep,
        limit=LIMIT,
    )  # fmt: skip
    verdict = judge_child(attempt.folder, print, attempt.parent)
    assert verdict is not None
    scores = read_run(attempt.folder).task_scores()
    if verdict.passed:
        versions.promote(attempt.folder)
    versions.prune(keep_models=KEEP_MODELS)
    seconds = time.process_time() - begun
    return {
        "week": week, "accepted": verdict.passed, "worst": verdict.worst, "tasks": len(scores),
        "perplexity": {task: kept for task, (_, _, kept) in scores.items()},
        "before": {task: before for task, (before, _, _) in scores.items()},
        "cpu_seconds": round(seconds, 2), "reference_seconds": round(reference, 3),
        "judged_tokens": sum(task.tokens for task in verdict.tasks),
        "opened_files": sum(path.startswith(str(home)) for path in opened),
        "bytes": size_of(versions.folder), "cache_bytes": size_of(home / "cache"),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weeks", type=int, default=52)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for row in run_weeks(Path(home), arguments.weeks):
            print(json.dumps(row), flush=True)
            rows.append(row)
    settings = {"limit": LIMIT, "steps": STEPS, "keep_models": KEEP_MODELS, "harmful": HARMFUL}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    RESULT.write_text(f'{{"settings": {json.dumps(settings)}, "weeks": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
