"""The paper's claims on invented runs whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from studies.paper.arithmetic import cosine, cost_of_wrong_tokens, last_phase, papers_reach
from studies.paper.builders import factorial_sides, shared_seeds
from studies.paper.claims import ROWS
from studies.paper.ledger import Claim, Ledger, Ruling, Scope, build_ledger
from studies.paper.numbers import ABLATIONS, baselines, ratio, variants
from studies.paper.roles import Roles
from tests.report.invented import TASKS, invent_run, rewrite
from trc2.config.model import PARTS
from trc2.report.runs import read_runs

WOBBLE = (0.01, -0.013, 0.006)  # of seeds


def add(
    root: Path, recipe: str, forgets: float, settings: Sequence[str] = (), *, wobble: Sequence[float] = WOBBLE,
    seeds: Sequence[int] = (0, 1, 2), name: str = "",
) -> list[Path]:  # fmt: skip
    """Runs of a configuration that forget a little more or less in each seed."""
    return [
        invent_run(
            root / f"{recipe}{name}_s{seed}", f"lab_{recipe}", [*settings, f"train.seed={seed}"],
            forgets=forgets + wobble[seed], noise=0.0,
        )
        for seed in seeds
    ]  # fmt: skip


def ledger_of(root: Path, *keys: str) -> Ledger:
    """The claims of some keys, which is faster than all of them."""
    chosen = [row for row in ROWS if not keys or row.key in keys]
    return build_ledger(chosen, Roles(read_runs([root])))


def claim(root: Path, key: str) -> Claim:
    return ledger_of(root, key).claim(key)


REPLAY = ["strategy=replay_controlled"]
OTHER = (0.004, -0.002, 0.005)


def test_every_key_is_declared_once_and_scopes_are_separate() -> None:
    keys = [row.key for row in ROWS]
    assert len(keys) == len(set(keys))
    assert {row.scope for row in ROWS} == set(Scope)
    for row in ROWS:
        assert row.key.startswith("open.") == (row.scope is Scope.ours), row.key


def test_replay_on_one_side_and_on_both_sides_are_two_claims(tmp_path: Path) -> None:
    add(tmp_path, "trc2", 0.2)
    add(tmp_path, "transformer", 0.6, wobble=OTHER)
    add(tmp_path, "transformer", 0.1, REPLAY, wobble=OTHER, name="_replay")
    found = ledger_of(tmp_path, "retention.area", "retention.area.one_sided")
    fair, one_sided = found.claim("retention.area"), found.claim("retention.area.one_sided")
    assert fair.ruling is Ruling.fails
    assert fair.row.scope is Scope.fair
    assert [f.outcome.value for f in one_sided.findings] == ["better"]
    assert one_sided.ruling is Ruling.undecided  # six baselines are missing
    assert "MoE" in one_sided.reason
    assert one_sided.findings[0].comparison.effect is not None
    assert fair.findings[0].comparison.effect is None  # the paper has no such comparison


def test_a_repeat_is_averaged_into_its_seed(tmp_path: Path) -> None:
    add(tmp_path, "trc2", 0.2)
    add(tmp_path, "trc2", 0.3, ["model.thalamus=false"], wobble=OTHER, name="_no_thalamus")
    (before,) = claim(tmp_path, "ablation.thalamus").findings
    for seed in range(3):
        repeat = [f"train.seed={seed}", f"model.replay_seed={1000 + seed}"]
        invent_run(tmp_path / f"repeat_s{seed}", "lab_trc2", repeat, forgets=0.4 + WOBBLE[seed], noise=0.0)
    (after,) = claim(tmp_path, "ablation.thalamus").findings
    assert before.difference.mean < 0 < after.difference.mean + 0.02
    assert after.difference.n == 3
    assert after.comparison.repeats == 3
    assert "3 A/A repeats" in after.n_text


def test_a_baseline_that_did_not_learn_is_not_counted_in_forgetting(tmp_path: Path) -> None:
    add(tmp_path, "trc2", 0.2)
    add(tmp_path, "mamba", 0.6, wobble=OTHER)
    for folder in add(tmp_path, "lora_drs", 0.0, wobble=OTHER):

        def freeze(metrics: dict[str, float], step: int) -> None:
            for task in TASKS:
                metrics[f"eval/{task}/perplexity"] = math.exp(7.2 if step else 7.25)

        rewrite(folder, freeze)
    found = claim(tmp_path, "retention.area.one_sided")
    counted = {f.comparison.second: f.comparison.counts for f in found.findings}
    assert counted == {"Mamba": True, "LoRA-DRS": False}
    loss = claim(tmp_path, "boundary.perplexity.one_sided")
    assert all(f.comparison.counts for f in loss.findings)  # scores of a task at hand still count


def test_the_effects_of_the_parts_come_from_all_eight_combinations(tmp_path: Path) -> None:
    worth = {"thalamus": 0.0, "memory": 0.1, "replay": 0.4}
    for number in range(8):
        missing = [part for place, part in enumerate(PARTS) if number >> place & 1]
        wobble = [0.004 * math.sin(5 * number + seed) for seed in range(3)]
        settings = [f"model.{part}=false" for part in missing]
        forgets = 0.2 + sum(worth[part] for part in missing)
        add(tmp_path, "trc2", forgets, settings, wobble=wobble, name=f"_{number}")
    found = ledger_of(tmp_path, *(f"open.{part}" for part in PARTS), "open.replay_most", "ablation.hippocampus")
    rulings = {part: found.claim(f"open.{part}").ruling for part in PARTS}
    assert rulings == {"thalamus": Ruling.same, "memory": Ruling.holds, "replay": Ruling.holds}
    assert found.claim("open.replay_most").ruling is Ruling.holds
    assert found.claim("ablation.hippocampus").ruling is Ruling.holds
    plus, minus = factorial_sides(found.roles, found.roles.table.final_loss, ["replay"])
    assert plus[0] - minus[0] == pytest.approx(-0.4 * 2 / 3, abs=0.05)  # two of three tasks are past


def write_log(folder: Path, surprise: float, keep: float, largest: float) -> None:
    def change(metrics: dict[str, float], step: int) -> None:
        metrics |= {"hippocampus/surprise_mean": surprise, "hippocampus/surprise_max": largest}
        metrics |= {"hippocampus/keep_fraction": keep, "hippocampus/raw_fraction": keep}

    rewrite(folder, change, "train")


def test_claims_about_writes_cannot_be_tested_where_surprise_is_at_its_clip(tmp_path: Path) -> None:
    folders = add(tmp_path, "trc2", 0.2)
    for folder in folders:
        write_log(folder, surprise=0.6, keep=0.25, largest=0.8)
    keys = ("writes.sparse", "writes.saturated")
    assert {c.ruling for c in ledger_of(tmp_path, *keys).claims} == {Ruling.holds}
    for folder in folders:
        write_log(folder, surprise=0.6, keep=1.0, largest=1.0)
    saturated = ledger_of(tmp_path, *keys)
    assert {c.ruling for c in saturated.claims} == {Ruling.untestable}
    assert "clip" in saturated.claims[0].reason


def test_costs_are_flops_and_ignore_measured_seconds(tmp_path: Path) -> None:
    add(tmp_path, "trc2", 0.2)
    for seed, folder in enumerate(add(tmp_path, "transformer", 0.3, REPLAY, wobble=OTHER)):

        def slow_down(metrics: dict[str, float], step: int, seed: int = seed) -> None:
            metrics["efficiency/tokens_per_second"] *= 10 + seed

        rewrite(folder, slow_down, "end")
    (found,) = claim(tmp_path, "cost.competitive").findings
    assert found.comparison.a == pytest.approx(dict.fromkeys(range(3), 1.0))


def test_an_order_in_which_trc2_is_worse_refutes_every_order(tmp_path: Path) -> None:
    order = [f"stream.order=[{','.join(reversed(TASKS))}]"]
    add(tmp_path, "trc2", 0.2)
    add(tmp_path, "transformer", 0.5, REPLAY, wobble=OTHER)
    add(tmp_path, "trc2", 0.8, order, name="_back")
    add(tmp_path, "transformer", 0.3, [*REPLAY, *order], wobble=OTHER, name="_back")
    found = ledger_of(tmp_path, "orders.every", "orders.mean")
    every = found.claim("orders.every")
    assert every.ruling is Ruling.fails
    assert "gsm8k → wikitext → c4" in every.reason
    (averaged,) = found.claim("orders.mean").findings
    assert averaged.difference.n == 3  # seeds, not runs


def test_the_comparable_baseline_rotates_as_trc2_does(tmp_path: Path) -> None:
    add(tmp_path, "trc2", 0.2)
    add(tmp_path, "transformer", 0.5, REPLAY, wobble=OTHER)
    add(tmp_path, "transformer", 0.4, [*REPLAY, "model.positions=rotary"], wobble=WOBBLE, name="_rotary")
    roles = Roles(read_runs([tmp_path]))
    assert roles.is_rotary(roles.baselines(replay=True)["transformer"])
    assert roles.panel[0] == roles.trc2


def test_one_seed_decides_nothing_and_missing_configurations_are_named(tmp_path: Path) -> None:
    add(tmp_path, "trc2", 0.2, seeds=[0])
    found = ledger_of(tmp_path)
    assert {c.ruling for c in found.claims} <= {Ruling.undecided, Ruling.untestable}
    assert "seven baselines" in found.claim("retention.area").reason
    assert "TRC² without thalamus" in found.claim("ablation.thalamus").reason
    assert "6 orders" in found.claim("orders.every").reason


def test_a_best_of_rivals_uses_the_seeds_that_all_have() -> None:
    ours, whole, part = {0: 1.0, 1: 2.0}, {0: 3.0, 1: 4.0, 2: 9.0}, {0: 5.0}
    assert shared_seeds(ours, [whole]) == {0: [3.0], 1: [4.0]}
    assert shared_seeds(ours, [whole, part]) == {0: [3.0, 5.0]}
    assert shared_seeds(ours, []) == {}


def test_the_printed_numbers_and_what_follows_from_them() -> None:
    assert len(baselines()) == 21
    assert len(variants()) == 5
    assert ratio("area_22k", "transformer") == pytest.approx(0.44 / 1.30)
    assert last_phase(ABLATIONS["full"].area_20k, ABLATIONS["full"].area_22k) == pytest.approx(1.065)
    assert cost_of_wrong_tokens(math.exp(5.0), 0.5) == pytest.approx(10.0)
    assert cosine(20_000, 22_000, 1_000) == pytest.approx(0.0222, abs=1e-4)
    assert [round(slots / writes) for _, slots, writes in papers_reach()] == [32, 28, 2]
