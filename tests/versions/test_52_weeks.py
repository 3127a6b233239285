"""A year of weeks: neither the work of a week nor the disk grows."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from studies.weeks import HARMFUL, run_weeks


def in_window(rows: list[dict[str, Any]], first: int, last: int, *names: str) -> float:
    """The median over weeks, without refused ones, of a number, or of one divided by another."""
    chosen = [row for row in rows if first <= row["week"] <= last and row["accepted"]]
    return median(row[names[0]] / (row[names[1]] if len(names) > 1 else 1) for row in chosen)


@pytest.mark.slow
def test_after_week_10_neither_work_nor_disk_grows_by_more_than_a_tenth(tmp_path: Path) -> None:
    rows = list(run_weeks(tmp_path, 52))
    print(*rows, sep="\n")
    assert [row["week"] for row in rows if not row["accepted"]] == list(HARMFUL)
    assert {row["tasks"] for row in rows} == {3}  # old, news-earlier and news
    # Seconds of CPU, in units of a fixed piece of work, because another process on the machine makes both slower.
    for names in (["judged_tokens"], ["opened_files"], ["cpu_seconds", "reference_seconds"]):
        assert in_window(rows, 43, 52, *names) <= 1.1 * in_window(rows, 11, 20, *names), names
    sizes = [row["bytes"] + row["cache_bytes"] for row in rows]
    assert max(sizes[10:]) <= 1.1 * sizes[9]
