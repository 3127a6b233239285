"""`python -m tests.fuzz`: run numbered cases, go on after failures, tell each finding once."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch must not be imported before its environment is set
    from tests.fuzz.border import Outcome
    from tests.fuzz.cases import Case, Cases
    from tests.fuzz.server import Server

# One thread, no network, no colours: a case must depend on its number only.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "NO_COLOR": "1", "COLUMNS": "80",
}  # fmt: skip


@dataclass
class Tally:
    """Cases, seconds and findings so far."""

    count: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    slowest: list[tuple[float, int, str]] = field(default_factory=list)
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, number: int, outcome: Outcome, again: str, cases: Cases) -> None:
        self.count[outcome.kind] += 1
        self.refused[outcome.kind] += outcome.code == 2
        self.seconds[outcome.kind] += outcome.cpu_seconds
        self.slowest = sorted([*self.slowest, (outcome.seconds, number, outcome.kind)], reverse=True)[:10]
        for problem in outcome.problems:
            key = f"{problem.rule}: {problem.place}"
            if key not in self.failures:
                case = cases[number]
                self.failures[key] = {
                    "count": 0,
                    "cases": [],
                    "reproduce": f"{again} --only {number}",
                    "command": shlex.join([*([] if case.is_call else ["trc2"]), *case.argv]),
                    "case": asdict(case),
                    "text": problem.text,
                }
            found = self.failures[key]
            found["count"] += 1
            found["cases"] = [*found["cases"], number][:10]

    def count_of(self, *rules: str) -> int:
        return sum(found["count"] for key, found in self.failures.items() if key.split(": ")[0] in rules)

    @classmethod
    def from_json(cls, report: dict[str, Any]) -> Tally:
        """A report that was written while cases ran."""
        tally = cls(failures=report["failures"])
        for name, kind in report["kinds"].items():
            tally.count[name], tally.refused[name] = kind["cases"], kind["refused"]
            tally.seconds[name] = kind["cpu_seconds"]
        tally.slowest = [(found["seconds"], found["case"], found["kind"]) for found in report["slowest"]]
        return tally

    def to_json(self, seed: int, total: float) -> dict[str, Any]:
        kinds = {
            name: {
                "cases": count,
                "refused": self.refused[name],
                "cpu_seconds": round(self.seconds[name], 2),
                "ms_per_case": round(1000 * self.seconds[name] / count, 2),
            }
            for name, count in self.count.most_common()
        }
        return {
            "schema": 1, "seed": seed, "revision": revision(), "cases": self.count.total(),
            "seconds": round(total, 1), "tracebacks": self.count_of("traceback", "crash"),
            "hangs": self.count_of("too long", "hang"), "kinds": kinds,
            "slowest": [{"seconds": round(s, 2), "case": n, "kind": kind} for s, n, kind in self.slowest],
            "failures": self.failures,
        }  # fmt: skip


def main() -> int:
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the scratch folder goes, too
    os.environ.update(ENVIRONMENT)  # before torch, tokenizers and the hub are imported
    warnings.simplefilter("ignore")
    with scratch_folder(options.keep) as root:
        began = time.monotonic()
        server, cases = make_server(root, options)
        print(f"world made in {time.monotonic() - began:.1f} s", file=sys.stderr)
        shard, shards = options.shard
        numbers = options.only or [n for n in range(options.first, options.cases) if n % shards == shard]
        again = f"python -m tests.fuzz --seed {options.seed}"
        again += f" --kinds {','.join(options.kinds)}" if options.kinds else ""
        tally, earlier = earlier_cases(options)
        numbers = numbers[tally.count.total() :]
        began, told = time.monotonic() - earlier, earlier
        for done, (number, outcome) in enumerate(zip(numbers, server.run(numbers), strict=True), start=1):
            tally.add(number, outcome, again, cases)
            passed = time.monotonic() - began
            if options.only:
                show(cases[number], outcome)
            elif passed - told > 10:
                told = passed
                left = (passed - earlier) / done * (len(numbers) - done)
                print(
                    f"{done}/{len(numbers)} cases, {len(tally.failures)} findings, {passed:.0f} s, {left:.0f} s left",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
                if options.out:
                    options.out.write_text(json.dumps(tally.to_json(options.seed, passed), indent=1))
    report = tally.to_json(options.seed, time.monotonic() - began)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1))
    conclude(report)
    return 1 if tally.failures else 0


def earlier_cases(options: argparse.Namespace) -> tuple[Tally, float]:
    """What a run that was stopped has found so far, and the seconds it took; nothing unless --go-on asks for it."""
    if not (options.go_on and options.out and options.out.exists()):
        return Tally(), 0.0
    report = json.loads(options.out.read_text())
    if (report["seed"], report["revision"]) != (options.seed, revision()):
        sys.exit(
            f"{options.out} is of seed {report['seed']} and revision {report['revision']}: remove it, or use that."
        )
    return Tally.from_json(report), float(report["seconds"])


@cache
def revision() -> str:
    """The commit that is tested, with a plus sign if files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    return (found.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="where to begin, after an interruption say")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), help="a JSON report")
    parser.add_argument(
        "--go-on", action="store_true", help="after an interruption: go on where the report of --out ends"
    )
    parser.add_argument("--shard", type=lambda text: tuple(map(int, text.split("/"))), default=(0, 1), metavar="I/N")
    parser.add_argument("--only", type=lambda text: [int(n) for n in text.split(",")], help="case numbers, shown whole")
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=(), help="draw from these alone")
    parser.add_argument("--keep", type=Path, help="an existing empty folder to work in instead of a temporary one")
    return parser.parse_args()


