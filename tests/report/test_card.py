"""The model card: whatever a recipe or a folder is called, it stays a card."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from markdown_it import MarkdownIt

from tests.report.common import write_run
from trc2.report.card import model_card
from trc2.report.run import read_run

EVIL = "[x](http://evil) | <script>alert(1)</script>\n---\n# *free*"


def test_licences_sources_and_folders_are_text(tmp_path: Path) -> None:
    tasks = [
        {"name": f"task{number}", "dataset": f"{EVIL}{number}", "license": EVIL, "steps": 10} for number in range(2)
    ]
    folder = write_run(tmp_path / EVIL.replace("/", "-"), 2, tasks=tasks)
    data = json.loads((folder / "data.json").read_text())
    data["fingerprint"], data["overlap"] = "`<script>|", {EVIL: {EVIL: 0.5}}
    (folder / "data.json").write_text(json.dumps(data))
    card = model_card(read_run(folder), 1000, 5, 20, "1.0")

    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "trc2",
        "pipeline_tag": "text-generation",
        "tags": ["continual-learning", "trc2"],
    }
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(body)
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or []}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "em_open", "hr"}
    headings = [token.tag for token in tokens if token.type == "heading_open"]
    assert headings == ["h1", "h2", "h2", "h2", "h2"]
    cells = [tokens[at + 1].children for at, token in enumerate(tokens) if token.type == "td_open"]
    texts = ["".join(child.content for child in cell or []) for cell in cells]
    assert texts.count(" ".join(EVIL.split())) == 2  # one licence each


def test_ordinary_names_are_written_as_they_are(tmp_path: Path) -> None:
    tasks = [{"name": "task0", "dataset": "Salesforce/wikitext", "license": "CC BY-SA", "steps": 10}]
    card = model_card(read_run(write_run(tmp_path / "lab_trc2", 1, tasks=tasks)), 1000, 0, 10, "1.0")
    assert "# trc2 · lab_trc2\n" in card
    assert "| Salesforce/wikitext | CC BY-SA |" in card
