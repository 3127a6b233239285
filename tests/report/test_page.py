"""The page says what the diaries say, asks nobody for anything, and works in a real browser."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.common import write_run
from tests.report.invented import TASKS, invent_matrix, invent_run
from trc2.metrics.forgetting import PERPLEXITY, summarise
from trc2.report.evidence import PRIMARY, Evidence
from trc2.report.names import FAMILIES
from trc2.report.page import DARK, MIN_CONTRAST, contrast, on_dark, policy, write_page
from trc2.report.page_data import number
from trc2.runs.plan import Plan
from trc2.runs.records import current, read_all_records, score_table
from trc2.stats.intervals import Interval, mean_interval
from trc2.stats.intervals import number as written

EVIL = "</script><img src=q onerror=alert(1)>\"'`{{style}}\u202e"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = invent_matrix(tmp_path_factory.mktemp("lab"), seeds=(0, 1))
    invent_run(root / "better", "lab_moe", forgets=-0.3)
    invent_run(root / "half", "lab_trc2", ["train.seed=7"], ends=False)
    return root


@pytest.fixture(scope="module")
def evidence(lab: Path) -> Evidence:
    return Evidence.of([lab])


@pytest.fixture(scope="module")
def page(evidence: Evidence, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(evidence, tmp_path_factory.mktemp("page") / "page.html")


def embedded(page: Path) -> dict[str, Any]:
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text("utf-8"), re.S)
    content: dict[str, Any] = json.loads(found)
    return content


def columns(data: dict[str, Any]) -> list[str]:
    return [column["name"] for column in data["columns"]]


def arm_of(data: dict[str, Any], title: str) -> dict[str, Any]:
    (arm,) = [arm for arm in data["arms"] if arm["title"] == title]
    found: dict[str, Any] = arm
    return found


def read_diary(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------------------------------------------- the numbers


def test_scores_and_values_are_those_of_the_diaries(page: Path, lab: Path) -> None:
    data = embedded(page)
    assert len(data["runs"]) == len(list(lab.iterdir())) - 1
    for run in data["runs"]:
        evaluations = [record for record in read_diary(lab / run["name"]) if record["kind"] == "eval"]
        for metric, curves in zip(data["metrics"], run["curves"], strict=True):
            assert data["grids"][curves["grid"]] == [record["step"] for record in evaluations]
            for task, scores in zip(data["tasks"], curves["scores"], strict=True):
                told = [record["metrics"][f"eval/{task}/{metric['name']}"] for record in evaluations]
                assert scores == pytest.approx(told, rel=5e-5)
        value = dict(zip(columns(data), run["values"], strict=True))
        last = evaluations[-1]["metrics"]
        logs = [math.log(last[f"eval/{task}/perplexity"]) for task in data["tasks"]]
        assert value["perplexity/end"] == pytest.approx(statistics.mean(logs), rel=5e-6)
        assert value["bleu/end"] == pytest.approx(
            statistics.mean(last[f"eval/{task}/bleu"] for task in data["tasks"]), rel=5e-6
        )
        assert value["perplexity/end/c4"] == pytest.approx(last["eval/c4/perplexity"], rel=5e-6)


def test_forgetting_and_areas_are_recomputed_from_the_records(page: Path, evidence: Evidence) -> None:
    data = embedded(page)
    for told, run in zip(data["runs"], evidence.runs, strict=True):
        table = score_table(
            current(read_all_records(run.folder / "metrics.jsonl")), PERPLEXITY, Plan.of_run(run.config).stretches
        )
        summary = summarise(table, table.steps[-1])
        value = dict(zip(columns(data), told["values"], strict=True))
        for name in ("aufc", "forgetting", "bwt", "fwt"):
            expected = summary.get(f"cl/perplexity/{name}")
            assert value[f"perplexity/{name}"] == (None if expected is None else pytest.approx(expected, rel=5e-6))
        assert value["perplexity/end"] == pytest.approx(PRIMARY.of(run), rel=5e-6)
        gaps = told["curves"][0]["gaps"][TASKS.index("c4")]
        stretch = next(stretch for stretch in table.stretches if stretch.task == "c4")
        if gaps is None:
            assert stretch not in table.past(table.steps[-1])
            continue
        for step, gap in zip(table.steps, gaps, strict=True):
            rise = math.log(table.scores[step]["c4"] / table.scores[stretch.end]["c4"])
            assert gap == (pytest.approx(rise, rel=1e-4, abs=1e-12) if step >= stretch.end else None)


def test_becoming_better_is_drawn_below_zero(page: Path) -> None:
    (run,) = [run for run in embedded(page)["runs"] if run["name"] == "better"]
    assert min(value for value in run["curves"][0]["gap"] if value is not None) < -0.1
    assert run["curves"][0]["gaps"][0][-1] < -0.1


def test_intervals_are_over_seeds_also_where_orders_are_averaged(page: Path, evidence: Evidence) -> None:
    data = embedded(page)
    at = columns(data).index("perplexity/end")
    arm = evidence.arm("TRC²")
    assert arm is not None
    known = arm_of(data, "TRC²")["intervals"]

    def as_told(interval: Interval) -> list[Any]:
        return [*(number(value, 6) for value in (interval.mean, interval.low, interval.high)), interval.n]

    seeds = mean_interval(PRIMARY.of(run) for run in arm.in_order(TASKS))
    assert known["0|all"][at] == as_told(seeds)
    assert seeds.n == 2
    whole = [PRIMARY.of(run) for run in arm.runs if run.config.train.seed == 0]
    assert len(whole) == 6
    assert known["all|all"][at] == [number(statistics.fmean(whole), 6), None, None, 1]  # six orders of one seed
    assert known["all|0"] == known["all|all"]
    assert "all|1" not in known  # it has one order
    bound = arm_of(data, "Transformer, joint")
    assert set(bound["intervals"]) == {"any|all", "any|0"}
    assert bound["intervals"]["any|all"][columns(data).index("perplexity/aufc")] is None


def test_lines_of_several_seeds_are_their_means(page: Path, evidence: Evidence) -> None:
    data = embedded(page)
    arm = evidence.arm("Mamba")
    assert arm is not None
    mean = arm_of(data, "Mamba")["means"]["0"][0]
    for place, step in enumerate(data["grids"][mean["grid"]]):
        logs = [math.log(run.score("perplexity", "wikitext", step)) for run in arm.runs]
        assert mean["scores"][1][place] == pytest.approx(math.exp(statistics.mean(logs)), rel=5e-5)
    assert "0" not in arm_of(data, "LoRA-DRS")["means"]


def test_a_broken_number_is_told_and_not_averaged_away(tmp_path: Path) -> None:
    for seed in (0, 1):
        invent_run(tmp_path / f"s{seed}", "lab_transformer", [f"train.seed={seed}"])
    diary = tmp_path / "s1" / "metrics.jsonl"
    lines = [json.loads(line) for line in diary.read_text().splitlines()]
    [line for line in lines if line["kind"] == "eval"][-1]["metrics"]["eval/c4/perplexity"] = "nan"
    diary.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = embedded(write_page(Evidence.of([tmp_path]), tmp_path / "page.html"))
    at = columns(data).index("perplexity/aufc")
    assert [run["values"][at] for run in data["runs"]] == [pytest.approx(0.26, abs=0.1), "NaN"]
    assert data["arms"][0]["intervals"]["0|all"][at] == ["NaN", None, None, 2]


def test_an_unfinished_run_is_listed_apart_and_counts_nowhere(page: Path) -> None:
    data = embedded(page)
    (half,) = data["unfinished"]
    assert (half["name"], half["title"], half["seed"], half["of"]) == ("half", "TRC²", 7, 620)
    assert 0 < half["step"] < half["of"]
    assert "half" not in [run["name"] for run in data["runs"]]
    assert 7 not in data["seeds"]


def test_a_task_that_was_not_learnt_is_marked(tmp_path: Path) -> None:
    folder = invent_run(tmp_path / "run", "lab_lora_drs", noise=0.0)
    text = (folder / "metrics.jsonl").read_text()
    flat = re.sub(r'("eval/gsm8k/perplexity": )[0-9.]+', r"\g<1>3000.0", text)
    (folder / "metrics.jsonl").write_text(flat)
    assert embedded(write_page(Evidence.of([folder]), tmp_path / "page.html"))["runs"][0]["unlearnt"] == ["gsm8k"]


def test_settings_that_differ_stand_apart_and_tell_no_place_on_the_machine(page: Path, lab: Path) -> None:
    data = embedded(page)
    common = dict(data["common"])
    assert common["train.batch_size"] == "16"
    assert common["stream.tasks.c4.steps"] == "250"
    for run in data["runs"]:
        own = dict(run["settings"])
        assert own["train.seed"] == str(run["seed"])
        assert not set(own) & set(common)
    assert str(lab) not in page.read_text("utf-8")


# ------------------------------------------------------------------------------------------------------- the file


def test_the_same_runs_give_the_same_bytes_wherever_they_lie(page: Path, lab: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "lab"
    shutil.copytree(lab, moved)
    assert write_page(Evidence.of([moved]), tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_the_page_asks_nobody_for_anything(page: Path) -> None:
    text = page.read_text("utf-8")
    assert set(re.findall(r"\w+://[^\s\"'<]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    for word in ("src=", "href=", "url(", "@import", "fetch(", "XMLHttpRequest", "WebSocket", "import(", "innerHTML"):
        assert word not in text, word
    (style,), (script,) = (re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S) for tag in ("style", "script"))
    assert f'content="{policy(style, script)}"' in text
    assert policy(style, script).startswith("default-src 'none'; style-src 'sha256-")


@pytest.mark.slow
def test_ninety_runs_are_less_than_two_megabytes(tmp_path: Path) -> None:
    evidence = Evidence.of([invent_matrix(tmp_path / "lab", seeds=range(5))])
    assert len(evidence.runs) >= 90
    assert write_page(evidence, tmp_path / "page.html").stat().st_size < 2_000_000


def test_every_family_has_its_colour_and_is_seen_on_dark_ground(page: Path) -> None:
    text, data = page.read_text("utf-8"), embedded(page)
    known = {title: (colour, marker) for title, colour, marker in FAMILIES.values()}
    for index, family in enumerate(data["families"]):
        assert (family["colour"], family["marker"]) == known[family["title"]]
        assert f".f{index} {{ --c: {family['colour']}; }}" in text
    for _, colour, _ in FAMILIES.values():
        assert contrast(on_dark(colour), DARK) >= MIN_CONTRAST
    assert on_dark("#000000") == "#FFFFFF"
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Names, titles and settings that try to be markup."""
    root = tmp_path / "lab" / "x<"
    for seed in (0, 1):
        folder = invent_run(root / f"script><img src=q onerror=alert({seed})>\"'", "lab_trc2", [f"train.seed={seed}"])
        config = folder / "config.yaml"
        config.write_text(config.read_text().replace("license: MIT", f"license: {json.dumps(EVIL)}"))
    invent_run(tmp_path / "lab" / "half<b>", "lab_trc2", ["train.seed=2"], ends=False)
    evidence = Evidence.of([tmp_path / "lab"])
    renamed = replace(evidence, arms=(replace(evidence.arms[0], title=EVIL),))
    return write_page(renamed, tmp_path / "page.html")


