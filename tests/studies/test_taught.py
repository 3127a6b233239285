"""The table and the texts of the study of taught documents, and that its committed table is that of its numbers."""

from __future__ import annotations

import json
from pathlib import Path

from studies.taught import DOMAINS, SEEDS, table, texts

RESULTS = Path(__file__).parents[2] / "results" / "taught"


def test_rows_of_both_kinds_are_texts(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"question": "b?", "answer": "c"}, {"text": "d"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert texts(tmp_path / "rows.jsonl", 2) == ["a", "b?\nc"]


def test_the_committed_table_is_that_of_the_committed_numbers() -> None:
    domains = json.loads((RESULTS / "taught.json").read_text())["domains"]
    assert list(domains) == list(DOMAINS)
    assert all(len(result["continue"]) == len(SEEDS) for result in domains.values())
    assert (RESULTS / "README.md").read_text().endswith(table(domains))
