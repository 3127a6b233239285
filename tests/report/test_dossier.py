"""Everything is written that runs can fill, the rest says why, and a rebuild gives the same bytes."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from tests.command import trc2
from tests.report.common import write_run
from tests.report.invented import TASKS, invent_matrix, invent_run
from trc2.report.dossier import TABLES, Dossier, write_dossier
from trc2.report.evidence import Evidence
from trc2.report.plots.canvas import style
from trc2.report.plots.gallery import FIGURES

LOW = 30  # dots per inch: what is tested does not need more


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Dossier:
    root = invent_matrix(tmp_path_factory.mktemp("lab"), seeds=(0, 1))
    return write_dossier(Evidence.of([root]), tmp_path_factory.mktemp("out"), dpi=LOW)


def test_the_whole_lab_fills_every_table_and_figure(whole: Dossier) -> None:
    assert whole.left_out == {}
    assert len(list((whole.folder / "tables").iterdir())) == 3 * len(TABLES)
    assert len(list((whole.folder / "figures").iterdir())) == 2 * len(FIGURES)
    assert all(path.is_file() for path in whole.written)
    assert {"report.md", "report.html"} <= {path.name for path in whole.folder.iterdir()}


def test_pictures_can_be_read_and_are_small_and_without_dates(whole: Dossier) -> None:
    for path in (whole.folder / "figures").iterdir():
        if path.suffix == ".png":
            assert imread(path).size > 0
            continue
        text = path.read_text()
        ElementTree.fromstring(text)
        assert len(text) < 200_000, path
        assert not re.search(r"<dc:date|\b20\d\d-\d\d-\d\d", text)


def test_the_page_shows_every_part_with_its_caption(whole: Dossier) -> None:
    text = whole.index.read_text()
    linked = re.findall(r"\]\(([^)]+)\)", text)
    assert linked
    assert all((whole.folder / path).is_file() for path in linked)
    assert {f"figures/{p.name}" for p in (whole.folder / "figures").iterdir()} <= set(linked)
    assert "Left out" not in text
    assert "n = 1 to 2 seeds" in text


# ------------------------------------------------------------------------------------------------------------ layout


def drawn(dossier: Dossier) -> list[tuple[str, Any]]:
    return [(picture.name, picture.figure) for picture in dossier.pictures]


def boxes(figure: Any) -> tuple[list[Any], Any, Any]:
    """Tight boxes of the panels, of the legend and of the line below."""
    renderer = figure.canvas.get_renderer()
    panels = [axes.get_tightbbox(renderer) for axes in figure.axes if axes.get_visible()]
    legend = figure.legends[0].get_window_extent(renderer) if figure.legends else None
    return panels, legend, figure.texts[0].get_window_extent(renderer)


def test_panels_legend_and_footer_do_not_overlap_and_stay_inside(whole: Dossier) -> None:
    for name, figure in drawn(whole):
        with style():
            panels, legend, footer = boxes(figure)
        whole = figure.bbox
        for one, other in itertools.combinations([*panels, footer, *([legend] if legend else [])], 2):
            both = (min(one.x1, other.x1) - max(one.x0, other.x0), min(one.y1, other.y1) - max(one.y0, other.y0))
            assert min(both) < 6, (name, one, other)
        for box in (*panels, footer, *([legend] if legend else [])):
            assert whole.x0 - 4 <= box.x0, name
            assert box.x1 <= whole.x1 + 1, name
            assert whole.y0 - 4 <= box.y0, name
            assert box.y1 <= whole.y1 + 4, name


def test_every_axis_of_numbers_has_three_ticks(whole: Dossier) -> None:
    for name, figure in drawn(whole):
        for axes in figure.axes:
            for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
                low, high = sorted(limits)
                words = [text.get_text() for text in axis.get_ticklabels()]
                is_numeric = all(
                    word.replace("−", "").rstrip("kMG").replace(".", "").isdigit() for word in words if word
                )
                if axes.get_visible() and is_numeric and any(words) and axes.name != "polar":
                    ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
                    assert len(ticks) >= 3, (name, axes.get_title(loc="left"), words)


def test_the_line_below_says_what_the_data_are(whole: Dossier) -> None:
    for name, figure in drawn(whole):
        words = " ".join(figure.texts[0].get_text().split())
        assert "n = " in words, name
        assert "620 steps" in words, name
        assert "GSM8K" in words, name


# --------------------------------------------------------------------------------------------------- again, and less


def test_a_rebuild_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trc2.report.dossier.FIGURES", FIGURES[4::5])
    order = f"stream.order=[{','.join(reversed(TASKS))}]"
    for recipe in ("trc2", "transformer"):
        for seed in (0, 1):
            invent_run(tmp_path / "runs" / f"{recipe}{seed}", f"lab_{recipe}", [f"train.seed={seed}"])
        invent_run(tmp_path / "runs" / f"{recipe}_turned", f"lab_{recipe}", [order])
    contents = []
    for name in ("first", "second"):
        dossier = write_dossier(Evidence.of([tmp_path / "runs"]), tmp_path / name, dpi=LOW)
        contents.append({path.relative_to(tmp_path / name): path.read_bytes() for path in dossier.written})
    assert contents[0] == contents[1]
    assert any(path.name == "orders_robustness.svg" for path in contents[0])


def test_what_is_left_out_says_what_it_needs(tmp_path: Path) -> None:
    invent_run(tmp_path / "runs" / "a", "lab_transformer")
    half = invent_run(tmp_path / "runs" / "b", "lab_transformer", ["train.seed=1"], ends=False)
    dossier = write_dossier(Evidence.of([tmp_path / "runs"]), tmp_path / "out", dpi=LOW)
    assert dossier.left_out["Order robustness"] == "needs runs in several orders of the tasks (stream.order)"
    assert dossier.left_out["Hippocampal dynamics"] == "needs a TRC² with a memory"
    assert dossier.left_out["Perplexity against size"] == "needs models of at least two sizes"
    text = dossier.index.read_text()
    assert "## Left out" in text
    assert f"Unfinished, counted nowhere: `{half.name}`" in text
    for title, _ in (*TABLES, *FIGURES):
        assert (title in dossier.left_out) == (f"- {title}:" in text.replace("\\", ""))


@pytest.mark.parametrize("count", [1, 9])
def test_any_number_of_tasks_and_any_name_is_reported(tmp_path: Path, count: int) -> None:
    folder = write_run(tmp_path / "$x$ <b> | `y`", count)
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("task0", "0-_" + "long_" * 19))
    dossier = write_dossier(Evidence.of([folder]), tmp_path / "out", dpi=LOW)
    assert dossier.index.is_file()
    assert (tmp_path / "out" / "figures" / "curves_perplexity.png").is_file()


def test_numbers_that_are_none_leave_gaps(tmp_path: Path) -> None:
    for name, odd in (("a", float("nan")), ("b", float("inf")), ("c", -1.0), ("d", 0.0)):
        folder = write_run(tmp_path / "runs" / name, 3, lambda step, task, o=odd: o if step > 12 else 30.0 - step)  # type: ignore[misc]
        settings = folder / "config.yaml"
        settings.write_text(settings.read_text().replace("seed: 0", f"seed: {ord(name)}"))
    assert write_dossier(Evidence.of([tmp_path / "runs"]), tmp_path / "out", dpi=LOW).index.is_file()


def test_the_command_reports_a_folder_of_runs_and_compares_single_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trc2.report.dossier.FIGURES", FIGURES[:8])
    for name, seed in (("a", 0), ("b", 1)):
        folder = write_run(tmp_path / "runs" / name, 2)
        settings = folder / "config.yaml"
        settings.write_text(settings.read_text().replace("seed: 0", f"seed: {seed}"))
    done = trc2("report", "runs")
    assert done.code == 0, done.err
    assert "2 runs, 1 arms" in done.out
    assert (tmp_path / "runs" / "report.md").is_file()
    assert not (tmp_path / "runs" / "comparison.md").exists()
    done = trc2("report", "runs/a", "runs/b", "--out", "both")
    assert done.code == 0, done.err
    assert {"comparison.md", "comparison.png", "report.md"} <= {path.name for path in (tmp_path / "both").iterdir()}
    wrong = trc2("report", "runs", "--reference", "TRC")
    assert wrong.code == 2
    assert "did you mean 'TRC²'?" in wrong.err


def test_a_comparison_that_evidence_refuses_is_still_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_run(tmp_path / name, 2)  # the same seed twice
    done = trc2("report", "a", "b", "--out", "out")
    assert done.code == 0, done.err
    assert "are the same run twice" in done.err
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["comparison.md", "comparison.png"]


def test_runs_in_several_orders_are_reported_as_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trc2.report.dossier.FIGURES", FIGURES[-4:])
    order = f"stream.order=[{','.join(reversed(TASKS))}]"
    invent_run(tmp_path / "a", "lab_transformer")
    invent_run(tmp_path / "b", "lab_transformer", [order])
    done = trc2("report", "a", "b", "--out", "out")
    assert done.code == 0, done.err
    assert not (tmp_path / "out" / "comparison.md").exists()
    assert (tmp_path / "out" / "figures" / "orders_curves.png").is_file()
