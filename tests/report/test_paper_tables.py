"""Every table's numbers are those that a few lines compute from the diaries."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.report.common import write_run
from tests.report.invented import TASKS, invent_matrix, invent_run, rewrite
from tests.report.test_grid import assert_is_latex
from trc2.backbones.registry import build_model
from trc2.config import load_recipe
from trc2.nn.keyed import keyed_generator
from trc2.report.contrast_tables import (
    closed_table,
    effects_table,
    factorial_table,
    paired_area_table,
    paired_table,
    repetition,
)
from trc2.report.dossier import TABLES
from trc2.report.evidence import AREA, Evidence
from trc2.report.grid import Table
from trc2.report.paper_tables import ablation_table, area_table, boundary_table, budget_table, component_table
from trc2.report.scope import LeftOut, Scope

ENDS = {"c4": 250, "wikitext": 500, "gsm8k": 620}
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab, with a twin that differs a little and runs long enough to be sure of."""
    root = invent_matrix(tmp_path_factory.mktemp("lab"), SEEDS)
    for seed, change in zip(SEEDS, (1.01, 0.99, 1.02), strict=True):
        diary = root / f"trc2_twin_s{seed}" / "metrics.jsonl"
        records = [json.loads(line) for line in diary.read_text().splitlines()]
        for record in records:
            for name in record["metrics"]:
                if name.endswith("/perplexity"):
                    record["metrics"][name] *= change
        diary.write_text("".join(json.dumps(record) + "\n" for record in records))
    return root


@pytest.fixture(scope="module")
def scope(lab: Path) -> Scope:
    return Scope(Evidence.of([lab]))


# ------------------------------------------------------------------------------------------------- by hand


@cache
def evaluations(folder: Path) -> dict[int, dict[str, float]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["metrics"] for record in records if record["kind"] == "eval"}


def score(folder: Path, task: str, step: int, metric: str = "perplexity") -> float:
    return evaluations(folder)[step][f"eval/{task}/{metric}"]


def bill(folder: Path, name: str) -> float:
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return float(last["metrics"][f"efficiency/{name}"])


def area(folder: Path, step: int, metric: str) -> float:
    """AUFC by numpy: gaps to the boundary score, above 0, divided by the gain unless logarithmic; trapezoids."""
    past = [task for task in TASKS if ENDS[task] < step]
    values = []
    for task in past:
        steps = [s for s in sorted(evaluations(folder)) if ENDS[task] <= s <= step]
        scores = np.array([score(folder, task, s, metric) for s in steps])
        if metric == "perplexity":
            gaps = np.log(scores) - math.log(scores[0])
        else:
            gaps = (scores[0] - scores) / (scores[0] - score(folder, task, 0, metric))
        heights = np.maximum(gaps, 0)
        widths = np.diff(steps)
        values.append(float((widths * (heights[1:] + heights[:-1]) / 2).sum()) / (step - ENDS[TASKS[0]]))
    return float(np.mean(values))


def primary(folder: Path) -> float:
    return float(np.mean([math.log(score(folder, task, 620)) for task in TASKS]))


def seeds(lab: Path, name: str) -> list[Path]:
    return [lab / f"{name}_s{seed}" for seed in SEEDS]


def mean_and_half(values: list[float]) -> tuple[float, float]:
    spread = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return float(np.mean(values)), float(spread)


def cells(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.to_csv())))


def row_of(table: Table, title: str) -> dict[str, str]:
    (found,) = [row for row in cells(table) if next(iter(row.values())) == title]
    return found


def assert_cell(row: dict[str, str], column: str, folders: list[Path], of: Callable[[Path], float]) -> None:
    mean, half = mean_and_half([of(folder) for folder in folders])
    assert float(row[column]) == pytest.approx(mean, rel=1e-9)
    assert float(row[f"{column} ± 95 %"]) == pytest.approx(half, rel=1e-9, abs=1e-9)


