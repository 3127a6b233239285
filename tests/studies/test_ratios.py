"""The lab and the demo are scale models of the paper, or say where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.paper.ratios import MEANINGS, PAPER, REASONS, ratio_rows, ratio_table, ratios
from trc2.config import TRC2Config, load_recipe
from trc2.errors import UserError


def test_the_papers_ratios_are_those_of_its_text() -> None:
    found = ratios(load_recipe(PAPER))
    assert found["slow heads"] == pytest.approx(2000 / 22_000)
    assert found["controller"] == pytest.approx(240 / 22_000)
    assert found["warm-up"] == pytest.approx(1000 / 22_000, rel=1e-3)
    assert found["reservoir"] == pytest.approx(16_384 * 128 / (22_000 * 131_072))
    assert found["chunk"] == pytest.approx(1 / 8)
    assert found["replayed"] == pytest.approx(1 / 16)
    assert found["memory reach"] == pytest.approx(32)


@pytest.mark.parametrize("recipe", ["lab_trc2", "demo"])
def test_a_recipe_has_the_papers_ratios_or_names_the_reason(recipe: str) -> None:
    rows = {row["ratio"]: row for row in ratio_rows(recipe, load_recipe(recipe))}
    differing = {name for name, row in rows.items() if not row["close"]}
    assert differing == set(REASONS[recipe]), "every difference has a reason, and every reason a difference"


def test_horizons_follow_from_the_steps_and_give_the_papers_numbers_at_its_length() -> None:
    paper = load_recipe(PAPER, ["model.slow_decay=null", "model.threshold_decay=null", "control.every_steps=null"])
    assert isinstance(paper.model, TRC2Config)
    assert (paper.model.slow_decay, paper.model.threshold_decay, paper.control.every_steps) == (0.9995, 0.99, 240)
    alone = TRC2Config()
    assert (alone.slow_heads_decay, alone.write_threshold_decay) == (0.9995, 0.99)
    short = load_recipe("lab_trc2", [f"stream.tasks.{name}.steps=100" for name in ("c4", "wikitext", "gsm8k")])
    assert isinstance(short.model, TRC2Config)
    assert short.model.slow_decay == pytest.approx(1 - 11 / 300)
    assert short.control.every_steps == 10, "a look costs too much to be had more often"


def test_a_horizon_that_is_set_stays() -> None:
    config = load_recipe("lab_trc2", ["model.slow_decay=0.9", "control.every_steps=7", "train.warmup_steps=3"])
    assert isinstance(config.model, TRC2Config)
    assert (config.model.slow_decay, config.control.every_steps, config.train.warmup_of(3100)) == (0.9, 7, 3)


def test_the_table_says_why_a_ratio_differs() -> None:
    notes = list(ratio_table("demo", load_recipe("demo")).columns[3].cells)
    assert sum(str(note).startswith("differs: ") for note in notes) == len(REASONS["demo"])


def test_a_model_without_a_stream_has_no_ratios() -> None:
    with pytest.raises(UserError, match="stream"):
        ratios(load_recipe("paper_compact"))


def test_the_table_of_the_documentation_has_these_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "fidelity.md").read_text()
    columns = [ratios(load_recipe(name)) for name in (PAPER, "lab_trc2", "demo")]
    for name, meaning in MEANINGS.items():
        cells = next(line for line in page.splitlines() if line.startswith(f"| {meaning} |")).split("|")
        expected = [f"{value:.3g}" for value in (column[name] for column in columns) if value is not None]
        assert [cell.strip() for cell in cells[2:5]] == expected
