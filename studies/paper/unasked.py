"""What the paper leaves open: how much of it is replay, alone or on any backbone, and how far joint training is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from studies.paper.casting import Cast, lesion_name, missing_baselines
from studies.paper.ledger import Claim, Contrast, Finding, Ruling, against, compare, judge, numbers, rule
from studies.paper.retention import just_learnt, needs_trc2, versus
from studies.paper.shuffles import orders_left_open
from trc2.report.contrast_tables import closed_shares, distance, unequal_steps
from trc2.report.evidence import AREA, PRIMARY, Arm, Measure
from trc2.report.finished import FinishedRun
from trc2.report.names import PARTS
from trc2.report.scope import Scope, joint_bound, plain_twin
from trc2.stats.equivalence import Verdict
from trc2.stats.intervals import Interval, mean_interval

NOT_THERE = "not in the paper"
SIDES = {  # arms of sign + and of sign −, by how many parts an effect is of
    1: ("with it", "without it"),
    2: ("with both or neither", "with one of them"),
    3: ("with all or one of them", "with two or none"),
}
COMBINATIONS = [tuple(c) for size in range(4) for c in itertools.combinations(PARTS, size)]  # of missing parts


def open_claims(cast: Cast) -> list[Claim]:
    return [*_factorial(cast), _replay_does_most(cast), _twin_with_replay(cast), _baselines_with_replay(cast),
            _keeping_with_replay(cast), _keeping_without(cast), *orders_left_open(cast), _control(cast),
            _learning(cast)]  # fmt: skip


# ---------------------------------------------------------------------------------------- thalamus × memory × replay


def effect(cast: Cast, measure: Measure, parts: Sequence[str]) -> Contrast | None:
    """Main effect of one part, or interaction of several: arms of sign + minus arms of sign −, means of four each.

    The sign of an arm is the product over `parts` of +1 where it has the part and −1 where it lacks it. Seeds that all
    eight arms have are used.
    """
    plus: list[dict[int, float]] = []
    minus: list[dict[int, float]] = []
    for missing in COMBINATIONS:
        arm = cast.lesion(*missing)
        if arm is None:
            return None
        lacks = sum(part in missing for part in parts)
        (minus if lacks % 2 else plus).append(cast.seeds(arm, measure))
    seeds = sorted(set.intersection(*[set(values) for values in plus + minus]))
    a, b = ({seed: sum(values[seed] for values in side) / len(side) for seed in seeds} for side in (plus, minus))
    name = " × ".join(parts)
    first, second = SIDES[len(parts)]
    about = f"{'effect of' if len(parts) == 1 else 'interaction'} {name} on {measure.title}"
    margin = cast.margin(measure)
    if margin is not None:
        # Means of four runs each repeat twice as closely as single ones, and an interaction of three parts is a quarter
        # of what a part's worth changes by.
        margin /= max(2, 2 ** (len(parts) - 1))
    return Contrast(about, first, second, a, b, measure.better, margin)


def _effects(cast: Cast, measure: Measure) -> list[Finding]:
    """All seven, corrected together."""
    known = [effect(cast, measure, parts) for size in (1, 2, 3) for parts in itertools.combinations(PARTS, size)]
    return compare([contrast for contrast in known if contrast is not None])


def _absent(cast: Cast) -> list[str]:
    absent = [lesion_name(*missing) for missing in COMBINATIONS if cast.lesion(*missing) is None]
    if len(absent) == len(COMBINATIONS):
        return ["runs of all eight combinations of thalamus, memory and replay"]
    return [f"runs of {', '.join(absent)}"] if absent else []


def _factorial(cast: Cast) -> list[Claim]:
    primary, area = _effects(cast, PRIMARY), _effects(cast, AREA)
    missing = _absent(cast)
    how = "2×2×2: mean of the four arms with it minus mean of the four without, by seed; Holm over all seven effects."
    claims = []
    for i, part in enumerate(PARTS):
        claim = rule(
            f"open.{part}", f"{part.capitalize()} helps over all tasks, averaged over presence of the other two parts",
            where=NOT_THERE, paper="thalamus and hippocampus only, retention only", how=how,
            findings=primary[i : i + 1], missing=missing,
        )  # fmt: skip
        claims.append(Claim(**{**vars(claim), "beside": tuple(area[i : i + 1])}))
    crossed = primary[len(PARTS) :]
    ruling, reason = _additive(crossed, missing)
    claims.append(
        Claim(
            "open.interactions", "The parts add up: none changes what another is worth", NOT_THERE, how,
            "not reported", ruling, reason, *numbers(crossed, ruling), tuple(crossed), tuple(area[len(PARTS) :]),
        )
    )  # fmt: skip
    return claims


def _additive(findings: Sequence[Finding], missing: Sequence[str]) -> tuple[Ruling, str]:
    """Here the claim is that nothing is there: an effect refutes it, only equivalence supports it."""
    if not findings:
        return judge(findings, missing)
    there = [f for f in findings if f.outcome in (Verdict.better, Verdict.worse)]
    if there:
        return Ruling.fails, "; ".join(f.contrast.about for f in there) + ": decided"
    if all(f.outcome is Verdict.equivalent for f in findings):
        return Ruling.holds, f"all {len(findings)} interactions are within the A/A margin"
    few = findings[0].difference.n
    return Ruling.undecided, f"n = {few}: no interaction found, and not all shown to be small"


def _replay_does_most(cast: Cast) -> Claim:
    gains = {part: effect(cast, PRIMARY, [part]) for part in PARTS}
    contrasts = []
    for part in ("thalamus", "memory"):
        replay, other = gains["replay"], gains[part]
        if replay is not None and other is not None:
            a, b = ({seed: c.a[seed] - c.b[seed] for seed in c.seeds} for c in (replay, other))
            contrasts.append(Contrast(f"main effect on {PRIMARY.title}", "replay", part, a, b))
    if gains["replay"] is not None:
        gain = {seed: gains["replay"].a[seed] - gains["replay"].b[seed] for seed in gains["replay"].seeds}
        contrasts.append(against(f"main effect on {PRIMARY.title}", "replay", gain, 0.0, "lower"))
    return rule(
        "open.replay_most", "Of the three parts, replay does most",
        where=NOT_THERE, paper="switched off only together with memory",
        how="Main effect of replay minus that of thalamus and of memory, by seed, and against 0.",
        contrasts=contrasts, missing=_absent(cast),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- replay elsewhere


def _twin_with_replay(cast: Cast) -> Claim:
    trc2, twin = cast.trc2, cast.lesion("thalamus", "memory")
    missing = needs_trc2(cast) + (["runs of TRC² plain + controlled replay"] if twin is None else [])
    pairs = [cast.contrast(m, trc2, twin) for m in (PRIMARY, AREA)] if trc2 is not None and twin is not None else []
    return rule(
        "open.twin_replay", "TRC² is better than its plain twin with the same controlled replay",
        where=NOT_THERE, paper="no such arm", how=f"{PRIMARY.title}: TRC² minus the twin, paired by seed.",
        contrasts=pairs[:1], beside=pairs[1:], missing=missing,
        notes=["What remains here is what thalamus and memory add once both sides replay."],
    )  # fmt: skip


def _baselines_with_replay(cast: Cast) -> Claim:
    rivals = cast.baselines(with_replay=True)
    notes = [] if cast.trc2 is None else [text for arm in rivals.values() if (text := _unequal(cast.trc2, arm))]
    return rule(
        "open.baselines_replay", "TRC² is better than every baseline with the same controlled replay",
        where=NOT_THERE, paper="baselines have no replay",
        how=f"{PRIMARY.title}: TRC² minus each baseline with controlled replay, at equal tokens, paired by seed.",
        contrasts=versus(cast, rivals, [PRIMARY]),
        missing=[*needs_trc2(cast), *missing_baselines(rivals, " with controlled replay")], notes=notes,
    )  # fmt: skip


def _keeping_with_replay(cast: Cast) -> Claim:
    rivals = cast.baselines(with_replay=True)
    return rule(
        "open.keeping_replay", "TRC² forgets less than every baseline with the same controlled replay",
        where=NOT_THERE, paper="baselines have no replay",
        how=f"{AREA.title}: TRC² minus each baseline with controlled replay, at equal tokens, paired by seed.",
        contrasts=versus(cast, rivals, [AREA]),
        missing=[*needs_trc2(cast), *missing_baselines(rivals, " with controlled replay")],
    )  # fmt: skip


def _keeping_without(cast: Cast) -> Claim:
    ours, rivals = cast.lesion("replay"), cast.baselines(with_replay=False)
    return rule(
        "open.keeping_backbone", "Without replay on either side TRC² forgets less than every baseline",
        where="section 1 wants continual learning in the architecture; not tested", paper="no such arm",
        how=f"{AREA.title}: TRC² without replay minus each baseline without replay, paired by seed.",
        contrasts=versus(cast, rivals, [AREA], ours) if ours else [],
        missing=[*([] if ours else [f"runs of {lesion_name('replay')}"]), *missing_baselines(rivals)],
    )  # fmt: skip


def _unequal(ours: Arm, theirs: Arm) -> str:
    """What is not equal between two arms that should be, in words; empty if all is."""
    ours_config, theirs_config = ours.runs[0].config, theirs.runs[0].config
    words = []
    if ours.runs[0].stretches[-1].end != theirs.runs[0].stretches[-1].end:
        words.append("steps")
    for name in ("replay_batch_size", "replay_chunk_length", "replay_coefficient", "replay_long_chunks"):
        if getattr(ours_config.model, name) != getattr(theirs_config.model, name):
            words.append(name.replace("_", " "))
    return f"{theirs.title} differs from {ours.title} in {', '.join(words)}." if words else ""


def _control(cast: Cast) -> Claim:
    constants = cast.constants
    missing = needs_trc2(cast) + ([] if constants else ["runs of TRC² with constant replay"])
    strength = _steered_strength(cast)
    if constants and not any(arm.runs[0].config.model.replay_coefficient >= strength for arm in constants.values()):
        missing.append(f"a constant with a coefficient of {strength:.3g}, the controller's mean after the first task")
    return rule(
        "open.control", "Controlled replay is better than constant replay",
        where="claimed by design in section 3.2, not tested", paper="no such arm",
        how=f"{PRIMARY.title}: TRC² with controlled minus with constant replay, paired by seed.",
        contrasts=versus(cast, constants, [PRIMARY]), beside=versus(cast, constants, [AREA]), missing=missing,
        notes=["More replay is not steering: only a constant no weaker than the controller was where there is "
               "something to forget tells them apart."],
    )  # fmt: skip


def _steered_strength(cast: Cast) -> float:
    """The mean weight of replay under control from the second task on, where there is something to forget."""
    runs = cast.runs(cast.trc2) if cast.trc2 is not None else []
    logged = [(run.stretches[0].end, zip(*run.series("train", "replay/coefficient"), strict=True)) for run in runs]
    values = [value for first, series in logged for step, value in series if step > first]
    return sum(values) / len(values) if values else 0.0


def _learning(cast: Cast) -> Claim:
    tasks = cast.evidence.tasks

    def of(run: FinishedRun) -> float:
        return sum(just_learnt("perplexity", task).of(run) for task in tasks) / len(tasks)

    measure = Measure("just_learnt", "mean log-perplexity of tasks just after their training", "lower", of, "nats")
    trc2, twin = cast.trc2, cast.lesion("thalamus", "memory")
    missing = needs_trc2(cast) + (["runs of TRC² plain + controlled replay"] if twin is None else [])
    return rule(
        "open.learning", "Thalamus and memory make TRC² learn the task at hand better",
        where="implied by section 4.2, not tested: lesions have no boundary scores", paper="not reported",
        how=f"{measure.title}: TRC² minus its plain twin with the same replay, paired by seed.",
        contrasts=[cast.contrast(measure, trc2, twin)] if trc2 is not None and twin is not None else [],
        missing=missing,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- joint training


@dataclass(frozen=True)
class Closed:
    """Which share of the distance from plain sequential to joint training an arm closes, over seeds."""

    arm: str
    share: Interval


@dataclass(frozen=True)
class Distance:
    """One backbone's scale from plain (0) to joint (1), and where its arms stand on it."""

    plain: str
    joint: str
    nats: float
    closed: tuple[Closed, ...]
    warning: str
    steps: str = ""  # how much text a step of both had, where that differs


