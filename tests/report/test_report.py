"""The report of several runs: what is written, what it says, and the page in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.image import imread

from tests.report.common import forgets, write_run
from tests.report.invented import invent_run
from trc2.report.page import write_page
from trc2.report.report import Report, findings, run_rows, title_of_report, write_report
from trc2.report.runs import RunTable, read_runs

ROOT = Path(__file__).parents[2]
EVIL = "x</script><img src=q onerror=alert(1)>"


@pytest.fixture(scope="module")
def written(table: RunTable, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return write_report(table, tmp_path_factory.mktemp("out"), dpi=40)


def test_a_report_has_tables_figures_and_a_page(written: Report) -> None:
    text = (written.folder / "report.md").read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (written.folder / link).is_file(), link
    assert written.left_out == {}
    assert [written.count(suffix) for suffix in (".png", ".svg", ".tex")] == [8, 8, 6]
    for path in written.written:
        assert path.suffix != ".png" or imread(path).shape[1] == 320
        assert path.suffix != ".svg" or "<dc:date>" not in path.read_text()
    assert text.count("n = ") >= 8  # every caption says how many seeds there are
    runs = pd.read_csv(written.folder / "tables" / "runs.csv", index_col="run")
    assert {"variant", "seed", "order", "draw", "flops"} <= set(runs.columns)


def test_the_findings_name_the_lowest_loss_and_count_verdicts(table: RunTable) -> None:
    losses = table.means(table.final_loss)["mean"].loc[table.competitors]
    verdicts = table.differences(table.final_loss).verdict
    first, *rest = findings(table)
    assert first.startswith(str(losses.idxmin()))
    assert f"{losses.min():.3f}" in first
    better = int((verdicts.loc[[v for v in verdicts.index if v in table.learned]] == "better").sum())
    assert better == 0 or any(f"{better} better" in sentence for sentence in rest)


def test_a_broken_run_wins_nothing_and_equal_runs_tie(tmp_path: Path) -> None:
    write_run(tmp_path / "all" / "a")
    write_run(tmp_path / "all" / "b")
    assert all("is last" not in sentence for sentence in findings(read_runs([tmp_path / "all"])))
    write_run(tmp_path / "some" / "broken", perplexity=lambda step, index: float("nan"))
    write_run(tmp_path / "some" / "sound")
    sentences = findings(read_runs([tmp_path / "some"]))
    assert "not finite" in sentences[0]
    assert all("lowest" not in sentence for sentence in sentences)


def test_runs_that_learned_nothing_still_have_findings(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, perplexity=lambda step, index: 50.0)
    table = read_runs([tmp_path])
    assert table.learned == []
    assert any("3.912" in sentence for sentence in findings(table)), "the final loss, log 50"


def test_runs_are_listed_with_learned_and_kept_perplexities(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, 2) for name in ("b", "a")]
    rows = run_rows(read_runs(folders))
    assert list(rows.index) == ["b", "a"]
    assert rows.loc["a", "task0"] == f"{forgets(10, 0):.3g}→{forgets(20, 0):.3g}"


def name_variant(run: Path, title: str, recipe: str) -> None:
    content = {"schema": 1, "matrix": "m", "title": title, "axes": {"recipe": recipe}, "order": [], "seed": 0}
    (run / "variant.json").write_text(json.dumps(content))


def test_the_title_of_a_matrix_is_the_title_of_the_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    name_variant(run, "does it help?", "r")
    assert title_of_report(read_runs([run])) == "does it help?"


@pytest.mark.slow
def test_the_committed_tables_of_the_lab_are_rebuilt_from_its_runs(tmp_path: Path) -> None:
    from trc2.report.tables import TABLES

    table = read_runs([ROOT / "results" / "lab"])
    compared = 0
    for _, make in TABLES:
        made = make(table)
        made.write(tmp_path)
        ours, committed = (pd.read_csv(path / f"{made.name}.csv", index_col=0)
                           for path in (tmp_path, ROOT / "results" / "lab" / "tables"))  # fmt: skip
        pd.testing.assert_frame_equal(ours, committed, check_exact=False, rtol=1e-9, atol=1e-12)
        compared += ours.size
    assert compared > 1000


# ---------------------------------------------------------------------------------------------------- the page


def without_scripts(page: str) -> str:
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_makes_no_request_and_is_small(written: Report) -> None:
    page = (written.folder / "report.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=", without_scripts(page))
    assert len(page) < 2_000_000


def test_names_cannot_leave_their_place_in_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    name_variant(run, EVIL, EVIL)
    other = write_run(tmp_path / "other", perplexity=lambda step, index: 2 * forgets(step, index))
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("learning_rate: ", "learning_rate: 1", 1))
    name_variant(other, EVIL, "plain")
    table = read_runs([tmp_path])
    assert EVIL in table.variants.index
    page = write_page(table, findings(table), tmp_path / "page.html").read_text()
    assert "<img" not in without_scripts(page)
    assert page.count("</script>") == 2
    settings = page.partition("const settings = ")[2].partition("\n")[0]
    assert "onerror" in settings
    assert "<" not in settings


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium here: the page is not tried in a browser")
    return found


def open_page(browser: str, page: Path, profile: Path, address: str = "") -> str:
    """The page as the browser has it after its charts are drawn."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=20000", "--window-size=1100,900", "--dump-dom", f"{page.as_uri()}{address}"]
    return subprocess.run(command, capture_output=True, timeout=180, check=True).stdout.decode()


def points(dom: str) -> int:
    return dom.count('aria-label="optimizer step: ')


@pytest.mark.slow
def test_a_browser_draws_six_series_and_the_address_chooses_others(
    browser: str, written: Report, tmp_path: Path
) -> None:
    dom = open_page(browser, written.folder / "report.html", tmp_path)
    assert 'data-ready="4"' in dom
    assert 'data-shown="6"' in dom
    assert "data-error" not in dom
    assert points(dom) > 50
    two = open_page(browser, written.folder / "report.html", tmp_path, "#show=0.7&task=wikitext")
    assert 'data-shown="2"' in two
    assert 0 < points(two) < points(dom) / 2


@pytest.mark.slow
def test_hostile_names_do_nothing_in_a_browser(browser: str, tmp_path: Path) -> None:
    for name, scale in ((EVIL, 1.0), ("plain", 2.0)):
        run = invent_run(tmp_path / "runs" / name.replace("/", "-"), "lab_trc2" if scale == 1 else "lab_moe")
        name_variant(run, EVIL, name)
    table = read_runs([tmp_path / "runs"])
    dom = open_page(browser, write_page(table, findings(table), tmp_path / "page.html"), tmp_path / "profile")
    assert "data-ready" in dom
    assert "<img" not in without_scripts(dom)


@pytest.mark.slow
@pytest.mark.parametrize("num_tasks", [1, 14])
def test_few_and_many_tasks_are_drawn_too(browser: str, tmp_path: Path, num_tasks: int) -> None:
    table = read_runs([write_run(tmp_path / "run", num_tasks)])
    page = write_page(table, findings(table), tmp_path / "page.html")
    dom = open_page(browser, page, tmp_path / "profile")
    assert "data-error" not in dom
    assert f'data-ready="{1 if num_tasks == 1 else 2}"' in dom
