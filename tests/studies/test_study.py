"""The study as a whole: tables, figures, missing parts and references, on a few invented runs."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from studies.paper.__main__ import main
from studies.paper.builders import main_effect
from studies.paper.figures import FIGURES
from studies.paper.figures.drawing import Subject, average, standard_deviation
from studies.paper.figures.orders import cells, shared_seeds
from studies.paper.figures.orders import shuffled as shuffled_runs
from studies.paper.roles import Roles
from studies.paper.study import find_verify, read_counts, write_study
from studies.paper.tables import TABLES
from tests.report.invented import TASKS, invent_run
from trc2.report.run import AUFC, own_score
from trc2.report.runs import read_runs
from trc2.report.tables import NotWritten
from trc2.system.plot_style import style

ROOT = Path(__file__).parents[2]
COUNTS = {"unigram": 1020.0, "bigram": 192.0, "trigram": 156.0}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TRC², two ablations, a baseline with and without replay, two orders, a joint run. Two seeds."""
    root = tmp_path_factory.mktemp("lab")
    kinds = {
        "trc2": ("lab_trc2", []),
        "no_thalamus": ("lab_trc2", ["model.thalamus=false"]),
        "no_hippocampus": ("lab_trc2", ["model.memory=false", "model.replay=false"]),
        "backbone": ("lab_trc2", ["model.thalamus=false", "model.memory=false", "model.replay=false"]),
        "transformer": ("lab_transformer", []),
        "transformer_replay": ("lab_transformer", ["strategy=replay_controlled"]),
    }
    for name, (recipe, settings) in kinds.items():
        for seed in (0, 1):
            invent_run(root / f"{name}_s{seed}", recipe, [*settings, f"train.seed={seed}"])
    back = f"stream.order=[{','.join(reversed(TASKS))}]"
    for name in ("trc2", "transformer_replay"):
        recipe, settings = kinds[name]
        invent_run(root / f"{name}_back", recipe, [*settings, back])
    joint = ["stream.mode=joint", *kinds["backbone"][1]]
    invent_run(root / "joint", "lab_trc2", joint, forgets=0.0)
    counts = {task: {"tokens": 1000, "own": COUNTS, "stream": COUNTS} for task in TASKS}
    (root / "counts.json").write_text(json.dumps({"schema": 1, "tasks": counts}))
    check = {"group": "A", "name": "eval forward", "claim": "", "measured": 0.0, "relation": "<=", "bound": 1e-9}
    report = {"model": "tiny", "num_parameters": 10, "seed": 0, "checks": [{**check, "passed": True}]}
    (root / "verify.json").write_text(json.dumps(report))
    return root


@pytest.fixture(scope="module")
def subject(lab: Path) -> Subject:
    return Subject(Roles(read_runs([lab])), read_counts([lab]), find_verify([lab]))


MISSING = {
    "Perplexity against size",
    "Text scores against size",
    "Scores by width",
    "Effects of thalamus, memory and replay",
}


def test_every_table_and_figure_is_made_or_says_what_it_needs(subject: Subject) -> None:
    left_out = {}
    for title, make in (*TABLES, *FIGURES):
        try:
            with style():
                made = make(subject)
        except NotWritten as reason:
            left_out[title] = str(reason)
        else:
            assert made.caption, title
    assert set(left_out) == MISSING
    assert "several sizes per family" in left_out["Perplexity against size"]


@pytest.mark.slow
def test_the_study_writes_its_parts_and_names_what_is_missing(lab: Path, tmp_path: Path) -> None:
    written = write_study([lab], tmp_path, dpi=20)
    names = {path.name for path in written.written}
    assert {"README.md", "claims.md", "claims.json", "boundary.csv", "learning_curves.png", "causality.png"} <= names
    assert set(written.left_out) == MISSING
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert all(reason in page for reason in ("several sizes per family", "all eight combinations"))
    titles = {title for title, _ in (*TABLES, *FIGURES)} - set(written.left_out)
    assert all(f"### {title}" in page for title in titles)
    claims = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert {entry["scope"] for entry in claims["claims"]} == {"claims of the paper, both sides alike in replay",
        "claims of the paper as the paper tests them, replay on one side only", "questions of our own"}  # fmt: skip


