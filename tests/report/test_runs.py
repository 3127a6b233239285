"""Several runs as tables: variants, A/A repeats, means, differences, and which runs may stand beside each other."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.report.common import write_run
from tests.report.invented import invent_run, rewrite
from trc2.errors import UserError
from trc2.report.run import AUFC, final_score, own_score
from trc2.report.runs import RunTable, interval_of, read_runs
from trc2.runs.lineage import Lineage


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunTable:
    """TRC² with two seeds and an A/A repeat of each, and a Transformer with the same seeds."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        invent_run(root / f"trc2_s{seed}", "lab_trc2", [f"train.seed={seed}"], forgets=0.2)
        draws = [f"train.seed={seed}", f"model.replay_seed={seed + 100}"]
        invent_run(root / f"repeat_s{seed}", "lab_trc2", draws, forgets=0.3)
        invent_run(root / f"transformer_s{seed}", "lab_transformer", [f"train.seed={seed}"], forgets=0.6)
    return read_runs([root])


def test_every_run_is_a_row_and_an_aa_repeat_belongs_to_its_variant(small: RunTable) -> None:
    assert len(small.runs) == 6
    assert list(small.variants.index) == ["TRC²", "Transformer"]
    assert dict(small.variants.n) == {"TRC²": 2, "Transformer": 2}
    assert sorted(small.runs.draw[small.runs.variant == "TRC²"]) == [0, 0, 100, 100]


def test_scores_are_tidy(small: RunTable) -> None:
    row = small.scores.iloc[0]
    run = small.by_name[row.run]
    assert row.value == run.score(row.metric, row.task, row.step)
    assert set(small.scores.metric) == {"perplexity", "bleu", "token_accuracy"}


def test_aa_repeats_count_as_one_replicate_of_their_seed(small: RunTable) -> None:
    by_run = {name: AUFC.of(run) for name, run in small.by_name.items()}
    expected = {seed: (by_run[f"trc2_s{seed}"] + by_run[f"repeat_s{seed}"]) / 2 for seed in (0, 1)}  # type: ignore[operator]
    assert small.seeds(AUFC, "TRC²") == pytest.approx(expected)
    assert small.seeds(AUFC, "TRC²", repeats=False) == {seed: by_run[f"trc2_s{seed}"] for seed in (0, 1)}
    assert small.means(AUFC).n["TRC²"] == 2


def test_differences_are_reference_minus_variant_on_equal_seeds(small: RunTable) -> None:
    ours, theirs = small.seeds(AUFC, "TRC²"), small.seeds(AUFC, "Transformer")
    difference = small.differences(AUFC).loc["Transformer"]
    assert difference["mean"] == pytest.approx(sum(ours[seed] - theirs[seed] for seed in (0, 1)) / 2)
    assert difference["n"] == 2


def test_repeat_differences_pair_each_run_once(small: RunTable) -> None:
    differences = small.repeat_differences(AUFC)
    assert len(differences) == 2
    assert all(difference < 0 for difference in differences)  # the repeats forget more
    assert small.margin(AUFC) is not None


def test_a_log_interval_is_never_negative() -> None:
    interval = interval_of([1.0, 100.0, 3000.0], is_log=True)
    assert interval.mean == pytest.approx(3101 / 3)
    assert 0 < interval.low < interval.mean < interval.high
    assert interval_of([1.0, 100.0, 3000.0]).low < 0


def test_own_and_final_scores_are_read_at_the_boundaries(small: RunTable) -> None:
    run = small.by_name["trc2_s0"]
    first, end = run.spans[0].end, run.spans[-1].end
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


