"""What a claim is, and the rules by which runs decide it. The rules do not look at what a claim is about.

A claim is one or several comparisons "the first side is better than the second" on the same seeds:

    a comparison is decided the other way (Holm p < 0.05)                    → does not hold
    all comparisons are equivalent within the margin of relevance            → no relevant difference
    some are equivalent, also after Holm                                     → does not hold (for all)
    a comparison is open, or something that the claim names is missing       → undecided
    all are decided in favour of the first side                              → holds
    no comparison can be made                                                → not testable here

One seed has no p-value, so n = 1 decides nothing. If all of several seeds have the same value, that value decides
against a fixed bound. Where the paper prints an effect size, a second test asks whether the runs exclude that size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from studies.paper.roles import Roles
from trc2.stats.equivalence import ALPHA, Verdict, decide, tost
from trc2.stats.intervals import Interval
from trc2.stats.paired import PairedDifference, holm, paired_difference

Better = Literal["lower", "higher"]
LOSS_MARGIN, AREA_MARGIN = 0.05, 0.04  # nats. A tenth of what replay changes in the lab
DASH = "–"


class Ruling(str, Enum):
    """What the runs say about a claim."""

    holds = "holds"
    fails = "does not hold"
    same = "no relevant difference"
    undecided = "undecided"
    untestable = "not testable here"


class Scope(str, Enum):
    """Whose claim it is, and whether both sides of its comparisons replay alike."""

    fair = "claims of the paper, both sides alike in replay"
    one_sided = "claims of the paper as the paper tests them, replay on one side only"
    ours = "questions of our own"


@dataclass(frozen=True)
class Effect:
    """The paper's size of a difference: first − second, or first ÷ second."""

    size: float
    is_ratio: bool = True

    def of(self, first: float, second: float) -> float:
        """The same quantity of one seed, on a scale on which no effect is 0."""
        if not self.is_ratio:
            return first - second
        return math.log(first / second) if first > 0 and second > 0 else math.nan

    @property
    def scaled(self) -> float:
        return math.log(self.size) if self.is_ratio else self.size

    def text(self, scaled: float) -> str:
        return f"×{math.exp(scaled):.2f}" if self.is_ratio else f"{scaled:+.2f}".replace("-", "−")


@dataclass(frozen=True)
class Comparison:
    """Two sides by seed, of which the claim says that the first is better."""

    about: str
    first: str
    second: str
    a: Mapping[int, float]
    b: Mapping[int, float]
    better: Better = "lower"
    margin: float | None = None  # differences below it are irrelevant
    effect: Effect | None = None  # the paper's
    unit: str = ""
    remark: str = ""
    counts: bool = True
    is_bound: bool = False  # the second side is a fixed number
    is_one_of: bool = False  # one of several rivals: a claim about all may leave out one that cannot be counted
    repeats: int = 0  # A/A repeats that were averaged into both sides

    @property
    def seeds(self) -> list[int]:
        return sorted(self.a.keys() & self.b.keys())

    @property
    def sides(self) -> str:
        return f"{self.about}: {self.first} against {self.second}"


def number(value: float, interval: Interval) -> str:
    """A number with as many digits as its interval supports: two of the interval's half width."""
    half = (interval.high - interval.low) / 2
    if not math.isfinite(value):
        text = str(value)
    elif math.isfinite(half) and half > 0 and 1e-6 < half < 1e6 and abs(value) < 1e9:
        text = f"{value:.{max(0, 1 - math.floor(math.log10(half)))}f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-", "−")