# ------------------------------------------------------------------------------------------------- the tables


def test_boundary_scores_are_those_of_each_task_right_after_its_training(lab: Path, scope: Scope) -> None:
    table = boundary_table(scope)
    for title, name in (("TRC²", "trc2_true_true_true"), ("Mamba", "mamba_none")):
        row, folders = row_of(table, title), seeds(lab, name)
        for task, words in (("c4", "C4"), ("wikitext", "WikiText-2 raw"), ("gsm8k", "GSM8K")):
            assert_cell(row, f"PPL {words}", folders, lambda f, t=task: score(f, t, ENDS[t]))  # type: ignore[misc]
        assert_cell(row, "text score C4", folders, lambda f: score(f, "c4", 250, "bleu"))
        assert_cell(row, "text score GSM8K (%)", folders, lambda f: 100 * score(f, "gsm8k", 620, "token_accuracy"))
        assert_cell(row, "tokens/s", folders, lambda f: bill(f, "tokens_per_second_last"))
        assert_cell(row, "GB·h per device", folders, lambda f: bill(f, "gb_hours"))
    network = build_model(load_recipe("lab_mamba").model, keyed_generator("test"))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    row = row_of(table, "Mamba")
    assert (row["params"], row["d"], row["L"], row["n"]) == (str(parameters), "128", "9", "3")
    single = row_of(table, "Transformer, c4 only")
    assert single["PPL C4"]
    assert not single["PPL GSM8K"]


def test_areas_are_read_before_the_last_task_and_at_the_end(lab: Path, scope: Scope) -> None:
    row = row_of(area_table(scope), "TRC² plain")
    for metric, words in (("perplexity", "PPL"), ("bleu", "BLEU"), ("token_accuracy", "token accuracy")):
        for step in (500, 620):
            column = f"{words} AUFC step {step}"
            assert_cell(row, column, seeds(lab, "trc2_false_false_false"), lambda f, s=step, m=metric: area(f, s, m))  # type: ignore[misc]


def test_the_ablation_has_the_papers_four_rows_and_two_panels(lab: Path, scope: Scope) -> None:
    table = ablation_table(scope)
    rows = {(row["thalamus"], row["hippocampus"]): row for row in cells(table)}
    assert list(rows) == [("✓", "✓"), ("✓", "✗"), ("✗", "✓"), ("✗", "✗")]
    folders = seeds(lab, "trc2_false_true_true")
    assert_cell(rows["✗", "✓"], "Scores at the last step (620): PPL C4", folders, lambda f: score(f, "c4", 620))
    assert_cell(rows["✗", "✓"], "Retention (AUFC): PPL AUFC step 620", folders, lambda f: area(f, 620, "perplexity"))
    assert len(table.panels()) == 2


def test_the_factorial_has_eight_rows_and_effects_are_differences_of_means(lab: Path, scope: Scope) -> None:
    table = factorial_table(scope)
    assert len(table.rows) == 8
    words = "mean log-perplexity of all tasks at the end, nats"
    row = next(row for row in cells(table) if [row[p] for p in ("thalamus", "memory", "replay")] == ["✗", "✓", "✗"])
    assert_cell(row, words, seeds(lab, "trc2_false_true_false"), primary)

    effects = effects_table(scope)

    def effect(seed: int, of: Callable[[bool, bool, bool], float]) -> float:
        total = 0.0
        for parts in itertools.product((True, False), repeat=3):
            name = "_".join(str(part).lower() for part in parts)
            total += of(*parts) * primary(lab / f"trc2_{name}_s{seed}")
        return total / 4

    signs: dict[str, Callable[[bool, bool, bool], float]] = {
        "replay": lambda thalamus, memory, replay: 1 if replay else -1,
        "thalamus × memory": lambda thalamus, memory, replay: 1 if thalamus == memory else -1,
    }
    for title, sign in signs.items():
        mean, half = mean_and_half([effect(seed, sign) for seed in SEEDS])
        row = row_of(effects, title)
        assert float(row[words]) == pytest.approx(mean, abs=1e-12)
        assert float(row[f"{words} ± 95 %"]) == pytest.approx(half)


