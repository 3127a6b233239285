"""The lab and the demo are scale models of the paper, or say where they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import trc2 as in_process
from trc2.config import TRC2Config, load_recipe
from trc2.costs.ratios import MEANINGS, PAPER, REASONS, is_close, ratio_rows, ratios
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


def test_the_command_prints_the_ratios_as_json() -> None:
    done = in_process("budget", "lab_trc2", "--ratios", "--json")
    found = {row["ratio"]: row for row in json.loads(done.out)["ratios"]}
    assert found["reservoir"]["value"] == pytest.approx(0.00073, rel=0.02)
    assert is_close(found["reservoir"]["value"], found["reservoir"]["paper"])


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
