"""The cost of one memory and one store for all ranks: the share of a training step spent on communication.

    python benchmarks/gathers.py --recipe lab_trc2 --out benchmarks/gathers.json

Two processes on one machine train the recipe's model, one micro-batch each. Before every message all ranks wait for
each other, so that only the talking is timed and not the waiting for a slower rank. Gradients are not counted: any
data-parallel training sends those.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from trc2.config import RunConfig, load_recipe
from trc2.distributed.group import Ranks
from trc2.distributed.join import ProcessRanks, joined
from trc2.runs.folder import RunFolder
from trc2.stream.prepare import prepare_stream
from trc2.system.torchrun import is_worker
from trc2.training.loop import Trainer
from trc2.training.setup import set_up_process

TIMED = ("gather", "total", "any")


class TimedRanks(ProcessRanks):
    """Counts the seconds of every message."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: Counter[str] = Counter()
        self.is_inside = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in TIMED or self.is_inside:
            return found

        def timed(*args: Any) -> Any:
            self.is_inside = True
            self.wait()
            begun = time.perf_counter()
            try:
                return found(*args)
            finally:
                self.seconds[name] += time.perf_counter() - begun
                self.is_inside = False

        return timed


def config_of(recipe: str, folder: Path) -> RunConfig:
    tasks = "stream.tasks=[{name: prose, builtin: prose, steps: 1000}]"
    return load_recipe(recipe, [tasks, "train.micro_batches=2", f"output.folder={folder}", "output.threads=1"])


def train(ranks: Ranks, recipe: str, steps: int, folder: Path) -> dict[str, Any]:
    config = config_of(recipe, folder)
    set_up_process(config)
    assert config.stream is not None
    trainer = Trainer(config, prepare_stream(config.stream), RunFolder(folder), [], ranks)
    assert isinstance(ranks, TimedRanks)
    rows = []
    for step in range(steps + 5):
        ranks.wait()
        ranks.seconds.clear()
        begun = time.perf_counter()
        trainer.train_step()
        ranks.any(False)  # the loop asks once a step whether to stop
        if step >= 5:
            rows.append((time.perf_counter() - begun, sum(ranks.seconds.values())))
    seconds, talking = zip(*rows, strict=True)
    return {
        "steps": steps,
        "events": trainer.state.model.num_events,
        "median_step_seconds": round(statistics.median(seconds), 4),
        "median_talking_seconds": round(statistics.median(talking), 5),
        "share": round(statistics.median(talk / step for step, talk in rows), 5),
        "worst_share": round(max(talk / step for step, talk in rows), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="lab_trc2")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/gathers.json"))
    arguments = parser.parse_args()
    if not is_worker():
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
        raise SystemExit(subprocess.run([*torchrun, __file__, *sys.argv[1:]], check=False).returncode)
    with joined(torch.device("cpu")), tempfile.TemporaryDirectory() as folder:
        ranks = TimedRanks()
        found = train(ranks, arguments.recipe, arguments.steps, Path(folder))
    if ranks.is_first:
        result = {
            "schema": 1,
            "command": f"python benchmarks/gathers.py --recipe {arguments.recipe} --steps {arguments.steps}",
            "processes": 2,
            "threads_each": 1,
            **found,
        }
        Console().print_json(json.dumps(result))
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