@dataclass(frozen=True)
class Finding:
    """A comparison and what its pairs allow to say."""

    comparison: Comparison
    difference: PairedDifference
    outcome: Verdict
    p_equal: float = math.nan  # of equivalence, corrected over the claim
    p_effect: float = math.nan  # of the paper's effect size, corrected over the claim

    @property
    def means(self) -> tuple[float, float]:
        seeds = self.comparison.seeds
        first, second = ([side[seed] for seed in seeds] for side in (self.comparison.a, self.comparison.b))
        return math.fsum(first) / len(seeds), math.fsum(second) / len(seeds)

    @property
    def shortfall(self) -> float:
        """How far the first side is from being better. NaN counts as farthest."""
        mean = self.difference.mean if self.comparison.better == "lower" else -self.difference.mean
        return math.inf if math.isnan(mean) else mean

    @property
    def text(self) -> str:
        interval = self.difference.interval
        first, second = (number(mean, interval) for mean in self.means)
        versus = self.comparison.second if self.comparison.is_bound else f"{second} ({self.comparison.second})"
        sign = "+" if self.difference.mean > 0 else ""
        return f"{first} against {versus}: {sign}{number(self.difference.mean, interval)} ({self.interval_text})"

    @property
    def interval_text(self) -> str:
        interval = self.difference.interval
        if not interval.is_known:
            return "no interval"
        return f"95 % CI {number(interval.low, interval)} to {number(interval.high, interval)}"

    @property
    def n_text(self) -> str:
        seeds = self.comparison.seeds
        repeats = f", {self.comparison.repeats} A/A repeats" if self.comparison.repeats else ""
        return f"{len(seeds)} ({', '.join(map(str, seeds))}){repeats}"

    @property
    def effect_text(self) -> str:
        """Our effect beside the paper's, and whether the runs exclude the paper's."""
        effect = self.comparison.effect
        if effect is None:
            return DASH
        mean = _mean_effect(self.comparison, effect)
        sizes = f"{effect.text(mean)}, paper {effect.text(effect.scaled)}"
        if math.isnan(self.p_effect):
            return f"unknown ({sizes})"
        return f"{self.exclusion} ({sizes}, p = {self.p_effect:.2g})"

    @property
    def exclusion(self) -> str:
        """yes, ours is smaller / yes, ours is larger / no / – (no test)."""
        effect = self.comparison.effect
        if effect is None or math.isnan(self.p_effect):
            return DASH
        if not self.p_effect < ALPHA:
            return "no"
        sign = -1 if self.comparison.better == "lower" else 1
        is_smaller = sign * _mean_effect(self.comparison, effect) < sign * effect.scaled
        return f"yes, ours is {'smaller' if is_smaller else 'larger'}"

    def data(self) -> dict[str, Any]:
        c, d = self.comparison, self.difference
        return {
            "about": c.about, "first": c.first, "second": c.second, "better": c.better, "unit": c.unit,
            "first_by_seed": {str(seed): c.a[seed] for seed in c.seeds},
            "second_by_seed": {str(seed): c.b[seed] for seed in c.seeds},
            "difference": d.mean, "low": d.interval.low, "high": d.interval.high, "n": d.n, "repeats": c.repeats,
            "p": d.p, "p_holm": d.p_holm, "p_equal_holm": self.p_equal, "margin": c.margin,
            "paper_effect": None if c.effect is None else {"size": c.effect.size, "is_ratio": c.effect.is_ratio},
            "effect": None if c.effect is None else _mean_effect(c, c.effect), "p_effect_holm": self.p_effect,
            "paper_effect_excluded": self.exclusion, "outcome": self.outcome.value, "counts": c.counts,
            "remark": c.remark,
        }  # fmt: skip


def _effects(comparison: Comparison, effect: Effect) -> dict[int, float]:
    return {seed: effect.of(comparison.a[seed], comparison.b[seed]) for seed in comparison.seeds}


def _mean_effect(comparison: Comparison, effect: Effect) -> float:
    values = list(_effects(comparison, effect).values())
    return math.fsum(values) / len(values)


def against(
    about: str, values: Mapping[int, float], bound: float, better: Better, first: str = "TRC²", **more: Any
) -> Comparison:
    """The value of each seed against a fixed number."""
    bounds_ = dict.fromkeys(values, bound)
    return Comparison(about, first, f"{bound:g}", values, bounds_, better, is_bound=True, **more)


def compare(comparisons: Iterable[Comparison]) -> list[Finding]:
    """All comparisons of one claim, their p-values corrected together. Without a shared seed one is left out."""
    known = [(c, paired_difference({s: c.a[s] for s in c.seeds}, c.b)) for c in comparisons if c.seeds]
    counted = [(str(i), c, d) for i, (c, d) in enumerate(known) if c.counts]
    corrected = holm({key: d.p for key, _, d in counted})
    equal = holm({key: tost(d, c.margin) for key, c, d in counted if c.margin is not None})
    effects = holm({key: _p_of_effect(c, c.effect) for key, c, _ in counted if c.effect is not None})
    findings = []
    for i, (c, d) in enumerate(known):
        d = replace(d, p_holm=corrected.get(str(i), d.p))
        outcome = decide(d, c.margin, direction="min" if c.better == "lower" else "max")
        if outcome is Verdict.undecided:
            outcome = _one_value(c, d) or outcome
        findings.append(Finding(c, d, outcome, equal.get(str(i), math.nan), effects.get(str(i), math.nan)))
    return findings


