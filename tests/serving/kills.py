"""Kill a server and its jobs many times while clients write and read, then compare with an undisturbed server.

`python -m tests.serving.kills FOLDER --kills 100` takes about half an hour and one core. `--registry postgresql` starts
a PostgreSQL server for it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import openai
import psutil
from rich.console import Console

from tests.conftest import TINY_TASKS, tiny_run_config, write_task
from tests.serving.postgres import find_control, new_database, run_postgres
from trc2.generate.sampling import Sampling, stream_text
from trc2.runs.environment import git_revision
from trc2.runs.target import find_target
from trc2.training.setup import start_run
from trc2.versions.registry import Versions

PROMPT, TOKENS = "apple saw", 8
EARLY, MAX_EARLY = 0.9, 6  # share of kills that do not wait for progress, and how many in a row at most
PATIENCE = 120  # seconds to wait for progress
LOST = (openai.APIConnectionError, openai.APITimeoutError)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """`trc2 serve` in a process of its own, on the same port after every restart."""

    def __init__(self, versions: Path, data: Path, *options: str) -> None:
        self.port, self.log = free_port(), data.with_name(f"{data.name}.log")
        self.command = [
            sys.executable, "-m", "trc2", "serve", str(versions), "--port", str(self.port), "--data", str(data),
            "--per-minute", "1000000", *options,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        while True:
            try:
                urlopen(f"{self.url}/health", timeout=30).close()
                return
            except OSError:
                assert self.process.poll() is None, self.log.read_text()[-2000:]
                time.sleep(0.1)

    def job_process(self) -> psutil.Process | None:
        """The process of the running job."""
        assert self.process is not None
        try:
            children = psutil.Process(self.process.pid).children()
            return next((child for child in children if any("ftjob-" in word for word in child.cmdline())), None)
        except psutil.Error:
            return None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(120)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)


@dataclass
class Seen:
    """What clients were told."""

    acknowledged: dict[str, str] = field(default_factory=dict)  # file → sha256
    lost: int = 0  # uploads without an answer
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)  # version and text
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def week_text(week: int) -> bytes:
    return "\n".join(json.dumps({"text": f"red blue green {week} grey {row} " * 6}) for row in range(24)).encode()


def write(server: ServerProcess, seen: Seen, is_over: threading.Event) -> None:
    """Upload documents, one after the other."""
    number = 0
    with server.client() as client:
        while not is_over.wait(0.2):
            number += 1
            content = f"document {number}\n".encode() * 50
            try:
                stored = client.files.create(file=(f"{number}.txt", content), purpose="user_data")
                seen.acknowledged[stored.id] = hashlib.sha256(content).hexdigest()
            except LOST:
                seen.lost += 1
            except openai.APIStatusError as error:
                seen.statuses[error.status_code] += 1


def read(server: ServerProcess, seen: Seen, is_over: threading.Event) -> None:
    """Ask the latest version, and read a document that was acknowledged."""
    choose = random.Random(0)
    with server.client() as client:
        while not is_over.wait(0.2):
            try:
                answer = client.completions.create(model="latest", prompt=PROMPT, max_tokens=TOKENS, seed=1)
                seen.answers[str(answer.system_fingerprint), answer.choices[0].text] += 1
                if seen.acknowledged:
                    file, sha256 = choose.choice(list(seen.acknowledged.items()))
                    if hashlib.sha256(client.files.content(file).read()).hexdigest() != sha256:
                        seen.problems.append(f"{file} has other bytes")
            except LOST:
                pass
            except openai.APIStatusError as error:
                seen.statuses[error.status_code] += 1
                if error.status_code == 404:
                    seen.problems.append(f"an acknowledged file is not there: {error.message}")


def teach(server: ServerProcess, weeks: range | None, is_over: threading.Event, steps: int) -> list[Any]:
    """Teach one week after the other. Returns the jobs. Each is created exactly once, also if an answer is lost."""
    jobs: list[Any] = []
    with server.client() as client:

        def until_answered(call: Any) -> Any:
            while True:
                try:
                    return call()
                except (*LOST, openai.InternalServerError):
                    time.sleep(0.3)

        def of_week(week: int) -> Any:
            return next((job for job in client.fine_tuning.jobs.list() if job.metadata["week"] == str(week)), None)

        def create(week: int) -> Any:
            if (known := of_week(week)) is not None:
                return known
            file = client.files.create(file=(f"week{week}.jsonl", week_text(week)), purpose="fine-tune").id
            settings = {"steps": str(steps), "max_forgetting": "1000", "week": str(week)}
            return client.fine_tuning.jobs.create(
                model="latest", training_file=file, suffix="colours", seed=week, metadata=settings
            )

        week = 0
        while (week < len(weeks)) if weeks is not None else not is_over.is_set():
            job = until_answered(lambda: create(week))  # noqa: B023
            while job.status not in ("succeeded", "failed", "cancelled"):
                time.sleep(0.3)
                job = until_answered(lambda: client.fine_tuning.jobs.retrieve(job.id))  # noqa: B023
            jobs.append(job)
            week += 1
    return jobs


def make_first(folder: Path) -> Path:
    """A versions folder with a tiny model."""
    for name, words in TINY_TASKS.items():
        write_task(folder / "texts", name, words)
    config = tiny_run_config(folder / "texts", folder / "run", train={"micro_batches": 1})
    run = start_run(config, Console(quiet=True))
    Versions(folder / "first").promote(run, first=True)
    return folder / "first"


def weights(versions: Versions) -> list[list[str]]:
    """The hashes of the weights of all versions, oldest first."""
    return [
        [info["sha256"] for name, info in sorted(version.files.items()) if name.endswith(".safetensors")]
        for version in versions.all()
    ]


def expected_text(version: Any) -> str:
    net, tokenizer = find_target(str(version.model)).trained_model(lambda _: None)
    return "".join(stream_text(net, tokenizer, PROMPT, Sampling(max_tokens=TOKENS, seed=1)))


def wait_for_progress(versions: Versions) -> None:
    """Wait until the job has another checkpoint, or became a version."""

    def state() -> tuple[int, list[str]]:
        checkpoints = (versions.folder / "attempts").glob("*/checkpoints/*")
        return versions.table.stat().st_size, sorted(path.name for path in checkpoints)

    before, until = state(), time.time() + PATIENCE
    while state() == before and time.time() < until:
        time.sleep(0.1)


def prove(
    folder: Path, kills: int, *, seed: int = 0, steps: int = 12, options: tuple[str, ...] = (), pause: float = 5.0
) -> dict[str, Any]:
    """Do it, and return the figures. Anything that is not as it should be is an AssertionError."""
    folder.mkdir(parents=True)
    begun, choose = time.time(), random.Random(seed)
    first = make_first(folder)
    versions, data = Versions(shutil.copytree(first, folder / "versions")), folder / "data"
    server, seen, is_over = ServerProcess(versions.folder, data, *options), Seen(), threading.Event()
    server.start()
    jobs: list[Any] = []
    threads = [
        threading.Thread(target=write, args=(server, seen, is_over)),
        threading.Thread(target=read, args=(server, seen, is_over)),
        threading.Thread(target=lambda: jobs.extend(teach(server, None, is_over, steps))),
    ]
    for thread in threads:
        thread.start()
    killed: Counter[str] = Counter()
    num_early = 0
    try:
        while killed.total() < kills:
            if choose.random() < EARLY and num_early < MAX_EARLY:
                num_early += 1
            else:  # on a busy machine a process may need longer to start than it is left alone
                num_early = 0
                wait_for_progress(versions)
            time.sleep(choose.uniform(0, pause))
            job = server.job_process()
            if job is not None and choose.random() < 0.5:
                try:
                    job.kill()
                except psutil.Error:
                    continue
                killed["job"] += 1
            else:
                server.kill()
                killed["server, during a job" if job is not None else "server, between jobs"] += 1
                server.start()
            if killed.total() % 10 == 0:
                print(f"{time.time() - begun:.0f} s: {dict(killed)}", file=sys.stderr, flush=True)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    proof_seconds = time.time() - begun
    with server.client() as client:
        listed = [file.id for file in client.files.list(limit=1000)]
    server.stop()

    assert seen.problems == []
    assert len(listed) == len(set(listed))
    assert set(seen.acknowledged) <= set(listed)
    assert {path.name for path in (data / "files").iterdir()} == set(listed)
    for file, sha256 in seen.acknowledged.items():
        assert hashlib.sha256((data / "files" / file).read_bytes()).hexdigest() == sha256
    assert [job.status for job in jobs] == ["succeeded"] * len(jobs), [job.error for job in jobs]
    names = [version.check().name for version in versions.all()]
    assert [job.fine_tuned_model for job in jobs] == names[1:]
    assert all(version.verdict is not None and version.verdict["passed"] for version in versions.all()[1:])
    texts = {version.name: expected_text(version) for version in versions.all() if version.has_model}
    assert {name for name, _ in seen.answers} <= set(names)
    assert all(texts[name] == text for name, text in seen.answers)
    assert list((data / "jobs").glob("*/text")) == []

    quiet = Versions(shutil.copytree(first, folder / "quiet"))
    calm = ServerProcess(quiet.folder, folder / "quiet_data")
    calm.start()
    try:
        undisturbed = teach(calm, range(len(jobs)), threading.Event(), steps)
    finally:
        calm.stop()
    assert [job.status for job in undisturbed] == ["succeeded"] * len(jobs)
    assert weights(versions) == weights(quiet)
    return {
        "kills": dict(killed), "seconds": round(proof_seconds), "acknowledged_files": len(seen.acknowledged),
        "uploads_without_answer": seen.lost, "files_kept": len(listed), "answers": seen.answers.total(),
        "versions_that_answered": len({name for name, _ in seen.answers}), "jobs": len(jobs),
        "versions_equal_to_the_bit": len(names), "error_statuses": {str(k): v for k, v in seen.statuses.items()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the figures into this file")
    parser.add_argument("--pause", type=float, default=5.0, help="the longest random pause before a kill, in seconds")
    parser.add_argument("--registry", choices=["sqlite", "postgresql"], default="sqlite", help="the server's database")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ExitStack() as stack:
        options: tuple[str, ...] = ()
        if asked.registry == "postgresql":
            control = find_control()
            if control is None:
                parser.error("no PostgreSQL server on this machine: apt-get install postgresql")
            options = ("--registry", new_database(stack.enter_context(run_postgres(control))))
        proved = prove(asked.folder, asked.kills, seed=asked.seed, options=options, pause=asked.pause)
    figures = json.dumps({"commit": git_revision(), "registry": asked.registry, **proved}, indent=1)
    print(figures)
    if asked.out is not None:
        asked.out.write_text(figures + "\n")


if __name__ == "__main__":
    main()