def test_a_copy_of_a_run_is_not_counted_as_a_seed(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    table = read_runs([tmp_path])
    assert list(table.variants.n) == [1, 1]
    assert table.runs.variant.nunique() == 2


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
    Lineage(str(parent), 20, ("task2",), True).write(child / "parent.json")
    table = read_runs([parent, child])
    assert table.tasks == ["task0", "task1"]
    assert table.all_tasks == ["task0", "task1", "task2"]
    assert len(table.runs.variant.unique()) == 2
    assert table.runs.parent["my+d"] == str(parent)


def test_names_of_a_matrix_are_the_names_of_variants(tmp_path: Path) -> None:
    for name, recipe in (("replay", "lab_trc2"), ("ewc", "lab_transformer")):
        run = invent_run(tmp_path / name, recipe)
        axes = {"recipe": "mine", "size": "", "ablation": "", "strategy": name}
        content = {"schema": 1, "matrix": "mine", "title": "does it help?", "axes": axes, "order": [], "seed": 0}
        (run / "variant.json").write_text(json.dumps(content))
    table = read_runs([tmp_path])
    assert set(table.variants.index) == {"replay", "ewc"}
    assert set(table.runs.matrix_title) == {"does it help?"}


# ------------------------------------------------------------------------------------------------------ variants


def test_runs_that_differ_in_seed_and_order_only_are_one_variant(tmp_path: Path) -> None:
    for seed in (0, 1):
        invent_run(tmp_path / f"s{seed}", "lab_trc2", ["model.memory=false", f"train.seed={seed}"])
    invent_run(tmp_path / "order", "lab_trc2", ["model.memory=false", "stream.order=[gsm8k,c4,wikitext]"])
    table = read_runs([tmp_path])
    assert set(table.runs.variant) == {"TRC² without memory"}
    assert table.order == "c4 → wikitext → gsm8k"
    assert table.orders == ["c4 → wikitext → gsm8k", "gsm8k → c4 → wikitext"]
    assert table.variants.n["TRC² without memory"] == 2  # in the main order


def test_variants_with_equal_titles_name_the_settings_they_differ_in(tmp_path: Path) -> None:
    invent_run(tmp_path / "a", "lab_transformer")
    invent_run(tmp_path / "b", "lab_transformer", ["train.learning_rate=0.004"])
    invent_run(tmp_path / "c", "lab_transformer", ["model.num_layers=4"])
    titles = set(read_runs([tmp_path]).variants.index)
    assert titles == {"Transformer d128-L10", "Transformer d128-L10 (learning_rate 0.004)", "Transformer d128-L4"}


def test_references_come_last_and_the_order_of_folders_does_not_matter(tmp_path: Path) -> None:
    invent_run(tmp_path / "a", "lab_joint", forgets=0.0)
    invent_run(tmp_path / "b", "lab_trc2")
    table = read_runs([tmp_path])
    assert list(table.variants.index) == ["TRC²", "Transformer, joint"]
    assert table.competitors == ["TRC²"]
    again = read_runs(sorted(tmp_path.iterdir(), reverse=True))
    assert list(again.variants.index) == list(table.variants.index)
    assert AUFC.of(table.by_name["a"]) is None  # joint training has nothing to forget


def test_the_final_loss_is_the_mean_log_perplexity_of_all_tasks(tmp_path: Path) -> None:
    invent_run(tmp_path / "keeps", "lab_transformer", forgets=0.0, noise=0.0)
    table = read_runs([tmp_path])
    assert table.means(table.final_loss)["mean"].iloc[0] == pytest.approx((5.7 + 5.2 + 3.9) / 3)


def test_an_unknown_reference_is_refused_with_a_suggestion(small: RunTable) -> None:
    with pytest.raises(UserError, match="did you mean 'Transformer'"):
        _ = RunTable(list(small.by_name.values()), "Transfomer").reference


# ------------------------------------------------------------------------------------------------------ comparability


def test_replay_by_a_share_pays_for_what_it_replayed(tmp_path: Path) -> None:
    """13 new rows and a share that is raised from 22 % to 28 % cost as much as 16 rows and the paper's replay."""
    invent_run(tmp_path / "paper", "lab_replay", ["model.replay_batch_size=4", "model.replay_chunk_length=64"])
    invent_run(tmp_path / "best", "lab_large_share")
    dear = ["control.mode=closed_loop", "model.replay_share=0.2222", "control.jump_gain=0.3", "train.batch_size=13"]
    steered = invent_run(tmp_path / "steered", "lab_large_share", dear)
    with pytest.raises(UserError, match="replay does not make up for it"):
        read_runs([tmp_path])

    def raise_share(metrics: dict[str, float], _: int) -> None:
        metrics["replay/share"] = 0.28

    rewrite(steered, raise_share, kind="train")
    assert len(read_runs([tmp_path]).variants) == 3


def test_work_that_is_equal_only_from_run_to_run_is_refused(tmp_path: Path) -> None:
    """21 rows and 22, 22 and 23, …: each is within 5 % of the next, the last is a third more than the first."""
    for seed, rows in enumerate(range(21, 29)):
        invent_run(tmp_path / f"{rows}", "lab_transformer", [f"train.batch_size={rows}", f"train.seed={seed}"])
    assert len(read_runs([tmp_path / str(rows) for rows in (21, 22)]).runs) == 2
    with pytest.raises(UserError, match=r"new tokens a step, .* and replay does not make up for it"):
        read_runs([tmp_path])


def test_unequal_lengths_that_no_setting_declares_are_refused(tmp_path: Path) -> None:
    invent_run(tmp_path / "long", "lab_trc2")
    invent_run(tmp_path / "short", "lab_transformer", ["stream.tasks.c4.steps=100"])
    with pytest.raises(UserError, match=r"other numbers of steps, and budget\.match does not say so"):
        read_runs([tmp_path])


def test_an_unfinished_run_is_listed_and_not_counted(tmp_path: Path) -> None:
    invent_run(tmp_path / "whole", "lab_transformer")
    half = invent_run(tmp_path / "half", "lab_transformer", ["train.seed=1"], ends=False)
    table = read_runs([tmp_path])
    assert list(table.runs.index) == ["whole"]
    assert table.unfinished == ["half"]
    with pytest.raises(UserError, match="None of the 1 runs has ended"):
        read_runs([half])
    with pytest.raises(UserError, match="is not a run folder and holds none"):
        read_runs([tmp_path / "nothing"])