def test_hostile_names_stay_text(hostile: Path) -> None:
    text, data = hostile.read_text("utf-8"), embedded(hostile)
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert "{{" not in re.sub(r'<script id="data".*?</script>', "", text, flags=re.S).replace("${{", "")
    assert data["arms"][0]["title"] == EVIL.replace("\u202e", "\ufffd")
    assert EVIL.replace("\u202e", "\ufffd") in [value for _, value in data["common"]]
    assert data["runs"][0]["name"].startswith("x</script><img")


# ---------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium here: the page is not tried in a browser")
    return found


def open_page(browser: str, page: Path, profile: Path, width: int = 1280) -> tuple[str, dict[str, Any]]:
    """The page as the browser has it after looking at itself, and what it found."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=10000", f"--window-size={width},900", "--dump-dom", f"{page.as_uri()}#check"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    dom = done.stdout.decode()
    (found,) = re.findall(r'<pre id="self-check">(.*?)</pre>', dom, re.S)
    content: dict[str, Any] = json.loads(html.unescape(found))
    return dom, content


@pytest.fixture(scope="module")
def checked(browser: str, page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return open_page(browser, page, tmp_path_factory.mktemp("profile"))[1]


@pytest.mark.slow
def test_a_browser_draws_everything_without_an_error(checked: dict[str, Any], page: Path) -> None:
    data = embedded(page)
    assert checked["failures"] == []
    assert f"{len(data['runs'])} finished runs · {len(data['arms'])} arms · 2 seeds · 6 orders" in checked["facts"]
    shown = [run for run in data["runs"] if run["order"] == 0 or data["arms"][run["arm"]]["bound"]]
    arms = {run["arm"] for run in shown}
    charts = checked["first"]["charts"]
    drawn = [arm for arm in arms if data["arms"][arm]["title"] not in ("Transformer, joint", "Transformer, c4 only")]
    single = sum(1 for run in shown if run["arm"] in drawn and len([r for r in shown if r["arm"] == run["arm"]]) > 1)
    assert charts["overview"] == [len(drawn) + single]
    first = {
        run["arm"]: run for run in reversed(shown)
    }  # all runs of an arm in one order are measured at the same steps
    assert charts["curves"] == [sum(len(data["grids"][run["curves"][0]["grid"]]) for run in first.values())] * 3
    assert len(charts["forgetting"]) == 3
    assert charts["orders"] == [4 * 6] * 2
    assert checked["first"]["shown"].startswith(f"{len(shown)} of {len(data['runs'])} finished runs are shown")
    assert len(checked["unfinished"]) == 1


@pytest.mark.slow
def test_the_committed_page_of_the_lab_is_drawn_too(browser: str, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "results" / "lab" / "report.html"
    data, found = embedded(page), open_page(browser, page, tmp_path)[1]
    assert found["failures"] == []
    assert f"{len(data['runs'])} finished runs · {len(data['arms'])} arms" in found["facts"]
    assert min(found["first"]["charts"]["curves"]) > 100
    rows = {row[0].split(" | ")[-1].removesuffix(" †"): row for row in found["first"]["table"]}
    assert rows.keys() >= {"TRC²", "Transformer", "Transformer, joint"}
    for arm in data["arms"]:
        (mean, low, _, n), row = arm["intervals"]["any|all" if arm["bound"] else "0|all"][0], rows[arm["title"]]
        assert int(row[1]) == n
        assert float(row[2].split(" | ")[0]) == pytest.approx(mean, rel=1e-2 if low is not None else 1e-3)


@pytest.mark.slow
def test_the_table_in_the_browser_shows_the_recomputed_numbers(checked: dict[str, Any], evidence: Evidence) -> None:
    rows = {row[0].split(" | ")[-1]: row for row in checked["first"]["table"]}
    seen = 0
    for arm in evidence.arms:
        values = [PRIMARY.of(run) for run in arm.runs if arm.is_bound or run in arm.in_order(TASKS)]
        interval = mean_interval(values)
        row = rows[arm.title]
        assert row[1] == str(interval.n)
        if interval.is_known:
            mean, low, high = (written(value, interval) for value in (interval.mean, interval.low, interval.high))
            assert row[2] == f"{mean} | {low} to {high}"
            seen += 1
        else:
            assert float(row[2]) == pytest.approx(interval.mean, rel=1e-3)
    assert seen > 8


@pytest.mark.slow
def test_filters_sorting_pointer_and_keys_work(checked: dict[str, Any], page: Path) -> None:
    data = embedded(page)
    first = checked["first"]
    assert "BLEU" in checked["metric"]["heads"][2]
    assert checked["metric"]["table"] != first["table"]
    assert {row[1] for row in checked["seed"]["table"]} == {"1"}
    assert {row[1] for row in checked["order"]["table"]} == {
        "1",
        "–",
    }  # one seed has every order; some arms have one order only
    assert len(checked["without"]["table"]) == len(first["table"]) - 1

    means = {arm["title"]: arm["intervals"]["0|all"][0][0] for arm in data["arms"] if not arm["bound"]}
    titles = [row[0].split(" | ")[-1] for row in checked["sorted"]["table"]][: len(means)]
    assert [means[title] for title in titles] == sorted(means.values())
    assert "▲" in checked["sorted"]["heads"][2]
    titles = [row[0].split(" | ")[-1] for row in checked["reversed"]["table"]][: len(means)]
    assert [means[title] for title in titles] == sorted(means.values(), reverse=True)

    for how in ("row", "point", "key"):
        panel = checked[how]
        assert panel["open"], how
        assert panel["title"] in [arm["title"] for arm in data["arms"]]
        assert panel["charts"] >= 3
        differing, every = panel["settings"]
        assert len(every) == len(differing) + len(data["common"])
    assert checked["point"]["title"] in checked["tip"]
    assert checked["lit"] == 1
    assert checked["stops"] == 1
    assert checked["focus"].startswith(checked["key"]["title"])


@pytest.mark.slow
def test_hostile_names_do_nothing_in_a_browser(browser: str, hostile: Path, tmp_path: Path) -> None:
    dom, checked = open_page(browser, hostile, tmp_path / "profile")
    assert checked["failures"] == []
    assert "<img" not in dom
    assert checked["row"]["title"] == EVIL.replace("\u202e", "\ufffd")
    assert "x</script><img src=q" in checked["row"]["run"]
    assert "half<b>" in checked["unfinished"][0]


@pytest.mark.slow
def test_few_runs_many_tasks_and_bounds_alone_are_drawn_too(browser: str, tmp_path: Path) -> None:
    pages = {}
    for name, folder in (
        ("one task", write_run(tmp_path / "one", num_tasks=1)),
        ("many tasks", write_run(tmp_path / "many", num_tasks=14)),
        ("a bound", invent_run(tmp_path / "bound", "lab_single_c4")),
    ):
        page = write_page(Evidence.of([folder]), tmp_path / f"{folder.name}.html")
        pages[name] = open_page(browser, page, tmp_path / "profile")[1]
        assert pages[name]["failures"] == [], name
        assert len(pages[name]["first"]["table"]) == 1
        assert pages[name]["none"]["table"] == []
        assert sum(pages[name]["none"]["charts"]["curves"]) == 0
    assert len(pages["many tasks"]["first"]["charts"]["curves"]) == 14
    assert pages["one task"]["first"]["charts"]["forgetting"] == []


@pytest.mark.slow
def test_a_narrow_window_is_wide_enough(browser: str, page: Path, tmp_path: Path) -> None:
    """In a frame of 360 pixels, since a window of a browser without a screen cannot be so narrow."""
    frame = tmp_path / "frame.html"
    shutil.copy(page, tmp_path / "page.html")
    frame.write_text(
        '<!doctype html><iframe src="page.html#check" style="width:360px;height:800px"></iframe><pre id="self-check">'
        '</pre><script>addEventListener("load", () => setTimeout(() => {'
        'const inner = document.querySelector("iframe").contentDocument.getElementById("self-check");'
        'document.getElementById("self-check").textContent = inner.textContent; }, 1000));</script>'
    )
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--allow-file-access-from-files", "--virtual-time-budget=10000", "--dump-dom", frame.as_uri()]
    dom = subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()
    (found,) = re.findall(r'<pre id="self-check">(.*?)</pre>', dom, re.S)
    checked = json.loads(html.unescape(found))
    assert checked["failures"] == []
    assert checked["wide"] <= 0
