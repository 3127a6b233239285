"""A year of weeks: neither the time of a week nor the disk grows."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from studies.weeks import HARMFUL, run_weeks


@pytest.mark.slow
def test_after_week_10_neither_time_nor_disk_grows_by_more_than_a_tenth(tmp_path: Path) -> None:
    rows = list(run_weeks(tmp_path, 52, 200))  # the judged past is full, at 200 documents, before week 10
    print([row["cpu_seconds"] for row in rows], [row["bytes"] for row in rows])
    assert [row["week"] for row in rows if not row["accepted"]] == list(HARMFUL)
    assert {row["tasks"] for row in rows} == {3}  # old, news-earlier and news
    seconds = [row["cpu_seconds"] for row in rows]
    assert median(seconds[42:]) <= 1.1 * median(seconds[9:19])
    sizes = [row["bytes"] for row in rows]
    assert max(sizes[10:]) <= 1.1 * sizes[9]