def test_paired_differences_have_the_p_values_of_scipy_corrected_by_holm(lab: Path, scope: Scope) -> None:
    table = paired_table(scope)
    ours = [primary(folder) for folder in seeds(lab, "trc2_true_true_true")]
    theirs = [primary(folder) for folder in seeds(lab, "trc2_true_true_false")]
    row = row_of(table, "TRC² − replay")
    assert float(row["TRC² minus it, nats"]) == pytest.approx(float(np.mean(np.subtract(ours, theirs))))
    assert float(row["p"]) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    known = sorted((float(r["p"]), float(r["p (Holm)"])) for r in cells(table) if r["p"])
    largest = 0.0
    for place, (p, corrected) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - place)))
        assert corrected == pytest.approx(largest)
    assert row["verdict"] == "better"
    assert "TRC² (other replay draws)" not in [r["against"] for r in cells(table)]
    assert row_of(table, "Transformer + EWC")["verdict"] == "undecided"  # one pair
    assert len(known) < len(cells(table))
    assert f"for the {len(known)} comparisons that have one (Holm)" in table.caption
    assert "what A/A twins" in table.caption
    assert "needs" not in paired_area_table(scope).caption


def test_the_closed_share_is_where_an_arm_lies_between_plain_and_joint(lab: Path, scope: Scope) -> None:
    plain = [primary(folder) for folder in seeds(lab, "transformer_none")]
    ours = [primary(folder) for folder in seeds(lab, "transformer_replay_controlled")]
    distance = np.mean(plain) - primary(lab / "joint")
    mean, half = mean_and_half([100 * (p - o) / distance for p, o in zip(plain, ours, strict=True)])
    row = row_of(closed_table(scope), "Transformer + controlled replay")
    assert float(row["closed (%)"]) == pytest.approx(mean)
    assert float(row["closed (%) ± 95 %"]) == pytest.approx(half)
    assert (row["from"], row["to"]) == ("Transformer", "Transformer, joint")
    shown = [next(iter(row.values())) for row in cells(closed_table(scope))]
    assert all(name.startswith("Transformer") for name in shown), "where another backbone's joint run ends says nothing"


def test_budget_and_shares_are_counted_from_the_models(scope: Scope) -> None:
    network = build_model(load_recipe("lab_trc2").model, keyed_generator("test"))
    row = row_of(budget_table(scope), "TRC² d128-L4")
    assert row["params"] == str(sum(parameter.numel() for parameter in network.parameters()))
    shares = row_of(component_table(scope), "TRC² d128-L4")
    parts: dict[str, int] = {}
    for name, modules in network.trunk.subsystems().items():
        members = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
        parts[name] = sum(p.numel() for p in members.values())
    whole = parts["columns"] + parts["hippocampus"] + parts["thalamus"]
    for name in ("columns", "hippocampus", "thalamus"):
        assert float(shares[f"parameters {name} (%)"]) == pytest.approx(100 * parts[name] / whole)


@pytest.mark.parametrize("make", [make for _, make in TABLES], ids=[title for title, _ in TABLES])
def test_every_table_is_latex_and_its_csv_is_rectangular(scope: Scope, make: Callable[[Scope], Table]) -> None:
    table = make(scope)
    assert_is_latex(table.to_latex())
    widths = {len(row) for row in csv.reader(io.StringIO(table.to_csv()))}
    assert len(widths) == 1
    assert table.caption.endswith(".")


# ------------------------------------------------------------------------------------------------- few runs, odd runs


def left_out(make: Callable[[Scope], Any], scope: Scope) -> str:
    with pytest.raises(LeftOut) as reason:
        make(scope)
    return str(reason.value)