def _p_of_effect(comparison: Comparison, effect: Effect) -> float:
    """Two-sided paired t-test of "the effect is what the paper prints"."""
    ours = _effects(comparison, effect)
    return paired_difference(ours, dict.fromkeys(ours, effect.scaled)).p


def _one_value(comparison: Comparison, difference: PairedDifference) -> Verdict | None:
    """Several seeds with the very same value, compared with a fixed number."""
    values = [comparison.a[seed] for seed in comparison.seeds]
    is_one = len(values) > 1 and all(map(math.isfinite, values)) and max(values) == min(values)
    if not comparison.is_bound or not is_one or difference.mean == 0:
        return None
    return Verdict.better if (difference.mean < 0) == (comparison.better == "lower") else Verdict.worse


# --------------------------------------------------------------------------------------------------------- claims


@dataclass(frozen=True)
class Compared:
    """What a claim's test compares: comparisons that decide, comparisons that are only shown, and what is missing."""

    comparisons: Sequence[Comparison] = ()
    missing: Sequence[str] = ()
    beside: Sequence[Comparison] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Row:
    """A claim as it is declared: whose it is, where it stands, what the paper prints, and its test."""

    key: str
    statement: str
    where: str
    paper: str
    how: str
    test: Callable[[Roles], Compared]
    group: str = ""
    scope: Scope = Scope.fair
    notes: tuple[str, ...] = ()
    is_absence: bool = False  # the claim is that there is no effect: only equivalence supports it


@dataclass(frozen=True)
class Claim:
    """A row with what the runs say."""

    row: Row
    ruling: Ruling
    reason: str
    findings: tuple[Finding, ...] = ()
    beside: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    number: int = 0

    @property
    def headline(self) -> Finding | None:
        """The comparison on which the verdict depends: one that refutes the claim, or the one nearest to doing so."""
        counted = [f for f in self.findings if f.comparison.counts]
        if not counted:
            return None
        deciding = {
            Ruling.fails: (Verdict.worse, Verdict.equivalent),
            Ruling.same: (Verdict.equivalent,),
            Ruling.undecided: (Verdict.undecided, Verdict.equivalent),
        }.get(self.ruling, ())
        among = next((some for v in deciding if (some := [f for f in counted if f.outcome is v])), counted)
        same_unit = [f for f in among if f.comparison.unit == among[0].comparison.unit]
        return max(same_unit, key=lambda finding: finding.shortfall)

    @property
    def verdict(self) -> str:
        counted = [f for f in self.findings if f.comparison.counts]
        is_single = self.ruling is Ruling.undecided and counted and all(f.difference.n == 1 for f in counted)
        return f"{self.ruling.value} (n = 1)" if is_single else self.ruling.value

    @property
    def effect_text(self) -> str:
        """Whether the paper's effect size is excluded, over all comparisons of the claim."""
        tested = [f for f in self.findings if f.comparison.counts and f.exclusion != DASH]
        if len(tested) < 2:
            return tested[0].effect_text if tested else DASH
        answers = {
            text: sum(f.exclusion == text for f in tested) for text in dict.fromkeys(f.exclusion for f in tested)
        }
        ranked = sorted(answers.items(), key=lambda answer: -answer[1])
        return "; ".join(f"{answer} ({count} of {len(tested)})" for answer, count in ranked)

    def data(self) -> dict[str, Any]:
        row = self.row
        return {
            "number": self.number, "key": row.key, "scope": row.scope.value, "group": row.group,
            "statement": row.statement, "where": row.where, "paper": row.paper, "how": row.how,
            "verdict": self.ruling.value, "reason": self.reason, "paper_effect_excluded": self.effect_text,
            "comparisons": [finding.data() for finding in self.findings],
            "beside": [finding.data() for finding in self.beside], "notes": list(self.notes),
        }  # fmt: skip


def decide_claim(row: Row, roles: Roles) -> Claim:
    """Run the test of a row and apply the rules."""
    test = row.test(roles)
    findings = compare(test.comparisons)
    missing = [*test.missing, *[f"equal seeds for {c.sides}" for c in test.comparisons if not c.seeds]]
    ruling, reason = (judge_absence if row.is_absence else judge)(findings, list(dict.fromkeys(missing)))
    return Claim(row, ruling, reason, tuple(findings), tuple(compare(test.beside)), (*row.notes, *test.notes))


