"""`python -m tests.fuzz`: run numbered cases, continue after failures, report each finding once."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

# One thread, no network, no colours: a case must depend on its number only. Set before torch and tokenizers read it.
os.environ |= {
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
    "NO_COLOR": "1", "COLUMNS": "80",
}  # fmt: skip

# Everything that a case may need is imported once, before any child is forked.
import datasets  # noqa: F401
import peft  # noqa: F401
import torch

from tests.fuzz.border import Border, Outcome
from tests.fuzz.cases import Case, Cases
from tests.fuzz.kinds import all_kinds
from tests.fuzz.server import Server
from tests.fuzz.world import World
from trc2.system import precision


def main() -> int:
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the scratch folder is removed, too
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    precision.PRODUCT_SIZE = 128  # measured at the end of every run, which here would be half of its time
    shard, shards = options.shard
    numbers = options.only or [n for n in range(options.first, options.cases) if n % shards == shard]
    again = f"python -m tests.fuzz --seed {options.seed}"
    again += f" --kinds {','.join(options.kinds)}" if options.kinds else ""
    report = begin_report(options)
    numbers = numbers[report["cases"] :]
    with scratch_folder(options.keep) as root:
        server, cases = make_server(root, options)
        began, shown = time.monotonic() - report["seconds"], time.monotonic()
        for number, outcome in zip(numbers, server.run(numbers), strict=True):
            add(report, cases, number, outcome, again)
            report["seconds"] = round(time.monotonic() - began, 1)
            if options.only:
                show(cases[number], outcome)
            elif time.monotonic() - shown > 10:
                shown = time.monotonic()
                write(report, options.out)
                progress = f"case {number} of {options.cases}, {len(report['failures'])} findings"
                print(f"{progress}, {report['seconds']:.0f} s", file=sys.stderr, flush=True)
    write(report, options.out)
    conclude(report)
    return 1 if report["failures"] else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), help="a JSON report")
    parser.add_argument("--go-on", action="store_true", help="continue where the report of --out ends")
    parser.add_argument("--shard", type=lambda text: tuple(map(int, text.split("/"))), default=(0, 1), metavar="I/N")
    parser.add_argument("--only", type=lambda text: [int(n) for n in text.split(",")], help="case numbers, shown whole")
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=(), help="draw from these alone")
    parser.add_argument("--keep", type=Path, help="an existing empty folder to work in instead of a temporary one")
    return parser.parse_args()


@contextmanager
def scratch_folder(keep: Path | None) -> Iterator[Path]:
    """In memory where possible: every case writes and removes some dozens of files."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    root = keep.absolute() if keep else Path(tempfile.mkdtemp(prefix="trc2-fuzz-", dir=parent))
    try:
        yield root
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)


def make_server(root: Path, options: argparse.Namespace) -> tuple[Server, Cases]:
    world = World(root / "world")
    log, nest = root / "log", root / "nest" / "nest"
    nest.mkdir(parents=True)
    kinds = [kind for kind in all_kinds(world) if not options.kinds or kind.name in options.kinds]
    cases, border = Cases(kinds, options.seed), Border(world, nest / "nest" / "case", log)
    return Server(cases, border.run, root / "nest", log), cases


# ------------------------------------------------------------------------------------------------------------- report


def begin_report(options: argparse.Namespace) -> dict[str, Any]:
    """An empty report, or with --go-on the one that an interrupted run left."""
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    revision = (head.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")
    if options.go_on and options.out and options.out.exists():
        report: dict[str, Any] = json.loads(options.out.read_text())
        if (report["seed"], report["revision"]) != (options.seed, revision):
            sys.exit(f"{options.out} is of seed {report['seed']} and revision {report['revision']}: remove it.")
        return report
    counts = {"cases": 0, "seconds": 0.0, "tracebacks": 0, "hangs": 0}
    return {
        "schema": 1,
        "seed": options.seed,
        "revision": revision,
        **counts,
        "kinds": {},
        "slowest": [],
        "failures": {},
    }


def add(report: dict[str, Any], cases: Cases, number: int, outcome: Outcome, again: str) -> None:
    """Count one case, and keep what shows each finding again."""
    report["cases"] += 1
    kind = report["kinds"].setdefault(outcome.kind, {"cases": 0, "refused": 0, "codes": {}, "cpu_seconds": 0.0})
    kind["cases"] += 1
    kind["codes"][str(outcome.code)] = kind["codes"].get(str(outcome.code), 0) + 1
    kind["refused"] += outcome.code == 2
    kind["cpu_seconds"] += outcome.cpu_seconds
    kind["ms_per_case"] = 1000 * kind["cpu_seconds"] / kind["cases"]
    slow = {"seconds": round(outcome.seconds, 2), "case": number, "kind": outcome.kind}
    report["slowest"] = sorted([*report["slowest"], slow], key=lambda entry: -entry["seconds"])[:10]
    for problem in outcome.problems:
        report["tracebacks"] += problem.rule in ("traceback", "crash")
        report["hangs"] += problem.rule in ("too long", "hang")
        case, key = cases[number], f"{problem.rule}: {problem.place}"
        first = {
            "count": 0, "cases": [], "reproduce": f"{again} --only {number}", "command": typed_line(case),
            "case": asdict(case), "text": problem.text,
        }  # fmt: skip
        finding = report["failures"].setdefault(key, first)
        finding["count"] += 1
        finding["cases"] = [*finding["cases"], number][:10]


def write(report: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=1))


def typed_line(case: Case) -> str:
    return shlex.join([*([] if case.is_call else ["trc2"]), *case.argv])


def show(case: Case, outcome: Outcome) -> None:
    print(f"case {case.index}: {case.kind}\n  {typed_line(case)}\n  {case.argv!r}\n  parts {', '.join(case.parts)}")
    for line in (*case.damage, *(f"{name}: {text[:2000]!r}" for name, text in case.texts)):
        print(f"  {line}")
    print(f"  exit code {outcome.code}, {outcome.seconds:.3f} s, {outcome.growth_mb:.0f} MB")
    print("  | " + outcome.output.strip()[-3000:].replace("\n", "\n  | "))
    for problem in outcome.problems:
        print(f"  FAILURE {problem.rule}: {problem.place}\n{problem.text}")


def conclude(report: dict[str, Any]) -> None:
    print(
        f"fuzz: {report['cases']} cases of seed {report['seed']} at {report['revision']}: {report['tracebacks']} "
        f"tracebacks, {report['hangs']} hangs, {len(report['failures'])} findings; {report['seconds']} s"
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
