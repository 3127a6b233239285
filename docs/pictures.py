"""Draw the pictures of docs/continual-learning.md from the committed demo runs: `python docs/pictures.py`.

Each PNG stores a hash of the records it was drawn from. `tests/test_docs.py` compares it with `results/demo`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "results" / "demo"
TASKS = ("prose", "code", "arithmetic")
WITHOUT, WITH = "plain", "large_share"  # folders of results/demo
PICTURES = {"forgetting": "continual-learning-forgetting.png", "replay": "continual-learning-replay.png"}
TITLES = {
    "forgetting": "Without protection, learning arithmetic destroys prose and code",
    "replay": "With 44 % replay, prose improves while later tasks are learned",
}
GREY, BLUE, ORANGE, GREEN = "#57606a", "#2f6fb3", "#c4561a", "#3a7d44"
# Per picture: run, task, colour, label at the end of the line, and how far the label is moved.
LINES = {
    "forgetting": [
        (WITHOUT, "prose", BLUE, "prose", 8),
        (WITHOUT, "code", ORANGE, "code", -8),
        (WITHOUT, "arithmetic", GREEN, "arithmetic", 0),
    ],
    "replay": [
        (WITHOUT, "prose", GREY, "prose,\nno replay", 0),
        (WITH, "prose", BLUE, "prose,\n44 % replay", 0),
    ],
}


def records(run: str) -> list[dict[str, Any]]:
    with gzip.open(RUNS / run / "metrics.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def curve(run: str, task: str) -> tuple[list[int], list[float]]:
    """Steps and perplexities of one task."""
    name = f"eval/{task}/perplexity"
    found = [(record["step"], float(record["metrics"][name])) for record in records(run) if name in record["metrics"]]
    return [step for step, _ in found], [value for _, value in found]


def fingerprint(picture: str) -> str:
    """A hash of all numbers that a picture shows."""
    return hashlib.sha256(json.dumps([curve(*shown[:2]) for shown in LINES[picture]]).encode()).hexdigest()[:16]


def draw(folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False})
    ends = [record["step"] for record in records(WITHOUT) if record["kind"] == "boundary"]
    for picture, lines in LINES.items():
        figure, axis = plt.subplots(figsize=(8, 4), dpi=120)
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            axis.axvspan(start, end, color="#eaeef2" if number % 2 == 0 else "white", zorder=0)
            middle, top = (start + end) / 2, axis.get_xaxis_transform()
            axis.text(middle, 1.02, f"{TASKS[number]} text", ha="center", transform=top)
        for run, task, colour, label, shift in lines:
            steps, values = curve(run, task)
            axis.plot(steps, values, color=colour, marker="o", markersize=4, clip_on=False)
            place = {"xytext": (8, shift), "textcoords": "offset points"}
            axis.annotate(label, (steps[-1], values[-1]), color=colour, va="center", **place)
        ticks = [10, 100, 1_000, 10_000]
        axis.set(yscale="log", ylim=(5, 12_000), xlim=(0, ends[-1]))
        axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.set(xlabel="training step (one kind of text after the other)", ylabel="perplexity (lower is better)")
        figure.suptitle(TITLES[picture], x=0.02, ha="left", fontweight="bold")
        figure.subplots_adjust(left=0.12, right=0.82, top=0.82, bottom=0.14)
        figure.savefig(folder / PICTURES[picture], metadata={"Description": fingerprint(picture), "Software": None})
        plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