def distances(cast: Cast) -> list[Distance]:
    """One for each joint arm whose backbone has a plain sequential arm; its numbers are those of the table `closed`."""
    scope, found = Scope(cast.evidence), []
    for joint in cast.joints:
        plain = plain_twin(scope, joint)
        if plain is None or joint_bound(scope, plain) is not joint:
            continue
        nats = distance(scope, plain, joint)
        arms = [arm for arm in scope.competitors if (arm.family, arm.size) == (joint.family, joint.size)]
        closed = [
            Closed(arm.title, mean_interval(shares))
            for arm in arms
            if arm is not plain and nats > 0 and (shares := [*closed_shares(scope, arm, plain, joint).values()])
        ]
        warning = _warning(joint.title, nats, closed)
        found.append(
            Distance(plain.title, joint.title, nats, tuple(closed), warning, unequal_steps(plain, joint))
        )  # fmt: skip
    return found


def _warning(joint: str, nats: float, closed: list[Closed]) -> str:
    if not nats > 0:
        return f"{joint} is no better than plain sequential training: it is no bound, and there are no shares."
    better = [entry.arm for entry in closed if entry.share.mean > 1]
    if better:
        more = f" and {len(better) - 3} more" if len(better) > 3 else ""
        return f"{joint} is no bound: {', '.join(better[:3])}{more} {'is' if len(better) == 1 else 'are'} better."
    return ""