def judge(findings: Sequence[Finding], missing: Sequence[str]) -> tuple[Ruling, str]:
    """The rules of the module, and the reason in words. The reason names comparisons that do not count."""
    counted = [f for f in findings if f.comparison.counts]
    others = [f for f in findings if not f.comparison.counts]
    if not counted:
        why = [f"a comparison that counts ({others[0].comparison.remark})"] if others else []
        return Ruling.untestable, f"needs {'; '.join([*why, *missing])}"
    # A claim about "this and that" does not hold by "this" alone. Of several rivals one may be left out.
    covered = {f.comparison.about for f in counted}
    named = [f for f in others if not f.comparison.is_one_of or f.comparison.about not in covered]
    ruling, reason = _judge_counted(counted, [*missing, *(["all that it names to count"] if named else [])])
    skipped = "; ".join(dict.fromkeys(f.comparison.sides for f in others))
    return ruling, f"{reason}. Not counted: {skipped}" if others else reason


def _judge_counted(counted: Sequence[Finding], missing: Sequence[str]) -> tuple[Ruling, str]:
    by = {verdict: [f for f in counted if f.outcome is verdict] for verdict in Verdict}
    worse, same, better, total = by[Verdict.worse], by[Verdict.equivalent], by[Verdict.better], len(counted)
    if worse:
        return Ruling.fails, f"decided the other way in {len(worse)} of {total} comparisons: {_listed(worse)}"
    if len(same) == total:
        return Ruling.same, f"equivalent within {_margins(same)} in all {total} comparisons"
    surely = [f for f in same if f.p_equal < ALPHA]
    if surely:
        return Ruling.fails, (
            f"better in {len(better)} of {total} comparisons, equivalent within {_margins(surely)} in {_listed(surely)}"
        )
    needs = f"; needs {'; '.join(missing)}" if missing else ""
    if len(better) < total:
        return Ruling.undecided, f"{_why_open([f for f in counted if f not in better], total)}{needs}"
    if missing:
        return Ruling.undecided, f"decided in favour in all {total} comparisons there are{needs}"
    return Ruling.holds, f"decided in all {total} comparisons" if total > 1 else "decided"


def judge_absence(findings: Sequence[Finding], missing: Sequence[str]) -> tuple[Ruling, str]:
    """For a claim that there is no effect: an effect refutes it, only equivalence supports it."""
    if not findings:
        return judge(findings, missing)
    present = [f for f in findings if f.outcome in (Verdict.better, Verdict.worse)]
    if present:
        return Ruling.fails, f"{_listed(present)}: decided"
    if all(f.outcome is Verdict.equivalent for f in findings):
        return Ruling.holds, f"all {len(findings)} are within {_margins(findings)}"
    return Ruling.undecided, "no effect is decided, and not all are shown to be small"


def _listed(findings: Sequence[Finding]) -> str:
    names = [f.comparison.sides for f in findings]
    return "; ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _margins(findings: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(f"±{f.comparison.margin:g}" for f in findings))


def _why_open(findings: Sequence[Finding], total: int) -> str:
    single = sum(f.difference.n == 1 for f in findings)
    broken = sum(math.isnan(f.difference.mean) for f in findings)
    rest = [f.difference.p_holm for f in findings if f.difference.n > 1 and not math.isnan(f.difference.mean)]
    reasons = [f"n = 1 in {single} of {total} comparisons"] if single else []
    reasons += [f"{broken} of {total} comparisons have a score that is not a number"] if broken else []
    known = [p for p in rest if not math.isnan(p)]
    smallest = f" (smallest Holm p {min(known):.2g})" if known else ""
    reasons += [f"not decided in {len(rest)} of {total} comparisons{smallest}"] if rest else []
    if len(findings) < total:
        reasons.append(f"decided in favour in the other {total - len(findings)}")
    return "; ".join(reasons)


@dataclass(frozen=True)
class Ledger:
    """All claims, decided."""

    roles: Roles
    claims: tuple[Claim, ...]
    remarks: tuple[Any, ...] = field(default=())

    def claim(self, key: str) -> Claim:
        return next(claim for claim in self.claims if claim.row.key == key)

    def in_scope(self, scope: Scope) -> list[Claim]:
        return [claim for claim in self.claims if claim.row.scope is scope]


def build_ledger(rows: Iterable[Row], roles: Roles, remarks: Sequence[Any] = ()) -> Ledger:
    claims = [replace(decide_claim(row, roles), number=number) for number, row in enumerate(rows, start=1)]
    return Ledger(roles, tuple(claims), tuple(remarks))
