"""The table of records: the lowest final loss on the lab stream at a fixed budget of FLOPs and stored bytes.

    python -m studies.records                # writes results/RECORDS.md from results/lab_scale*

Two tracks differ in what may be kept of the past. Counts come first: a network that does not beat them has learned
little. Joint training is the bound: it needs all text at once.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.paper.roles import mean
from trc2.config import RunConfig, TRC2Config, load_recipe
from trc2.replay.stores import stored_bytes
from trc2.report.markdown import markdown
from trc2.report.run import Run, final_loss, read_run, training_flops
from trc2.report.runs import find_runs, interval_of
from trc2.report.tables import interval_text
from trc2.report.variants import draw_of, group_runs, is_reference, replays, title_of
from trc2.runs.equal_cost import TOLERANCE, budget_of
from trc2.runs.schedule import TaskSchedule
from trc2.system.files import reading, write_atomically

BUDGET_RECIPE = "lab_trc2"
TRACKS = {"At most 1 MB stored": 1e6, "At most 16 MB stored": 16e6}
STATE_BYTES = 4  # memory slots are float32


def kept_bytes(config: RunConfig) -> int:
    """What a run keeps of the past beside its weights: replay chunks, and keys and values of the memory."""
    model = config.model
    stored = stored_bytes(model) if replays(config) or config.strategy.replayed_tokens(model, config.train) else 0
    if isinstance(model, TRC2Config) and model.memory:
        stored += STATE_BYTES * model.memory_slots * (model.memory_key_dim + model.d_model)
    return stored


def flops_budget() -> float:
    """The training FLOPs of the lab's recipe, with the tolerance of equal work."""
    config = load_recipe(BUDGET_RECIPE)
    return TOLERANCE * budget_of(config).training_flops_per_step * TaskSchedule.of_run(config).total_steps


@dataclass(frozen=True)
class Entry:
    """One configuration: the loss of each seed, averaged over its A/A repeats."""

    title: str
    losses: list[float]
    flops: float
    bytes: int
    folders: list[Path]

    @property
    def mean(self) -> float:
        return mean(self.losses)


def entries(runs: Iterable[Run], *, references: bool = False) -> list[Entry]:
    """Finished runs in the listed order of tasks, grouped by configuration. The lowest loss first."""
    chosen = [run for run in runs if run.is_finished and is_reference(run.config) == references]
    chosen = [run for run in chosen if list(run.order) == run.tasks]
    found = []
    for group in group_runs(chosen):
        by_seed: dict[int, dict[int, Run]] = {}
        for run in group.runs:  # a run that is in two folders counts once
            by_seed.setdefault(run.config.train.seed, {}).setdefault(draw_of(run.config), run)
        counted = [run for draws in by_seed.values() for run in draws.values()]
        work = [value for run in counted if (value := training_flops(run)) is not None]
        config, folders = counted[0].config, [run.folder for run in counted]
        for title, loss in ((title_of(config), _loss_alone), (f"{title_of(config)}, reading its store", _loss_reading)):
            losses = [mean([loss(run) for run in draws.values()]) for draws in by_seed.values()]
            if work and all(map(math.isfinite, losses)):
                found.append(Entry(title, losses, mean(work), kept_bytes(config), folders))
    return sorted(found, key=lambda entry: entry.mean)


def _loss_alone(run: Run) -> float:
    return final_loss(run.tasks).of(run) or math.nan


def _loss_reading(run: Run) -> float:
    """The loss of network and stored text together. NaN if the run was not scored so: see `eval.recall`."""
    last = run.final("eval")
    return mean([last.get(f"eval/{task}/recall_loss", math.nan) for task in run.tasks])


def counts_loss(path: Path) -> tuple[str, float] | None:
    """The best mean loss of a count model of the whole stream. None without counts.json."""
    if not path.is_file():
        return None
    with reading(path):
        tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"]
        names = next(iter(tasks.values()))["stream"]
        losses = {name: mean([math.log(task["stream"][name]) for task in tasks.values()]) for name in names}
    return min(losses.items(), key=lambda found: found[1])


def records_page(folders: Sequence[Path], root: Path) -> str:
    """The page. Links are relative to `root`."""
    runs = [read_run(path) for path in find_runs(folders)]
    prints = {run.data["fingerprint"] for run in runs}
    stream = max(prints, key=lambda name: sum(run.data["fingerprint"] == name for run in runs))
    runs = [run for run in runs if run.data["fingerprint"] == stream]
    budget, tasks = flops_budget(), " → ".join(runs[0].tasks)
    lines = [
        "# Records", "",
        f"Final loss (mean log-perplexity of all tasks after the last step) on the lab stream, {tasks}. A run may use "
        f"at most {budget:.3g} training FLOPs, those of `{BUDGET_RECIPE}` and 5 %. Stored bytes are replay chunks and "
        "the memory's keys and values. `Reading its store` is the same run, scored while it reads its replay chunks "
        "([how](../docs/recall.md#runs-that-read-their-replay-stores)). Mean [95 % t-interval] over seeds. Made by "
        "`python -m studies.records`.", "",
    ]  # fmt: skip
    counts = next((found for folder in folders if (found := counts_loss(folder / "counts.json")) is not None), None)
    bounds = [entry for entry in entries(runs, references=True) if entry.title.endswith(", joint")]
    for track, most in TRACKS.items():
        lines += [f"## {track}", "", "| configuration | final loss (nats) ↓ | n | FLOPs | stored | runs |",
                  "|:---|---:|---:|---:|---:|:---|"]  # fmt: skip
        lines += [f"| counts: {counts[0]}s of the stream | {counts[1]:.3f} | – | – | – | – |"] if counts else []
        lines += [_row(entry, root, " (bound: all text at once)") for entry in bounds[:1]]
        lines += [_row(entry, root) for entry in entries(runs) if entry.flops <= budget and entry.bytes <= most] + [""]
    return "\n".join(lines)


def _row(entry: Entry, root: Path, note: str = "") -> str:
    interval = interval_of(entry.losses)
    loss = interval_text({"mean": interval.mean, "low": interval.low, "high": interval.high})
    links = " ".join(f"[{number}](<{_relative(path, root)}>)" for number, path in enumerate(entry.folders, start=1))
    stored = f"{entry.bytes / 1e6:.2f} MB"
    return f"| {markdown(entry.title)}{note} | {loss} | {interval.n} | {entry.flops:.3g} | {stored} | {links} |"


def _relative(path: Path, root: Path) -> str:
    path, root = path.resolve(), root.resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.records", description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, help="folders of runs; by default results/lab_scale*")
    parser.add_argument("--out", type=Path, default=Path("results/RECORDS.md"))
    asked = parser.parse_args(arguments)
    folders = asked.folders or sorted(Path("results").glob("lab_scale*"))
    write_atomically(asked.out, records_page(folders, asked.out.parent).encode())
    print(asked.out)


if __name__ == "__main__":
    main()
