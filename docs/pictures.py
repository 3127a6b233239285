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
GREY, BLUE, ORANGE, GREEN = "#5a5a5a", "#0072B2", "#D55E00", "#009E73"  # of trc2/system/plot_style.py
# Per picture: run, task, colour and label at the end of the line.
LINES = {
    "forgetting": [
        (WITHOUT, "prose", BLUE, "prose"),
        (WITHOUT, "code", ORANGE, "code"),
        (WITHOUT, "arithmetic", GREEN, "arithmetic"),
    ],
    "replay": [
        (WITHOUT, "prose", GREY, "prose, no replay"),
        (WITH, "prose", BLUE, "prose, 44 % replay"),
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
    from trc2.metrics.forgetting import TaskSpan
    from trc2.report.figures import draw_tasks
    from trc2.system.plot_style import Figure, label_ends, plain_log_ticks, style

    ends = [record["step"] for record in records(WITHOUT) if record["kind"] == "boundary"]
    spans = [TaskSpan(task, start, end) for task, start, end in zip(TASKS, [0, *ends], ends, strict=False)]
    titles = {task: f"{task} text" for task in TASKS}
    for picture, lines in LINES.items():
        with style():
            figure = Figure(picture, TITLES[picture], height=3.6)
            axes, labels = figure.panels[0], []
            for run, task, colour, text in lines:
                steps, values = curve(run, task)
                axes.plot(steps, values, color=colour, marker="o", markersize=4, clip_on=False)
                labels.append((values[-1], text, colour))
            axes.set(yscale="log", ylim=(5, 12_000), ylabel="perplexity (lower is better)")
            plain_log_ticks(axes.yaxis)
            figure.lay_out()
            draw_tasks(axes, spans, titles, ends[-1])
            axes.set_xlabel("training step (one kind of text after the other)")
            label_ends(axes, labels)
            (folder / PICTURES[picture]).write_bytes(figure.drawing.png(Description=fingerprint(picture)))


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