def test_the_boundary_table_has_the_means_of_the_runs_and_the_counts(subject: Subject, tmp_path: Path) -> None:
    make = dict(TABLES)["Task-boundary performance"]
    rows = {row["variant"]: row for row in csv.DictReader(make(subject).to_csv().splitlines())}
    runs = [run for run in subject.roles.table.by_name.values() if run.name.startswith("trc2_s")]
    by_hand = sum(own_score("c4")(run) or math.nan for run in runs) / 2
    assert float(rows["TRC²"]["C4 perplexity"]) == pytest.approx(by_hand)
    assert float(rows["counts, bigram"]["C4 perplexity"]) == 192.0
    assert float(rows["TRC²"]["n"]) == 2


def test_trc2_represents_its_family_and_baselines_replay_alike(subject: Subject) -> None:
    roles = subject.roles
    assert [roles.title(variant) for variant in roles.panel] == ["TRC²", "Transformer + controlled replay"]
    assert roles.joint["trc2"] is not None
    assert main_effect(roles, AUFC, "replay") == {}  # not all eight combinations are there


def test_orders_are_compared_on_the_seeds_that_all_orders_share(subject: Subject) -> None:
    variants, orders = shuffled_runs(subject)
    assert shared_seeds(subject.roles, variants, orders) == [0]
    table = cells(subject, AUFC, variants, orders)
    run = subject.roles.table.by_name["trc2_s0"]
    assert table[0][0] == pytest.approx(AUFC.of(run))


def test_a_mean_curve_uses_the_steps_that_all_runs_have() -> None:
    band = average([[(1, 1.0), (2, 4.0)], [(2, 6.0), (3, 7.0)]], standard_deviation)
    assert band is not None
    assert (band.steps, band.middle) == ([2], [5.0])
    assert band.high[0] - band.middle[0] == pytest.approx(math.sqrt(2))
    assert average([], standard_deviation) is None


def test_the_dynamics_figure_needs_only_runs_with_a_memory(tmp_path: Path) -> None:
    for seed in (0, 1):
        invent_run(tmp_path / f"memory_s{seed}", "lab_trc2", ["model.replay=false", f"train.seed={seed}"])
    alone = Subject(Roles(read_runs([tmp_path])))
    with style():
        figure = dict(FIGURES)["Surprise, threshold and writes"](alone)
    assert len(figure.panels) == 3
    assert "0.1–0.4" in figure.caption  # the paper's description


@pytest.mark.slow
def test_the_committed_study_of_the_lab_is_that_of_its_runs(tmp_path: Path) -> None:
    """Verdicts and every number of the tables."""
    lab = ROOT / "results" / "lab"
    written = write_study([lab], tmp_path, dpi=10)
    committed = lab / "paper"
    assert {path.relative_to(tmp_path) for path in written.written} == {
        path.relative_to(committed) for path in committed.rglob("*") if path.is_file()
    }
    verdicts = [
        [(claim["key"], claim["verdict"]) for claim in json.loads((folder / "claims.json").read_text())["claims"]]
        for folder in (tmp_path, committed)
    ]
    assert verdicts[0] == verdicts[1]
    for path in (path for path in written.written if path.suffix == ".csv"):
        ours, theirs = (numbers_in(folder / "tables" / path.name) for folder in (tmp_path, committed))
        assert ours == pytest.approx(theirs, rel=1e-9, nan_ok=True), path.name


def numbers_in(path: Path) -> list[float]:
    cells = [cell for row in csv.reader(path.read_text(encoding="utf-8").splitlines()) for cell in row]
    return [float(cell) for cell in cells if cell.replace(".", "", 1).replace("-", "", 2).replace("e", "", 1).isdigit()]


def test_a_folder_without_runs_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 2
