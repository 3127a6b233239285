"""Figures: at most six series, names cut at their end, and a sentence where one cannot be drawn."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from matplotlib.image import imread

from tests.report.common import forgets, write_run
from tests.report.invented import invent_run
from trc2.report.figures import (
    NotWritten,
    changes,
    curves_figure,
    differences_figure,
    drawn_variants,
    keeping_figure,
    memory_figure,
    run_figure,
    variant_curve,
)
from trc2.report.run import FORGETTING, read_run
from trc2.report.runs import RunTable, read_runs
from trc2.system.plot_style import MAX_SERIES, Figure, label, shorten, style


def test_a_panel_has_at_most_six_series_and_the_reference_is_one(table: RunTable) -> None:
    assert len(table.competitors) > MAX_SERIES
    drawn = drawn_variants(table)
    assert len(drawn) == MAX_SERIES
    assert table.reference in drawn
    losses = table.means(table.final_loss)["mean"].loc[table.learned]
    assert losses.idxmin() in drawn
    with style():
        figure = curves_figure(table)
    assert all(len(axes.lines) == MAX_SERIES for axes in figure.panels)


def test_the_variants_of_a_title_have_their_names_beside_their_points(table: RunTable) -> None:
    lost = table.means(FORGETTING)["mean"].loc[table.learned]
    with style():
        figure = keeping_figure(table)
    names = {text.get_text() for text in figure.panels[0].texts}
    assert {label(lost.idxmin(), 36), label(lost.idxmax(), 36)} <= names
    assert not {lost.idxmin(), lost.idxmax()} <= set(drawn_variants(table))  # one of them is not among the drawn ones


def test_a_variant_has_one_colour_in_all_figures(table: RunTable) -> None:
    main = drawn_variants(table)
    some = drawn_variants(table, [*list(main)[3:], "Transformer + EWC"])
    assert all(some[variant] == main[variant] for variant in list(main)[3:])
    assert len(set(some.values())) == len(some)


def test_a_curve_is_the_mean_over_seeds(table: RunTable) -> None:
    curve = variant_curve(table, "Transformer", lambda run: [(0, float(run.config.train.seed))])
    assert tuple(curve.loc[0]) == (0.5, 0.0, 1.0)


def test_variants_that_did_not_learn_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    write_run(tmp_path / "learned")
    write_run(tmp_path / "frozen", perplexity=lambda step, index: 50.0)
    config = tmp_path / "frozen" / "config.yaml"
    config.write_text(config.read_text().replace("learning_rate: ", "learning_rate: 1", 1))
    table = read_runs([tmp_path])
    assert len(table.learned) == 1
    with style():
        failed = table.runs.variant["frozen"]
        assert f"did not learn all their tasks: {failed}." in curves_figure(table).caption
        for draw in (keeping_figure, differences_figure):  # one point is not a figure
            with pytest.raises(NotWritten):
                draw(table)


def test_names_are_cut_at_their_end_and_dollars_are_no_formulas() -> None:
    assert shorten("lab_trc2 with a very long name", 12) == "lab_trc2 wi…"
    assert label("$x$") == r"\$x\$"


def test_changes_are_measured_from_the_end_of_the_tasks_own_training(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", 2))
    points = dict(changes(run, run.spans[0]))
    assert points[10] == 0
    assert points[20] == pytest.approx(math.log(forgets(20, 0) / forgets(10, 0)))


def test_the_figure_of_a_continued_run_says_that_the_parent_is_its_reference(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    with style():
        own, continued = (run_figure(run, is_continued=is_continued) for is_continued in (False, True))
    titles = [[axes.get_title(loc="left") for axes in figure.axes] for figure in (own, continued)]
    assert any("since its own training" in title for title in titles[0])
    assert any("since the parent or its own training" in title for title in titles[1])
    heads = [figure.get_suptitle().replace("\n", " ") for figure in (own, continued)]
    assert "right after its own training" in heads[0]
    assert "in the parent" in heads[1]


@pytest.mark.parametrize("num_tasks", [1, 2, 20])
def test_a_run_with_any_number_of_tasks_is_drawn(tmp_path: Path, num_tasks: int) -> None:
    run = read_run(write_run(tmp_path / "run", num_tasks))
    with style():
        figure = run_figure(run)
    assert imread(io.BytesIO(figure.png(50))).shape[1] == 400
    assert len(figure.axes) == (1 if num_tasks == 1 else 2)
    assert len([line for line in figure.axes[0].lines if len(line.get_xdata()) > 1]) == min(num_tasks, MAX_SERIES)


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0, -1.0])
def test_a_value_that_is_not_a_perplexity_leaves_a_gap(tmp_path: Path, odd: float) -> None:
    run = read_run(write_run(tmp_path / "run", 2, lambda step, index: odd if step == 10 else forgets(step, index)))
    with style():
        line = run_figure(run).axes[0].lines[0]
    values = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert math.isnan(values[10])
    assert values[5] == pytest.approx(forgets(5, 0))


def test_the_memory_of_a_run_is_drawn(tmp_path: Path) -> None:
    run = read_run(invent_run(tmp_path / "run", "lab_trc2"))
    with style("dark"):
        assert len(memory_figure(run).axes) == 3


def test_the_same_picture_has_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with style():
            figure = Figure("p", "title", 2)
            figure.panels[0].plot([1, 2], [3, 4])
            (tmp_path / name).mkdir()
            figure.write(tmp_path / name)
    for suffix in ("png", "svg"):
        assert (tmp_path / "a" / f"p.{suffix}").read_bytes() == (tmp_path / "b" / f"p.{suffix}").read_bytes()
