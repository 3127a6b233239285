"""Run folders written by hand, so that reports can be tested without training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import tiny_config
from trc2.config import RunConfig, settings_text
from trc2.runs.records import Record

COSTS = {
    "tokens_per_second": 1234.0,
    "peak_memory_gb": 0.5,
    "gb_hours": 0.01,
    "training_flops_per_token": 1e6,
    "utilisation": 0.3,
    "evaluation_share": 0.2,
}


def forgets(step: int, index: int) -> float:
    """Learned well in its own ten steps, then slowly lost."""
    begin = 10 * index
    since = step - begin
    if since <= 0:
        return 60.0 - index
    return 60.0 * math.exp(-0.2 * min(since, 10)) + 0.02 * (1 + index % 3) * max(0, since - 10)


def write_run(
    folder: Path,
    num_tasks: int = 2,
    perplexity: Callable[[int, int], float] = forgets,
    last_step: int | None = None,
    tasks: list[dict[str, Any]] | None = None,
) -> Path:
    """Tasks of ten steps each, measured every five. `last_step` leaves the run unfinished there."""
    names = [f"task{number}" for number in range(num_tasks)]
    described = tasks or [{"name": name, "builtin": "prose", "steps": 10} for name in names]
    config = RunConfig(
        model=tiny_config(max_positions=32, replay_chunk_length=8),
        stream={"tasks": described},
        train={"sequence_length": 16},
        output={"folder": folder},
    )
    end = 10 * num_tasks
    records = []
    for step in range(0, min(end, end if last_step is None else last_step) + 1, 5):
        scores = {f"eval/{name}/perplexity": perplexity(step, index) for index, name in enumerate(names)}
        records.append(Record("eval", step, names[0], scores))
        records.append(Record("train", step, names[0], {"hippocampus/threshold": 0.1 * step}))
    if last_step is None:
        records.append(Record("end", end, names[-1], {f"efficiency/{name}": value for name, value in COSTS.items()}))
    split = {"tokens": 1000, "documents": 10}
    data = {"fingerprint": "0" * 64, "tasks": {name: {"splits": {"train": split}} for name in names}, "overlap": {}}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(settings_text(config.model_dump(mode="json")), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(record.to_json() + "\n" for record in records))
    (folder / "data.json").write_text(json.dumps(data))
    return folder
