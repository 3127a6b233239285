"""Several runs as tables: variants, A/A repeats, means, differences, and which runs may stand beside each other."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.report.common import write_run
from tests.report.invented import invent_run
from trc2.errors import UserError
from trc2.report.measures import AUFC, SPEED, final_score, own_score
from trc2.report.runs import RunTable, interval_of, read_runs
from trc2.runs.ancestry import Ancestry


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> RunTable:
    """TRC² with two seeds and an A/A repeat of each, and a Transformer with the same seeds."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        invent_run(root / f"trc2_s{seed}", "lab_trc2", [f"train.seed={seed}"], forgets=0.2)
        draws = [f"train.seed={seed}", f"model.replay_seed={seed + 100}"]
        invent_run(root / f"repeat_s{seed}", "lab_trc2", draws, forgets=0.3)
        invent_run(root / f"transformer_s{seed}", "lab_transformer", [f"train.seed={seed}"], forgets=0.6)
    return read_runs([root])


def test_every_run_is_a_row_and_an_aa_repeat_belongs_to_its_variant(table: RunTable) -> None:
    assert len(table.runs) == 6
    assert list(table.variants.index) == ["TRC²", "Transformer"]
    assert dict(table.variants.n) == {"TRC²": 2, "Transformer": 2}
    assert sorted(table.runs.draw[table.runs.variant == "TRC²"]) == [0, 0, 100, 100]


def test_scores_are_tidy(table: RunTable) -> None:
    row = table.scores.iloc[0]
    run = table.by_name[row.run]
    assert row.value == run.score(row.metric, row.task, row.step)
    assert set(table.scores.metric) == {"perplexity", "bleu", "token_accuracy"}


def test_aa_repeats_count_as_one_replicate_of_their_seed(table: RunTable) -> None:
    by_run = {name: AUFC.of(run) for name, run in table.by_name.items()}
    expected = {seed: (by_run[f"trc2_s{seed}"] + by_run[f"repeat_s{seed}"]) / 2 for seed in (0, 1)}  # type: ignore[operator]
    assert table.seeds(AUFC, "TRC²") == pytest.approx(expected)
    assert table.seeds(AUFC, "TRC²", repeats=False) == {seed: by_run[f"trc2_s{seed}"] for seed in (0, 1)}
    assert table.means(AUFC).n["TRC²"] == 2


def test_differences_are_reference_minus_variant_on_equal_seeds(table: RunTable) -> None:
    ours, theirs = table.seeds(AUFC, "TRC²"), table.seeds(AUFC, "Transformer")
    difference = table.differences(AUFC).loc["Transformer"]
    assert difference["mean"] == pytest.approx(sum(ours[seed] - theirs[seed] for seed in (0, 1)) / 2)
    assert difference["n"] == 2


def test_repeat_differences_pair_each_run_once(table: RunTable) -> None:
    differences = table.repeat_differences(AUFC)
    assert len(differences) == 2
    assert all(difference < 0 for difference in differences)  # the repeats forget more
    assert table.margin(AUFC) is not None


def test_a_log_interval_is_never_negative() -> None:
    interval = interval_of([1.0, 100.0, 3000.0], is_log=True)
    assert interval.mean == pytest.approx(3101 / 3)
    assert 0 < interval.low < interval.mean < interval.high
    assert interval_of([1.0, 100.0, 3000.0]).low < 0


def test_a_speed_has_a_positive_interval(table: RunTable) -> None:
    assert (table.means(SPEED).low > 0).all()


def test_own_and_final_scores_are_read_at_the_boundaries(table: RunTable) -> None:
    run = table.by_name["trc2_s0"]
    first, end = run.stretches[0].end, run.stretches[-1].end
    assert own_score("c4")(run) == run.perplexity.scores[first]["c4"]
    assert final_score("c4")(run) == run.perplexity.scores[end]["c4"]
    assert own_score("nothing")(run) is None


def test_a_missing_number_is_left_out_and_a_broken_one_makes_the_mean_nan(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    write_run(tmp_path / "broken", perplexity=lambda step, index: math.nan if step == 20 else 30.0)
    config = tmp_path / "broken" / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1", 1))
    table = read_runs([tmp_path])
    assert math.isnan(table.means(table.final_loss)["mean"].iloc[0])


def test_one_run_given_twice_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    with pytest.raises(UserError, match="same run twice"):
        _ = read_runs([tmp_path]).runs


def test_runs_on_different_data_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    other = write_run(tmp_path / "b")
    data = json.loads((other / "data.json").read_text())
    (other / "data.json").write_text(json.dumps({**data, "fingerprint": "1" * 64}))
    with pytest.raises(UserError, match="different data"):
        read_runs([tmp_path])


def test_a_parent_may_stand_beside_its_child(tmp_path: Path) -> None:
    parent, child = write_run(tmp_path / "my"), write_run(tmp_path / "my+d", num_tasks=3)
    data = json.loads((child / "data.json").read_text())
    (child / "data.json").write_text(json.dumps({**data, "fingerprint": "1" * 64}))
    Ancestry(str(parent), 20, ("task2",), True).write(child / "parent.json")
    table = read_runs([parent, child])
    assert table.tasks == ["task0", "task1"]
    assert table.all_tasks == ["task0", "task1", "task2"]
    assert len(table.runs.variant.unique()) == 2
    assert table.runs.parent["my+d"] == str(parent)


def test_names_of_a_matrix_are_the_names_of_variants(tmp_path: Path) -> None:
    for name, recipe in (("replay", "lab_trc2"), ("ewc", "lab_transformer")):
        run = invent_run(tmp_path / name, recipe)
        axes = {"recipe": "mine", "size": "", "lesion": "", "strategy": name}
        content = {"schema": 1, "matrix": "mine", "title": "does it help?", "axes": axes, "order": [], "seed": 0}
        (run / "variant.json").write_text(json.dumps(content))
    table = read_runs([tmp_path])
    assert set(table.variants.index) == {"replay", "ewc"}
    assert set(table.runs.matrix_title) == {"does it help?"}
