"""The ledger on invented runs whose truth is known, and its rules on invented numbers."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from studies.paper import Ruling, claims_of, write_claims
from studies.paper import paper as printed
from studies.paper.arithmetic import cosine, cost_of_wrong_tokens, last_phase, papers_reach, reach_of
from studies.paper.casting import Cast
from studies.paper.ledger import Claim, Contrast, against, compare, headline, rule
from studies.paper.retention import on_shared_seeds
from studies.paper.unasked import distances, effect
from tests.report.invented import LEARNT, TASKS, invent_matrix, invent_run, rewrite
from trc2.report.evidence import AREA, PRIMARY, Evidence
from trc2.report.finished import read_run
from trc2.report.names import PARTS

BASELINES = ("transformer", "moe", "mamba", "deepseek_moe", "blk_attn_res", "falcon", "lora_drs")
WOBBLE = (0.01, -0.013, 0.006)  # of seeds


def arm(
    root: Path, recipe: str, forgets: float, settings: Sequence[str] = (), *, wobble: Sequence[float] = WOBBLE,
    seeds: Sequence[int] = (0, 1, 2), name: str = "",
) -> list[Path]:  # fmt: skip
    """Repetitions that forget a little more or less; the wobble of an arm is its own."""
    return [
        invent_run(
            root / f"{recipe}{name}_s{seed}", f"lab_{recipe}", [*settings, f"train.seed={seed}"],
            forgets=forgets + wobble[seed], noise=0.0,
        )
        for seed in seeds
    ]  # fmt: skip


def lesion(root: Path, missing: Sequence[str], forgets: float, wobble: Sequence[float] = WOBBLE) -> list[Path]:
    settings = [f"model.{part}=false" for part in missing]
    return arm(root, "trc2", forgets, settings, wobble=wobble, name="_".join(["", *missing]))


def claim(root: Path, key: str) -> Claim:
    return claims_of(Evidence.of([root])).claim(key)


def family(root: Path, trc2: float, others: float) -> None:
    arm(root, "trc2", trc2)
    for i, name in enumerate(BASELINES):
        arm(root, name, others, wobble=[0.004 * math.sin(7 * i + seed) for seed in range(3)])


# ------------------------------------------------------------------------------------------------------------- rules

ONE = {0: 1.00, 1: 1.02, 2: 0.99}


def verdict(*contrasts: Contrast, missing: Sequence[str] = ()) -> Claim:
    return rule("key", "statement", where="here", how="so", paper="0", contrasts=contrasts, missing=missing)


def shifted(by: Sequence[float], **more: object) -> Contrast:
    """One side, and the other lower by so much."""
    known = {"is_one_of": True, **more}
    return Contrast("it", "first", "second", {s: ONE[s] - by[s] for s in ONE}, ONE, **known)  # type: ignore[arg-type]


CLEAR, UNCLEAR = (0.50, 0.51, 0.49), (0.02, -0.03, 0.01)


def test_a_clear_difference_decides_and_its_reverse_too() -> None:
    assert verdict(shifted(CLEAR)).ruling is Ruling.holds
    assert verdict(shifted(CLEAR, better="higher")).ruling is Ruling.fails
    assert verdict(shifted(UNCLEAR)).ruling is Ruling.undecided


def test_equal_is_said_only_within_a_margin() -> None:
    small = (0.001, -0.001, 0.0005)
    assert verdict(shifted(small)).ruling is Ruling.undecided
    equal = verdict(shifted(small, margin=0.05))
    assert equal.ruling is Ruling.same
    assert "equal within what A/A pairs differ by (±0.05)" in equal.reason
    assert verdict(shifted((0.2, -0.2, 0.1), margin=0.05)).ruling is Ruling.undecided


def test_every_comparison_must_be_decided_and_one_reverse_refutes() -> None:
    assert verdict(shifted(CLEAR), shifted((0.4, 0.41, 0.42))).ruling is Ruling.holds
    assert verdict(shifted(CLEAR), shifted(UNCLEAR)).ruling is Ruling.undecided
    assert verdict(shifted(CLEAR), shifted((-0.5, -0.51, -0.49))).ruling is Ruling.fails
    mixed = verdict(shifted(CLEAR), shifted((0.0, 0.001, -0.001), margin=0.05))
    assert mixed.ruling is Ruling.fails, "better than one, and no better than the other"
    assert mixed.reason.endswith("better in 1 of 2 comparisons")
    uncounted = shifted((-0.5, -0.51, -0.49), counts=False)
    assert verdict(shifted(CLEAR), uncounted).ruling is Ruling.holds, "one of several rivals"


def test_one_equivalence_among_many_refutes_only_after_correction() -> None:
    near = (0.004, -0.004, 0.001)  # within ±0.012 with p = 0.03, in one comparison
    assert verdict(shifted(near, margin=0.012)).ruling is Ruling.same
    many = verdict(shifted(near, margin=0.012), *[shifted(CLEAR, margin=0.012)] * 5)
    assert many.ruling is Ruling.undecided
    assert many.findings[0].outcome.value == "equivalent"
    assert many.reason == "not decided in 1 of 6 comparisons (n = 3, Holm p from 0.9); holds in the other 5"


def test_the_number_of_an_undecided_claim_is_one_that_is_open() -> None:
    found = verdict(shifted(CLEAR), shifted(UNCLEAR))
    assert found.brief.startswith("1.003 against 1.003"), found.brief


def test_who_is_not_counted_is_named() -> None:
    skipped = shifted(UNCLEAR, counts=False, remark="second did not learn c4")
    assert verdict(shifted(CLEAR), skipped).reason == "decided; not counted: it: first against second"
    alone = verdict(skipped)
    assert alone.ruling is Ruling.untestable
    assert alone.reason == "needs a comparison that counts (second did not learn c4)"
    assert alone.ours == alone.brief == "–", "what does not count is nobody's number"


def test_this_and_that_does_not_hold_by_this_alone() -> None:
    worse = shifted((-0.5, -0.51, -0.49), counts=False, remark="nothing was there")
    that = replace(worse, about="that")
    found = verdict(shifted(CLEAR), that)
    assert found.ruling is Ruling.undecided
    assert found.reason == (
        "holds in all 1 comparisons there are; needs all that it names to count; "
        "not counted: that: first against second"
    )
    assert verdict(shifted(UNCLEAR, better="higher"), shifted(CLEAR, better="higher"), that).ruling is Ruling.fails
    other = replace(worse, second="another lesion", is_one_of=False)
    assert verdict(shifted(CLEAR), other).ruling is Ruling.undecided, "no rival among others, but one that is named"


def test_a_lesion_that_was_not_learnt_leaves_claims_about_it_open(tmp_path: Path) -> None:
    family(tmp_path, trc2=0.2, others=0.6)
    lesion(tmp_path, ("memory",), 0.3, wobble=[0.004, 0.001, -0.005])
    lesion(tmp_path, ("memory", "replay"), 0.6, wobble=[0.004, 0.001, -0.005])
    lesion(tmp_path, PARTS, 0.65, wobble=[0.002, -0.001, 0.004])
    thalamus = lesion(tmp_path, ("thalamus",), 0.3, wobble=[-0.003, 0.001, 0.005])
    named = ("lesion.hippocampus", "lesion.pathways", "lesion.profile")
    before = claims_of(Evidence.of([tmp_path]))
    assert {key: before.claim(key).ruling for key in named} == dict.fromkeys(named, Ruling.holds)
    for folder in thalamus:

        def freeze(metrics: dict[str, float], step: int) -> None:
            for task in TASKS:
                metrics[f"eval/{task}/perplexity"] = math.exp(7.2 if step else 7.25)

        rewrite(folder, freeze)
    after = claims_of(Evidence.of([tmp_path]))
    assert {key: after.claim(key).ruling for key in named} == dict.fromkeys(named, Ruling.undecided)
    assert "needs all that it names to count; not counted: " in after.claim("lesion.pathways").reason


def test_a_value_that_all_seeds_share_lies_on_one_side_of_a_bound() -> None:
    full = dict.fromkeys(range(3), 1.0)
    assert verdict(against("share", "TRC²", full, 0.05, "lower")).ruling is Ruling.fails
    assert verdict(against("share", "TRC²", full, 0.05, "higher")).ruling is Ruling.holds
    assert verdict(against("share", "TRC²", full, 1.0, "higher")).ruling is Ruling.undecided
    assert verdict(against("share", "TRC²", {0: 1.0}, 0.05, "higher")).ruling is Ruling.undecided
    arms = Contrast("share", "TRC²", "MoE", full, dict.fromkeys(range(3), 0.5))
    assert verdict(arms).ruling is Ruling.undecided, "two arms that are rounded alike are no certainty"


def test_the_number_shown_is_one_of_the_first_measure() -> None:
    nats = shifted((0.01, 0.011, 0.009), scale="nats")
    points = shifted((-2.0, -2.1, -1.9), scale="bleu", counts=True)
    assert headline(compare([nats, points]), Ruling.undecided).contrast is nats
    assert headline(compare([nats, points]), Ruling.fails).contrast is points, "the one that refutes it"


def test_a_best_or_a_median_is_of_all_rivals_on_the_seeds_they_share() -> None:
    ours, whole, part = {0: 1.0, 1: 2.0}, {0: 3.0, 1: 4.0, 2: 9.0}, {0: 5.0}
    assert on_shared_seeds(ours, [whole]) == {0: [3.0], 1: [4.0]}
    assert on_shared_seeds(ours, [whole, part]) == {0: [3.0, 5.0]}
    assert on_shared_seeds(ours, [whole, {1: 1.0}, part]) == {}
    assert on_shared_seeds(ours, []) == {}


def test_a_baseline_with_one_seed_is_not_left_out_of_the_best(tmp_path: Path) -> None:
    family(tmp_path, trc2=0.2, others=0.6)
    for seed in (1, 2):
        shutil.rmtree(tmp_path / f"falcon_s{seed}")

    def master(metrics: dict[str, float], step: int) -> None:
        metrics["eval/gsm8k/perplexity"] *= math.exp(-1.0)  # far better there than all others and TRC²

    rewrite(tmp_path / "falcon_s0", master)
    found = claim(tmp_path, "boundary.separation")
    assert found.ruling is Ruling.undecided
    assert [finding.difference.n for finding in found.findings] == [1, 1, 1]
    assert found.findings[-1].difference.mean < 0  # the lead on the last task


def test_no_lead_is_no_largest_lead(tmp_path: Path) -> None:
    family(tmp_path, 0.2, 0.2)
    for folder in tmp_path.glob("trc2_s*"):

        def spoil(metrics: dict[str, float], step: int, seed: int = int(folder.name[-1])) -> None:
            for task, factor in (("c4", 1.5), ("wikitext", 1.4), ("gsm8k", 1.1)):
                metrics[f"eval/{task}/perplexity"] *= factor + 0.001 * seed

        rewrite(folder, spoil)
    assert claim(tmp_path, "boundary.separation").ruling is Ruling.fails


def test_what_is_missing_keeps_a_claim_from_holding_but_not_from_failing() -> None:
    partly = verdict(shifted(CLEAR), missing=["runs of Mamba"])
    assert partly.ruling is Ruling.undecided
    assert partly.reason == "holds in all 1 comparisons there are; needs runs of Mamba"
    assert verdict(shifted((-0.5, -0.51, -0.49)), missing=["runs of Mamba"]).ruling is Ruling.fails
    nothing = verdict(missing=["runs in several orders"])
    assert (nothing.ruling, nothing.reason, nothing.ours) == (Ruling.untestable, "needs runs in several orders", "–")
    apart = verdict(Contrast("it", "first", "second", {0: 1.0}, {1: 2.0}))
    assert apart.ruling is Ruling.untestable
    assert "equal seeds" in apart.reason


def test_one_pair_and_no_number_never_decide() -> None:
    alone = verdict(Contrast("it", "first", "second", {0: 1.0}, {0: 9.0}, margin=100.0))
    assert (alone.ruling, alone.reason) == (Ruling.undecided, "n = 1")
    assert "n = 1: no interval" in alone.ours
    for broken in (math.nan, math.inf):
        for a, b in (({**ONE, 1: broken}, ONE), (ONE, {**ONE, 1: broken})):
            for margin in (None, 0.05, math.nan):
                found = verdict(shifted(CLEAR), Contrast("it", "first", "second", a, b, margin=margin))
                assert found.ruling is Ruling.undecided


def test_holm_counts_all_comparisons_of_a_claim() -> None:
    weak = (0.30, 0.42, 0.24)  # decided alone, p = 0.03
    assert verdict(shifted(weak)).ruling is Ruling.holds
    assert verdict(shifted(weak), shifted(weak)).ruling is Ruling.undecided


def test_a_bound_is_a_side_like_any_other() -> None:
    below = verdict(against("fraction", "TRC²", {0: 0.21, 1: 0.25, 2: 0.23}, 0.4, "lower"))
    assert below.ruling is Ruling.holds
    assert below.brief.startswith("0.230 against 0.4: −0.170 (95 % CI ")


# -------------------------------------------------------------------------------------------------- invented matrices


def test_the_best_of_all_is_found_and_so_is_the_worst(tmp_path: Path) -> None:
    family(tmp_path / "good", trc2=0.2, others=0.6)
    family(tmp_path / "bad", trc2=0.6, others=0.2)
    for name, ruling in (("good", Ruling.holds), ("bad", Ruling.fails)):
        ledger = claims_of(Evidence.of([tmp_path / name]))
        for key in ("retention.area", "primary.baselines", "retention.second_boundary", "retention.throughout"):
            assert ledger.claim(key).ruling is ruling, key


def test_a_small_effect_in_noise_is_undecided(tmp_path: Path) -> None:
    arm(tmp_path, "trc2", 0.400, wobble=(0.03, -0.04, 0.01))
    for i, name in enumerate(BASELINES):
        arm(tmp_path, name, 0.405, wobble=[0.03 * math.sin(5 * i + seed) for seed in range(3)])
    found = claim(tmp_path, "retention.area")
    assert found.ruling is Ruling.undecided
    assert "n = 3" in found.reason


def test_twins_set_the_margin_within_which_arms_are_the_same(tmp_path: Path) -> None:
    arm(tmp_path, "trc2", 0.2)
    lesion(
        tmp_path, ("thalamus", "memory"), 0.2, wobble=[w + d for w, d in zip(WOBBLE, (0.001, -0.001, 0), strict=True)]
    )
    assert claim(tmp_path, "open.twin_replay").ruling is Ruling.undecided
    for seed, off in enumerate((0.04, -0.03, 0.05)):
        twin = [f"train.seed={seed}", f"model.replay_seed={1000 + seed}"]
        invent_run(tmp_path / f"twin{seed}", "lab_trc2", twin, forgets=0.2 + WOBBLE[seed] + off, noise=0.0)
    found = claim(tmp_path, "open.twin_replay")
    assert found.ruling is Ruling.same
    cast = Cast(Evidence.of([tmp_path]))
    margin = cast.margin(PRIMARY)
    assert margin is not None
    assert 0.01 < margin < 0.06
    assert cast.trc2 is not None
    assert cast.trc2.title == "TRC²"


def test_a_baseline_that_learnt_nothing_is_marked_and_not_counted(tmp_path: Path) -> None:
    family(tmp_path, trc2=0.2, others=0.6)
    for seed in range(3):

        def freeze(metrics: dict[str, float], step: int) -> None:
            for task in TASKS:
                metrics[f"eval/{task}/perplexity"] = math.exp(7.2 if step else 7.25)

        rewrite(tmp_path / f"lora_drs_s{seed}", freeze)
    found = claim(tmp_path, "retention.area")
    assert found.ruling is Ruling.holds
    marked = [f for f in found.findings if not f.contrast.counts]
    assert [f.contrast.second for f in marked] == ["LoRA-DRS"]
    assert marked[0].difference.mean > 0
    assert "did not learn c4, wikitext, gsm8k" in marked[0].contrast.remark
    write_claims(Evidence.of([tmp_path]), tmp_path / "out")
    assert "LoRA-DRS did not learn c4, wikitext, gsm8k." in (tmp_path / "out" / "claims.md").read_text()


def test_a_broken_run_never_lets_a_claim_hold(tmp_path: Path) -> None:
    family(tmp_path, trc2=0.2, others=0.6)

    def destroy(metrics: dict[str, float], step: int) -> None:
        if step >= 250:
            metrics.update({f"eval/{task}/perplexity": math.nan for task in TASKS})

    rewrite(tmp_path / "mamba_s1", destroy)
    evidence = Evidence.of([tmp_path])
    ledger = claims_of(evidence)
    touched = ("retention.area", "primary.baselines", "retention.throughout", "boundary.perplexity")
    assert {ledger.claim(key).ruling for key in touched} == {Ruling.undecided}
    data = json.loads(write_claims(evidence, tmp_path / "out")[1].read_text())
    assert [c["verdict"] for c in data["claims"] if c["key"] == "retention.area"] == ["undecided"]


def test_the_three_parts_have_their_effects(tmp_path: Path) -> None:
    for i, missing in enumerate(m for size in range(4) for m in itertools.combinations(PARTS, size)):
        forgets = 0.6 - 0.4 * ("replay" not in missing) - 0.06 * ("memory" not in missing)
        lesion(tmp_path, missing, forgets, wobble=[0.003 * math.sin(3 * i + 2 * seed) for seed in range(3)])
    ledger = claims_of(Evidence.of([tmp_path]))
    rulings = {part: ledger.claim(f"open.{part}").ruling for part in PARTS}
    assert rulings == {"thalamus": Ruling.undecided, "memory": Ruling.holds, "replay": Ruling.holds}
    assert ledger.claim("open.replay_most").ruling is Ruling.holds
    assert ledger.claim("open.interactions").ruling is Ruling.undecided
    assert ledger.claim("lesion.hippocampus").ruling is Ruling.holds
    contrast = effect(ledger.cast, PRIMARY, ["replay"])
    assert contrast is not None
    by_hand = {}
    for seed in range(3):
        values = {a.lesions: ledger.cast.seeds(a, PRIMARY)[seed] for a in ledger.cast.candidates}
        with_it = [v for m, v in values.items() if "replay" not in m]
        by_hand[seed] = sum(with_it) / 4 - (sum(values.values()) - sum(with_it)) / 4
    assert {s: contrast.a[s] - contrast.b[s] for s in range(3)} == pytest.approx(by_hand)
    pair = effect(ledger.cast, PRIMARY, ["memory", "replay"])
    assert pair is not None
    assert contrast.margin is pair.margin is None  # without twins
    assert abs(pair.a[0] - pair.b[0]) < 0.01
    for seed, off in enumerate((0.04, -0.03, 0.05)):
        twin = [f"train.seed={seed}", f"model.replay_seed={1000 + seed}"]
        invent_run(tmp_path / f"twin{seed}", "lab_trc2", twin, forgets=0.14 + off, noise=0.0)
    cast = Cast(Evidence.of([tmp_path]))
    margins = {parts: effect(cast, PRIMARY, parts) for parts in (("replay",), ("memory", "replay"), PARTS)}
    whole = cast.margin(PRIMARY)
    assert whole is not None
    # Means of four runs repeat twice as closely as one; the three parts' interaction is counted in quarters.
    assert [m.margin for m in margins.values() if m] == pytest.approx([whole / 2, whole / 2, whole / 4])


def test_the_last_task_is_the_lesions(tmp_path: Path) -> None:
    lesion(tmp_path, (), 0.2)
    for missing in (("memory", "replay"), PARTS):
        for i, folder in enumerate(lesion(tmp_path, missing, 0.6)):

            def improve(metrics: dict[str, float], step: int, by: float = 0.5 + 0.01 * i) -> None:
                metrics["eval/gsm8k/perplexity"] *= math.exp(-by)
                metrics["eval/gsm8k/token_accuracy"] *= math.exp(by / 3)

            rewrite(folder, improve)
    assert claim(tmp_path, "lesion.last_task").ruling is Ruling.holds


def test_inside_a_run_claims_follow_the_records(tmp_path: Path) -> None:
    for seed, folder in enumerate(arm(tmp_path, "trc2", 0.2)):

        def wobble(metrics: dict[str, float], step: int, seed: int = seed) -> None:
            for name in ("train/loss_td", "hippocampus/surprise_mean", "hippocampus/threshold"):
                metrics[name] *= 1 + 0.01 * seed * math.sin(step)
            for name in ("hippocampus/keep_fraction", "hippocampus/raw_fraction"):
                metrics[name] = 0.25 + 0.01 * seed

        rewrite(folder, wobble, "train")
    ledger = claims_of(Evidence.of([tmp_path]))
    for key in ("writes.sparse", "surprise.switches", "surprise.relaxes", "critic.falls", "replay.loss"):
        assert ledger.claim(key).ruling is Ruling.holds, (key, ledger.claim(key).ours)
    assert ledger.claim("critic.decades").ruling is Ruling.fails


def test_a_threshold_that_averages_a_constant_shows_nothing(tmp_path: Path) -> None:
    for seed, folder in enumerate(arm(tmp_path, "trc2", 0.2)):

        def clip(metrics: dict[str, float], step: int, seed: int = seed) -> None:
            metrics["hippocampus/threshold"] = 1 - 0.99**step
            metrics["hippocampus/surprise_mean"] *= 1 + 0.01 * seed
            metrics["hippocampus/keep_fraction"] = metrics["hippocampus/raw_fraction"] = 1.0

        rewrite(folder, clip, "train")
    ledger = claims_of(Evidence.of([tmp_path]))
    for key in ("surprise.switches", "surprise.relaxes"):
        surprise, threshold = ledger.claim(key).findings
        assert surprise.contrast.counts
        assert not threshold.contrast.counts
        assert threshold.outcome.value == "worse", "its start-up would have decided the claim"
        assert surprise.outcome.value == "better"
        assert ledger.claim(key).ruling is Ruling.undecided, "“surprise and threshold” is not held by surprise alone"
        assert ledger.claim(key).reason.endswith(
            f"needs all that it names to count; not counted: {threshold.contrast.about}: TRC² against 0"
        )
    assert ledger.claim("writes.sparse").ruling is Ruling.fails


def test_the_critic_is_also_followed_from_its_peak(tmp_path: Path) -> None:
    for seed, folder in enumerate(arm(tmp_path, "trc2", 0.2)):

        def hump(metrics: dict[str, float], step: int, seed: int = seed) -> None:
            into = next(step - start for start in (500, 250, 0) if step > start)
            metrics["train/loss_td"] = 0.1 + 0.01 * seed * into / 250 + (0.9 if 40 < into <= 180 else 0.0)

        rewrite(folder, hump, "train")
    found = claim(tmp_path, "critic.falls")
    assert found.ruling is not Ruling.holds
    assert not found.beside, "the highest of many lies above the end of nearly any loss: no test can be made of it"
    (words,) = found.notes
    assert "it falls by c4 1 (seed 0), 0.96 (seed 1), 0.93 (seed 2)" in words


def test_text_that_gained_nothing_can_lose_nothing(tmp_path: Path) -> None:
    arm(tmp_path, "trc2", 0.2)
    for folder in arm(tmp_path, "transformer", 0.6):

        def echo(metrics: dict[str, float], step: int) -> None:
            for task in TASKS:
                metrics[f"eval/{task}/bleu"] = 98.0 if step == 0 else 0.2

        rewrite(folder, echo)
    ledger = claims_of(Evidence.of([tmp_path]))
    bleu = ledger.claim("retention.bleu_area")
    assert bleu.ruling is Ruling.untestable
    assert bleu.reason.startswith("needs a comparison that counts (BLEU gained nothing in Transformer")
    accuracy = ledger.claim("retention.accuracy_area")
    assert [finding.contrast.counts for finding in accuracy.findings] == [True]


def test_what_was_not_learnt_in_one_order_is_told_there_only(tmp_path: Path) -> None:
    arm(tmp_path, "trc2", 0.2)
    arm(tmp_path, "transformer", 0.6)
    reverse = ["stream.order=[gsm8k,wikitext,c4]"]
    arm(tmp_path, "trc2", 0.2, reverse, name="_reverse")
    for folder in arm(tmp_path, "transformer", 0.6, reverse, name="_reverse"):

        def freeze(metrics: dict[str, float], step: int) -> None:
            for task in TASKS:
                metrics[f"eval/{task}/perplexity"] = math.exp(7.2 if step else 7.25)

        rewrite(folder, freeze)
    ledger = claims_of(Evidence.of([tmp_path]))
    (listed,) = ledger.claim("retention.area").findings
    assert listed.contrast.counts
    every = {f.contrast.about: f.contrast.counts for f in ledger.claim("orders.every").findings}
    assert every == {"AUFC, c4 → wikitext → gsm8k": True, "AUFC, gsm8k → wikitext → c4": False}


def test_an_order_in_which_it_is_worse_refutes_every_order(tmp_path: Path) -> None:
    reverse = "stream.order=[gsm8k,wikitext,c4]"
    for name, listed, reversed_ in (("trc2", 0.2, 0.6), ("transformer", 0.5, 0.3)):
        off = [0.0, 0.0, 0.0] if name == "trc2" else [0.01, -0.006, 0.002]
        arm(tmp_path, name, listed, wobble=off)
        arm(tmp_path, name, reversed_, [reverse], wobble=off, name="_reverse")
    ledger = claims_of(Evidence.of([tmp_path]))
    found = ledger.claim("orders.every")
    assert found.ruling is Ruling.fails
    assert "gsm8k → wikitext → c4" in found.reason
    averaged = ledger.claim("orders.mean")
    assert averaged.ruling is not Ruling.holds
    assert averaged.findings[0].contrast.about.endswith("mean of 2 orders")
    assert averaged.findings[0].difference.n == 3  # seeds, not runs
    assert ledger.claim("orders.spread").ruling is Ruling.fails
    throughout = ledger.claim("orders.throughout")
    assert throughout.ruling is Ruling.fails
    assert "gsm8k → wikitext → c4" in throughout.reason
    assert "c4 → wikitext → gsm8k" not in throughout.reason


def test_boundaries_are_compared_in_every_order(tmp_path: Path) -> None:
    for name in ("trc2", "transformer"):
        for settings, suffix in ((), ""), (["stream.order=[gsm8k,wikitext,c4]"], "_reverse"):
            for seed, folder in enumerate(arm(tmp_path, name, 0.3, settings, name=suffix)):

                def shift(metrics: dict[str, float], step: int, by: float = 0.01 * seed, here: str = name) -> None:
                    if here == "trc2":  # learns c4 better, gsm8k worse, by a little more in each seed
                        metrics["eval/c4/perplexity"] *= math.exp(-0.3 - by)
                        metrics["eval/gsm8k/perplexity"] *= math.exp(0.3 + by)

                rewrite(folder, shift)
    found = claim(tmp_path, "orders.boundary")
    assert found.ruling is Ruling.fails
    outcomes = {finding.contrast.about: finding.outcome.value for finding in found.findings}
    for order in ("c4 → wikitext → gsm8k", "gsm8k → wikitext → c4"):
        assert outcomes[f"c4 log-perplexity just after its training, {order}"] == "better"
        assert outcomes[f"gsm8k log-perplexity just after its training, {order}"] == "worse"


def test_whether_orders_are_weathered_by_replay_or_by_the_backbone_is_asked(tmp_path: Path) -> None:
    other = [0.004, 0.001, -0.005]
    for settings, suffix in ((), ""), (["stream.order=[gsm8k,wikitext,c4]"], "_reverse"):
        arm(tmp_path, "trc2", 0.20, settings, name=suffix)
        arm(tmp_path, "trc2", 0.45, [*settings, "model.replay=false"], name=f"_no_replay{suffix}")
        arm(tmp_path, "transformer", 0.60, settings, wobble=other, name=suffix)
        arm(tmp_path, "transformer", 0.10, [*settings, "strategy=replay_controlled"], wobble=other,
            name=f"_replay{suffix}")  # fmt: skip
    ledger = claims_of(Evidence.of([tmp_path]))
    replaying, backbone = ledger.claim("open.orders_replay"), ledger.claim("open.orders_backbone")
    assert replaying.ruling is Ruling.fails
    assert replaying.findings[0].contrast.second == "Transformer + controlled replay"
    assert ledger.claim("open.keeping_replay").ruling is Ruling.fails, "in the listed order too"
    without = ledger.claim("open.keeping_backbone")
    assert [f.contrast.first for f in without.findings] == ["TRC² − replay"]
    assert without.reason.startswith("holds in all 1 comparisons there are; needs runs of MoE")
    assert backbone.findings[0].contrast.first == "TRC² − replay"
    assert backbone.ruling is Ruling.undecided
    assert backbone.reason.startswith("holds in all 1 comparisons there are; needs all 6 orders (there are 2)")
    assert "runs of MoE, Mamba" in backbone.reason
    assert [finding.contrast.about for finding in backbone.beside] == [f"{PRIMARY.title}, mean of 2 orders"]
    assert backbone.findings[0].contrast.margin is None
    for seed, off in enumerate((0.04, -0.03, 0.05)):
        twin = [f"train.seed={seed}", f"model.replay_seed={1000 + seed}"]
        invent_run(tmp_path / f"twin{seed}", "lab_trc2", twin, forgets=0.2 + off, noise=0.0)
    ledger = claims_of(Evidence.of([tmp_path]))
    whole = ledger.cast.margin(AREA)
    assert whole is not None
    averaged = ledger.claim("open.orders_backbone").findings[0].contrast.margin
    assert averaged == pytest.approx(whole / math.sqrt(2)), "means of two runs repeat that much more closely"


def test_steering_is_compared_with_constants_of_any_strength_and_with_nothing_else(tmp_path: Path) -> None:
    fixed = "control.mode=fixed"
    arm(tmp_path, "trc2", 0.20)
    arm(tmp_path, "trc2", 0.50, [fixed], wobble=[0.004, 0.001, -0.005], name="_weak")
    arm(tmp_path, "trc2", 0.10, [fixed, "model.replay_coefficient=0.082"], wobble=[0.0, 0.002, 0.0], name="_mean")
    arm(tmp_path, "trc2", 0.05, [fixed, "model.replay_share=0.4"], name="_share")
    arm(tmp_path, "trc2", 0.05, [fixed, "model.memory=false"], name="_lesioned")
    found = claim(tmp_path, "open.control")
    assert found.ruling is Ruling.fails
    shutil.rmtree(tmp_path / "trc2_mean_s0")
    for seed in (1, 2):
        shutil.rmtree(tmp_path / f"trc2_mean_s{seed}")
    weak = claim(tmp_path, "open.control")
    assert weak.ruling is Ruling.undecided, "better than a constant that is weaker is no steering"
    assert "holds in all 1 comparisons there are; needs a constant with a coefficient of 0.094" in weak.reason
    outcomes = {finding.contrast.second: finding.outcome.value for finding in found.findings}
    assert sorted(outcomes.values()) == ["better", "worse"]
    assert all("constant replay" in title for title in outcomes)


def test_a_joint_run_that_is_no_bound_is_warned_of(tmp_path: Path) -> None:
    arm(tmp_path, "transformer", 0.6)
    arm(tmp_path, "transformer", 0.3, ["strategy=replay_controlled"], name="_replay")
    joint = arm(tmp_path, "joint", 0.0, seeds=(0, 1))
    (distance,) = distances(Cast(Evidence.of([tmp_path])))
    assert distance.warning == ""
    (closed,) = distance.closed
    assert closed.share.n == 3  # of plain and arm; the distance counts as known
    assert closed.share.mean == pytest.approx(0.3 / 0.6, abs=0.05)
    for folder in joint:

        def spoil(metrics: dict[str, float], step: int) -> None:
            for task in TASKS:
                metrics[f"eval/{task}/perplexity"] *= math.exp(0.2)

        rewrite(folder, spoil)
    (distance,) = distances(Cast(Evidence.of([tmp_path])))
    assert distance.warning == "Transformer, joint is no bound: Transformer + controlled replay is better."


# ---------------------------------------------------------------------------------------------------- partial evidence


def test_one_seed_decides_nothing_and_missing_arms_are_named(tmp_path: Path) -> None:
    invent_run(tmp_path / "trc2", "lab_trc2")
    ledger = claims_of(Evidence.of([tmp_path]))
    assert {c.ruling for c in ledger.claims} == {Ruling.undecided, Ruling.untestable}
    assert ledger.claim("retention.area").reason == "needs runs of the seven baselines"
    assert "runs in several orders" in ledger.claim("orders.every").reason
    assert ledger.claim("lesion.thalamus").reason == "needs runs of TRC² − thalamus"
    assert ledger.claim("open.control").reason == "needs runs of TRC² with constant replay"
    assert ledger.claim("retention.area").ours == "–"
    invent_run(tmp_path / "transformer", "lab_transformer")
    shown = claim(tmp_path, "retention.area")
    assert shown.ruling is Ruling.undecided
    assert "n = 1: no interval" in shown.ours
    assert shown.reason.startswith("n = 1; needs runs of MoE")


def test_without_any_trc2_nothing_is_invented(tmp_path: Path) -> None:
    invent_run(tmp_path / "run", "lab_transformer")
    ledger = claims_of(Evidence.of([tmp_path]))
    assert {c.ruling for c in ledger.claims} == {Ruling.untestable}
    assert not [f for c in ledger.claims for f in (*c.findings, *c.beside)]
    assert {c.ours for c in ledger.claims} == {"–"}


def test_the_ledger_is_the_same_twice_and_valid_json(tmp_path: Path) -> None:
    runs = invent_matrix(tmp_path / "runs", seeds=(0, 1))
    first = write_claims(Evidence.of([runs]), tmp_path / "a")
    second = write_claims(Evidence.of(sorted(runs.iterdir(), reverse=True)), tmp_path / "b")
    assert [path.name for path in first] == ["claims.md", "claims.json"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    data = json.loads(first[1].read_text(), parse_constant=refuse)
    assert [c["number"] for c in data["claims"]] == list(range(1, len(data["claims"]) + 1))
    assert len({c["key"] for c in data["claims"]}) == len(data["claims"]) > 40
    assert {c["verdict"] for c in data["claims"]} <= {ruling.value for ruling in Ruling}
    text = first[0].read_text()
    assert text.index("## All claims") < text.index("## Rules") < text.index("## What arithmetic says")
    assert all(f" {c['statement']}" in text for c in data["claims"])
    assert str(tmp_path) not in text + first[1].read_text()


# ------------------------------------------------------------------------------------------------------------ the paper


def test_the_papers_numbers_are_those_it_prints() -> None:
    rows = {(row.family, row.d_model, row.depth): row for row in printed.ROWS}
    assert len(rows) == 26
    ours = rows["trc2", 768, 4]
    assert (ours.params_m, ours.c4, ours.wikitext, ours.gsm8k) == (226, 38.06, 21.73, 31.28)
    assert (ours.tokens_per_second, ours.gb_hours, ours.area_20k, ours.area_22k) == (103_000, 134, 0.63, 0.44)
    mamba = rows["mamba", 1024, 12]
    assert (mamba.gsm8k, mamba.gsm8k_accuracy, mamba.area_22k, mamba.bleu_area_20k) == (92_000, 44.01, 1.34, 1.50)
    transformer = rows["transformer", 512, 28]
    assert (transformer.c4_bleu, transformer.bleu_area_20k, transformer.bleu_area_22k) == (7.90, 2.21, 1.33)
    assert rows["falcon", 1024, 12].gsm8k == 12_900
    assert rows["blk_attn_res", 512, 28].accuracy_area_20k == 0.28
    neither = printed.LESIONS["neither"]
    assert (neither.c4, neither.wikitext, neither.gsm8k, neither.area_22k) == (2050.02, 550.08, 26.79, 0.78)
    assert printed.LESIONS["− thalamus"].tokens_per_second == 109_000
    assert printed.LESIONS["− hippocampus"].bleu_area_22k == 0.19
    assert printed.lead("area_22k") == "0.44–0.5, best baseline 1.07"


def test_the_arithmetic_by_hand(tmp_path: Path) -> None:
    assert papers_reach()[0][1].steps == 8192 / (128 * 2) == 32
    assert papers_reach()[0][1].total == 22_000
    assert last_phase(1.0, 1.0) == pytest.approx(3.5)  # 10 A₂₀ and 24 A₂₂ in thousands of steps
    assert cost_of_wrong_tokens(math.exp(3.0), 0.5) == pytest.approx(6.0)
    assert cosine(20_000, 22_000, 1_000) == pytest.approx(0.0222, abs=1e-4)
    run = read_run(invent_run(tmp_path / "run", "lab_trc2"))
    reach = reach_of(run)
    assert reach is not None
    later = [value for step, value in zip(*run.series("train", "hippocampus/writes"), strict=True) if step > 300]
    assert reach.steps == pytest.approx(1024 / (sum(later) / len(later)))
    assert reach_of(read_run(invent_run(tmp_path / "plain", "lab_transformer"))) is None


def test_the_measures_are_what_they_say(tmp_path: Path) -> None:
    run = read_run(invent_run(tmp_path / "run", "lab_trc2", forgets=0.0, noise=0.0))
    assert PRIMARY.of(run) == pytest.approx(sum(LEARNT.values()) / 3)
    assert AREA.of(run) == pytest.approx(0.0, abs=1e-9)