def test_what_few_runs_cannot_fill_says_what_it_needs(tmp_path: Path) -> None:
    scope = Scope(Evidence.of([invent_run(tmp_path / "run", "lab_transformer")]))
    assert "with and without its thalamus" in left_out(ablation_table, scope)
    assert "with and without some of" in left_out(factorial_table, scope)
    assert "a second arm" in left_out(paired_table, scope)
    assert "needs a joint run" in left_out(closed_table, scope)
    assert "needs a run of TRC²" in left_out(component_table, scope)
    lone = Scope(Evidence.of([write_run(tmp_path / "lone", 1)]))
    assert "at least two tasks" in left_out(area_table, lone)
    assert boundary_table(lone).rows


def test_three_of_eight_combinations_have_no_effects(tmp_path: Path) -> None:
    for name in ("trc2", "plain", "memory"):
        invent_run(tmp_path / name, f"lab_{name}")
    scope = Scope(Evidence.of([tmp_path]))
    assert len(factorial_table(scope).rows) == 3
    assert left_out(effects_table, scope).endswith("there are 3")


def test_a_run_that_did_not_learn_is_marked(tmp_path: Path) -> None:
    write_run(tmp_path / "learns", 2)
    write_run(tmp_path / "frozen", 2, lambda step, task: 50.0)
    for name, seed in (("learns", 0), ("frozen", 1)):
        settings = tmp_path / name / "config.yaml"
        settings.write_text(settings.read_text().replace("seed: 0", f"seed: {seed}"))
    scope = Scope(Evidence.of([tmp_path]))
    (row,) = cells(boundary_table(scope))
    assert row["arm"].endswith(" †")
    assert "did not learn" in boundary_table(scope).caption


def test_a_broken_number_is_told_and_never_bold(tmp_path: Path) -> None:
    write_run(tmp_path / "broken", 3, lambda step, task: math.nan if step > 15 else 30.0 - step)
    table = area_table(Scope(Evidence.of([tmp_path])))
    assert "NaN" in table.to_markdown()
    assert "**NaN**" not in table.to_markdown()


def test_all_twins_set_the_margin_and_none_of_them_competes(tmp_path: Path) -> None:
    for seed in range(2):
        for name, recipe, more in (("trc2", "lab_trc2", []), ("t", "lab_transformer", ["strategy=replay_controlled"])):
            own = [*more, f"train.seed={seed}"]
            invent_run(tmp_path / f"{name}_s{seed}", recipe, own, forgets=0.2 + 0.01 * seed, noise=0.0)
            twin = [*own, f"model.replay_seed={100 + seed}"]
            invent_run(tmp_path / f"{name}_twin_s{seed}", recipe, twin, forgets=0.1 + 0.03 * seed, noise=0.0)
    scope = Scope(Evidence.of([tmp_path]))
    assert [arm.title for arm in scope.competitors] == ["TRC²", "Transformer + controlled replay"]
    assert len(repetition(scope, AREA)) == 4
    rows = {row["arm"]: row for row in cells(boundary_table(scope))}
    assert len(rows) == 4, "twins are shown"
    assert not any(row.is_bound for row in area_table(scope).rows)
    assert [row.is_bound for row in boundary_table(scope).rows].count(True) == 2


def test_what_learnt_nothing_is_not_set_in_bold_for_forgetting_nothing(tmp_path: Path) -> None:
    invent_run(tmp_path / "a", "lab_transformer", forgets=0.5)
    invent_run(tmp_path / "b", "lab_mamba", forgets=0.4)
    lazy = invent_run(tmp_path / "c", "lab_moe", forgets=0.0)
    rewrite(lazy, lambda metrics, _: metrics.update({f"eval/{task}/perplexity": 4000.0 for task in TASKS}))
    table = area_table(Scope(Evidence.of([tmp_path])))
    marked = {row.cells[0]: row.is_bound for row in table.rows}
    assert {str(name): bound for name, bound in marked.items()} == {"Transformer": False, "MoE †": True, "Mamba": False}
