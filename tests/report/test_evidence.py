"""Runs become arms by their settings, and what does not belong together is never averaged."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
from pathlib import Path

import pytest

from tests.report.invented import TASKS, invent_matrix, invent_run
from trc2.errors import UserError
from trc2.report.evidence import AREA, PRIMARY, Evidence
from trc2.report.finished import check_comparable, gap_unit, read_run


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return invent_matrix(tmp_path_factory.mktemp("lab"), seeds=(0, 1))


def test_runs_that_differ_in_seed_and_order_only_are_one_arm(matrix: Path) -> None:
    evidence = Evidence.of([matrix])
    arms = {arm.title: arm for arm in evidence.arms}
    assert len(arms) == len(evidence.arms)
    assert [run.config.train.seed for run in arms["TRC² − memory"].runs] == [0, 1]
    assert len(arms["TRC²"].runs) == 2 + 5
    assert len(arms["TRC²"].in_order(TASKS)) == 2
    assert evidence.orders[0] == TASKS
    assert len(evidence.orders) == 6
    assert {"TRC² plain", "TRC² plain + controlled replay", "Transformer + EWC", "Transformer, joint"} <= set(arms)


def test_a_twin_with_other_replay_draws_is_an_arm_of_its_own(matrix: Path) -> None:
    twin = Evidence.of([matrix]).arm("TRC² (other replay draws)")
    assert twin is not None
    assert [run.config.train.seed for run in twin.runs] == [0, 1]


def test_a_twin_never_has_the_plain_name(tmp_path: Path) -> None:
    whole = invent_run(tmp_path / "whole", "lab_trc2")
    twins = [
        invent_run(tmp_path / f"a{seed}", "lab_trc2", [f"train.seed={seed}", f"model.replay_seed=100{seed}"])
        for seed in (0, 1)
    ]
    evidence = Evidence.of([*twins, whole])
    arm = evidence.arm("TRC²")
    assert arm is not None
    assert [run.folder for run in arm.runs] == [whole]
    assert len(evidence.arms) == 2


def test_bounds_come_last_and_the_order_of_folders_does_not_matter(matrix: Path) -> None:
    evidence = Evidence.of([matrix])
    assert [arm.is_bound for arm in evidence.arms] == sorted(arm.is_bound for arm in evidence.arms)
    again = Evidence.of(sorted(matrix.iterdir(), reverse=True))
    assert [arm.title for arm in again.arms] == [arm.title for arm in evidence.arms]


def test_the_primary_measure_rewards_learning_and_keeping(tmp_path: Path) -> None:
    keeps = invent_run(tmp_path / "keeps", "lab_transformer", forgets=0.0, noise=0.0)
    forgets = invent_run(tmp_path / "forgets", "lab_moe", forgets=0.5, noise=0.0)
    first, second = Evidence.of([keeps, forgets]).runs
    assert PRIMARY.of(first) == pytest.approx((5.7 + 5.2 + 3.9) / 3)
    assert PRIMARY.of(second) > PRIMARY.of(first)
    assert AREA.of(first) == pytest.approx(0.0, abs=1e-9)


def test_replay_by_a_share_is_called_by_it_and_pays_for_what_it_replayed(tmp_path: Path) -> None:
    """13 new rows and a share that is steered from 22 % to 28 % cost as much as 16 rows and the paper's replay."""
    invent_run(tmp_path / "paper", "lab_replay")
    invent_run(tmp_path / "best", "lab_large_share")
    dear = ["control.mode=closed_loop", "model.replay_share=0.2222", "control.jump_gain=0.3", "train.batch_size=13"]
    steered = invent_run(tmp_path / "steered", "lab_large_share", dear)
    with pytest.raises(UserError, match="replay does not make up for it"):
        Evidence.of([tmp_path])
    records = [json.loads(line) for line in (steered / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        if record["kind"] == "train":
            record["metrics"]["replay/share"] = 0.28
    (steered / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert [arm.title for arm in Evidence.of([tmp_path]).arms] == [
        "TRC² plain + 44 % replay", "TRC² plain + controlled replay", "TRC² plain + steered 22 % replay + jump"
    ]  # fmt: skip


def test_what_may_be_reported_together_does_not_depend_on_names(tmp_path: Path) -> None:
    """16 new rows without replay and 18 belong together where there are 16 with replay, and only there."""
    bare = ["model.thalamus=false", "model.memory=false", "model.replay=false"]
    settings = {"replaying": [], "plain": bare, "joint": [*bare, "stream.mode=joint", "train.batch_size=18"]}
    made = {name: invent_run(tmp_path / name, "lab_trc2", overrides) for name, overrides in settings.items()}
    for order in itertools.permutations(made.values()):
        again = tmp_path / "again"
        for place, folder in enumerate(order):
            shutil.copytree(folder, again / str(place))
        assert len(Evidence.of([again]).runs) == 3
        shutil.rmtree(again)
    with pytest.raises(UserError, match=r"2304 new tokens a step, .*2048|2048 new tokens a step, .*2304"):
        Evidence.of([made["plain"], made["joint"]])
    for order in itertools.permutations(made.values()):
        check_comparable([read_run(folder) for folder in order])  # of runs that are named one by one


def test_work_that_is_equal_only_from_run_to_run_is_refused(tmp_path: Path) -> None:
    """21 rows and 22, 22 and 23, …: each within 5 % of the next, the last a third more than the first."""
    for seed, rows in enumerate(range(21, 29)):
        invent_run(tmp_path / f"{rows}", "lab_transformer", [f"train.batch_size={rows}", f"train.seed={seed}"])
    assert len(Evidence.of([tmp_path / str(rows) for rows in (21, 22)]).runs) == 2
    with pytest.raises(UserError, match=r"new tokens a step, .* and replay does not make up for it"):
        Evidence.of([tmp_path])


def test_the_plain_name_goes_to_what_is_most_like_the_others(tmp_path: Path) -> None:
    invent_run(tmp_path / "a", "lab_trc2", ["control.mode=fixed", "model.replay_coefficient=0.08"])
    invent_run(tmp_path / "b", "lab_trc2", ["control.mode=fixed"])
    invent_run(tmp_path / "c", "lab_trc2")
    titles = [arm.title for arm in Evidence.of([tmp_path]).arms]
    assert titles == ["TRC²", "TRC² (constant replay)", "TRC² (constant replay, λ=0.08)"]


def test_an_unfinished_run_counts_nowhere(tmp_path: Path) -> None:
    whole = invent_run(tmp_path / "whole", "lab_transformer")
    half = invent_run(tmp_path / "half", "lab_transformer", ["train.seed=1"], ends=False)
    evidence = Evidence.of([tmp_path])
    assert [run.folder for run in evidence.runs] == [whole]
    assert [run.folder for run in evidence.unfinished] == [half]
    with pytest.raises(UserError, match="None of the 1 runs has ended"):
        Evidence.of([half])


def test_the_same_run_twice_other_data_and_other_batches_are_refused(tmp_path: Path) -> None:
    run = invent_run(tmp_path / "run", "lab_transformer")
    shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(UserError, match="are the same run twice"):
        Evidence.of([tmp_path])
    (tmp_path / "copy" / "data.json").write_text((run / "data.json").read_text().replace("invented", "other"))
    with pytest.raises(UserError, match="trained on different data"):
        Evidence.of([tmp_path])
    wide = invent_run(tmp_path / "wide" / "run", "lab_transformer", ["train.batch_size=32"])
    with pytest.raises(UserError, match="tokens a step"):
        Evidence.of([run, wide])
    with pytest.raises(UserError, match="is no run folder and holds none"):
        Evidence.of([tmp_path / "nothing"])


def test_arms_that_read_alike_say_in_what_they_differ(tmp_path: Path) -> None:
    invent_run(tmp_path / "a", "lab_transformer")
    invent_run(tmp_path / "b", "lab_transformer", ["train.learning_rate=0.004"])
    invent_run(tmp_path / "c", "lab_transformer", ["model.num_layers=4"])
    titles = {arm.title for arm in Evidence.of([tmp_path]).arms}
    assert titles == {"Transformer d128-L10", "Transformer d128-L10 (learning_rate=0.004)", "Transformer d128-L4"}


def test_a_bound_that_had_nothing_to_forget_has_no_area(matrix: Path) -> None:
    joint = Evidence.of([matrix]).arm("Transformer, joint")
    assert joint is not None
    assert joint.is_bound
    assert math.isnan(AREA.of(joint.runs[0]))


def test_unequal_lengths_that_no_setting_declares_are_refused(tmp_path: Path) -> None:
    invent_run(tmp_path / "long", "lab_trc2")
    invent_run(tmp_path / "short", "lab_transformer", ["stream.tasks.c4.steps=100"])
    with pytest.raises(UserError, match=r"other numbers of steps, and budget\.match does not say so"):
        Evidence.of([tmp_path])


def test_gaps_are_shares_of_a_gain_only_where_there_is_one(tmp_path: Path) -> None:
    run = read_run(invent_run(tmp_path / "run", "lab_trc2"))
    assert [gap_unit([run], name) for name in ("perplexity", "bleu")] == ["nats", "share of the gain"]
    copies = dict(run.tables["bleu"].scores)
    copies[0] = dict.fromkeys(copies[0], 98.0)  # an untrained network that repeats its input
    table = dataclasses.replace(run.tables["bleu"], scores=copies)
    raw = dataclasses.replace(run, tables={**run.tables, "bleu": table})
    assert gap_unit([raw], "bleu") == "raw"
    assert gap_unit([run, raw], "bleu") == "share of the gain, else raw"