@contextmanager
def scratch_folder(keep: Path | None) -> Iterator[Path]:
    """In memory where there is such a place: every case writes and removes some dozens of files."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    root = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="trc2-fuzz-", dir=place))
    try:
        yield root
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)


def make_server(root: Path, options: argparse.Namespace) -> tuple[Server, Cases]:
    """Everything a case may need is imported here, once, before any child is forked."""
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import torch
    import zstandard  # noqa: F401

    from tests.fuzz.border import Border
    from tests.fuzz.cases import Cases
    from tests.fuzz.kinds import all_kinds
    from tests.fuzz.server import Server
    from tests.fuzz.world import World

    torch.set_num_threads(1)
    world = World(root / "world")
    log, nest = root / "log", root / "nest" / "nest"
    nest.mkdir(parents=True)
    border = Border(world, nest / "nest" / "case", log)
    kinds = [kind for kind in all_kinds(world) if not options.kinds or kind.name in options.kinds]
    cases = Cases(kinds, options.seed)
    return Server(cases, border, root / "nest", log), cases


def show(case: Case, outcome: Outcome) -> None:
    print(f"case {case.index}: {case.kind}\n  {shlex.join(['trc2', *case.argv])}\n  {case.argv!r}")
    print(f"  parts {', '.join(case.parts)}")
    for damage in case.damage:
        print(f"  {damage}")
    for name, text in case.texts:
        print(f"  {name}: {text[:2000]!r}")
    print(f"  exit code {outcome.code}, {outcome.seconds:.3f} s, {outcome.growth_mb:.0f} MB")
    print("  | " + outcome.output.strip()[-3000:].replace("\n", "\n  | "))
    for problem in outcome.problems:
        print(f"  FAILURE {problem.rule}: {problem.place}\n{problem.text}")


def conclude(report: dict[str, Any]) -> None:
    cpu = sum(kind["cpu_seconds"] for kind in report["kinds"].values())
    print(
        f"fuzz: {report['cases']} cases of seed {report['seed']} at {report['revision']}: {report['tracebacks']} "
        f"tracebacks, {report['hangs']} hangs, {len(report['failures'])} findings; {report['seconds']} s, "
        f"{report['cases'] / max(report['seconds'], 1e-9):.2f} cases a second, {report['cases'] / max(cpu, 1e-9):.2f} "
        "a second of one core"
    )
    for name, kind in sorted(report["kinds"].items(), key=lambda item: -item[1]["cpu_seconds"]):
        counts = f"{kind['cases']:6} cases {kind['refused']:6} refused"
        print(f"  {name:16} {counts} {kind['ms_per_case']:8.1f} ms {kind['cpu_seconds']:8.1f} s")
    for key, failure in report["failures"].items():
        print(f"\n{failure['count']} × {key}\n  {failure['reproduce']}\n  {failure['command'][:300]!r}")
        for damage in failure["case"]["damage"]:
            print(f"  {damage['path']}: {damage['how']}")
        print("  " + "\n  ".join(failure["text"].strip().splitlines()[-8:])[:1500])


if __name__ == "__main__":
    sys.exit(main())
