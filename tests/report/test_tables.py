"""Tables of variants: their numbers, which cells are bold, and names that stay text in every format."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest

from tests.report.invented import invent_run, rewrite
from trc2.report.run import AUFC, Measure, own_score
from trc2.report.runs import RunTable, read_runs
from trc2.report.tables import (
    Column,
    NotWritten,
    Table,
    boundary_table,
    cost_table,
    final_table,
    forgetting_table,
    latex,
    paired_loss_table,
    score_measures,
)
from trc2.system.numbers import number_text

EVIL = "=cmd|<b>_x_ & $y$ \\ [l](http://evil)"


def cells(made: Table) -> dict[str, dict[str, str]]:
    rows = list(csv.DictReader(io.StringIO(made.to_csv())))
    return {row[made.head]: row for row in rows}


def means(entries: dict[str, tuple[float, float, float]]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(entries, orient="index", columns=["mean", "low", "high"])


def test_the_csv_holds_means_and_bounds_in_full(table: RunTable) -> None:
    row = cells(boundary_table(table))["TRC²"]
    seeds = [own_score("c4")(run) for run in table.runs_of("TRC²", repeats=False)]
    expected = table.means(_measure(table, "perplexity C4")).loc["TRC²"]
    assert float(row["perplexity C4"]) == expected["mean"]
    assert float(row["perplexity C4 low"]) < min(value for value in seeds if value is not None)
    assert (
        float(cells(final_table(table))["TRC²"][table.final_loss.label])
        == table.means(table.final_loss)["mean"]["TRC²"]
    )


def _measure(table: RunTable, title: str) -> Measure:
    return next(measure for measure in score_measures(table, own_score) if measure.title == title)


def test_forgetting_is_tabulated_at_the_last_boundary_and_at_the_end(table: RunTable) -> None:
    made = forgetting_table(table)
    row = cells(made)["TRC²"]
    ends = [span.end for span in table.example("TRC²").spans]
    assert float(row[f"AUFC perplexity, step {ends[-1]:,} (nats)"]) == table.means(AUFC)["mean"]["TRC²"]
    assert f"AUFC perplexity, step {ends[-2]:,} (nats)" in row
    assert "Transformer, joint" not in made.index


def test_a_run_of_one_task_has_no_forgetting_table(tmp_path: Path) -> None:
    invent_run(tmp_path / "one", "lab_single_c4")
    with pytest.raises(NotWritten):
        forgetting_table(read_runs([tmp_path]))


def test_paired_differences_have_one_row_per_other_variant(table: RunTable) -> None:
    rows = cells(paired_loss_table(table))
    assert len(rows) == len(table.competitors) - 1
    assert "TRC²" not in rows
    assert rows["TRC² backbone only"]["pairs"] == "2"


def test_costs_are_counted_and_measured(table: RunTable) -> None:
    row = cells(cost_table(table))["TRC²"]
    assert float(row["parameters"]) == table.variants.parameters["TRC²"]
    assert float(row["training speed (tokens/s) low"]) > 0


@pytest.mark.parametrize(
    ("entries", "best"),
    [
        ({"a": (1.0, 0.9, 1.1), "b": (2.0, 1.9, 2.1)}, "a"),
        ({"a": (1.0, 0.5, 1.5), "b": (1.2, 0.9, 1.5)}, None),  # the intervals overlap
        ({"a": (1.0, math.nan, math.nan), "b": (2.0, 1.9, 2.1)}, None),  # one seed
        ({"a": (0.0, 0.0, 0.0), "b": (0.0, 0.0, 0.0)}, None),
    ],
)
def test_only_a_best_value_beyond_noise_is_bold(
    entries: dict[str, tuple[float, float, float]], best: str | None
) -> None:
    column = Column("x", means(entries), "lower", ["a", "b"])
    assert column.best() == best
    assert ("**1.00 [0.90, 1.10]**" in Table("t", "t", "c", pd.Index(entries), [column]).to_markdown()) is (best == "a")


def test_a_variant_that_did_not_learn_is_marked_and_never_best(tmp_path: Path) -> None:
    for seed in (0, 1):
        invent_run(tmp_path / f"a{seed}", "lab_transformer", [f"train.seed={seed}"])
        frozen = invent_run(tmp_path / f"b{seed}", "lab_moe", [f"train.seed={seed}"], forgets=0.0)
        rewrite(frozen, lambda metrics, step: metrics.update(dict.fromkeys(metrics, 50.0)))
    table = read_runs([tmp_path])
    made = forgetting_table(table)
    assert "MoE †" in made.index
    assert all(column.best() != "MoE †" for column in made.columns)


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [(5.2242, 0.078, "5.224"), (1234.5, math.nan, "1,234"), (0.0, math.nan, "0.000"), (math.inf, 1.0, "∞"),
     (-0.5, 0.1, "−0.50"), (3e-7, math.nan, "3e−07")],
)  # fmt: skip
def test_a_number_has_the_digits_that_its_spread_supports(value: float, spread: float, text: str) -> None:
    assert number_text(value, spread) == text


def test_names_are_text_in_every_format() -> None:
    made = Table("t", EVIL, EVIL, pd.Index([EVIL]), [Column(EVIL, pd.Series([EVIL], index=[EVIL]))])
    assert "<b>" not in made.to_markdown().replace("\\<b\\>", "")
    assert made.to_csv().count("'=cmd") == 3  # spreadsheets do not run it
    assert latex("a_b & 5 % $x$ \\") == r"a\_b \& 5 \% \$x\$ \textbackslash{}"
    assert r"\_x\_" in made.to_latex()
