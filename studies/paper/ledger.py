"""What a claim is, and the rules by which runs decide it. No rule looks at what a claim is about.

Every claim is put as "the first side is better than the second", on the same seeds, once or several times. With the
outcomes of all of them (`trc2.stats.equivalence.decide`, Holm over the claim):

    some comparison is decided the other way                    → does not hold
    all that count are equivalent within the A/A margin         → no difference
    else some are, also after Holm: no better there             → does not hold
    else some is undecided, something is missing, or one of
    the things that the claim names is counted nowhere          → undecided
    else                                                        → holds
    no comparison can be made at all                            → not testable here

One pair has no p-value, so n = 1 never decides; a value that is not a number neither. A value that is the same in all
of several seeds has no spread to test, but it lies on one side of a fixed bound: that decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

from trc2.stats.equivalence import ALPHA, Verdict, decide, tost
from trc2.stats.intervals import bounds, moments, number
from trc2.stats.paired import PairedDifference, holm, paired_difference

Better = Literal["lower", "higher"]


class Ruling(str, Enum):
    """What the runs say to a claim."""

    holds = "holds"
    fails = "does not hold"
    same = "no difference"
    undecided = "undecided"
    untestable = "not testable here"


@dataclass(frozen=True)
class Contrast:
    """Two sides by seed, of which the claim says that the first is better."""

    about: str
    first: str
    second: str
    a: Mapping[int, float]
    b: Mapping[int, float]
    better: Better = "lower"
    margin: float | None = None  # within which both are called equal
    remark: str = ""
    counts: bool = True  # towards the verdict
    is_bound: bool = False  # the second side is a fixed number, which is its name
    scale: str = ""  # what both are measured in: nats and points of BLEU cannot be ranked together
    is_one_of: bool = False  # several rivals of which one may be left out, if another is counted in the same

    @property
    def seeds(self) -> list[int]:
        return sorted(self.a.keys() & self.b.keys())

    @property
    def sides(self) -> str:
        """What is compared with what."""
        pair = f"{self.first} against {self.second}"
        return f"{self.about}: {pair}" if self.about else pair

    @property
    def told(self) -> str:
        """What a claim is told by this: each comparison its own, rivals together."""
        return self.about if self.is_one_of else self.sides


@dataclass(frozen=True)
class Finding:
    """A contrast and what its pairs allow to be said."""

    contrast: Contrast
    difference: PairedDifference
    outcome: Verdict
    p_equal: float = math.nan  # of equivalence, corrected over the claim

    @property
    def is_surely_equal(self) -> bool:
        return self.outcome is Verdict.equivalent and self.p_equal < ALPHA

    @property
    def means(self) -> tuple[float, float]:
        seeds = self.contrast.seeds
        return moments(self.contrast.a[s] for s in seeds).mean, moments(self.contrast.b[s] for s in seeds).mean

    @property
    def shortfall(self) -> float:
        """How far the first side is from being better; NaN counts as farthest."""
        mean = self.difference.mean if self.contrast.better == "lower" else -self.difference.mean
        return math.inf if math.isnan(mean) else mean

    @property
    def text(self) -> str:
        known = self.difference.interval
        first, second = (number(mean, known) for mean in self.means)
        versus = "" if self.contrast.is_bound else f" against {second}"
        return f"{self.contrast.sides}: {first}{versus}, difference {signed(self.difference)} ({bounds(known)})"

    @property
    def brief(self) -> str:
        """The two sides, their difference, its interval and n."""
        known = self.difference.interval
        first, second = (number(mean, known) for mean in self.means)
        versus = self.contrast.second if self.contrast.is_bound else f"{second} ({self.contrast.second})"
        return f"{first} against {versus}: {signed(self.difference)} ({bounds(known)})"

    def data(self) -> dict[str, Any]:
        known, contrast = self.difference, self.contrast
        return {
            "about": contrast.about,
            "first": contrast.first,
            "second": contrast.second,
            "better": contrast.better,
            "first_by_seed": {str(seed): contrast.a[seed] for seed in contrast.seeds},
            "second_by_seed": {str(seed): contrast.b[seed] for seed in contrast.seeds},
            "difference": known.mean,
            "low": known.interval.low,
            "high": known.interval.high,
            "n": known.n,
            "p": known.p,
            "p_holm": known.p_holm,
            "p_equal_holm": self.p_equal,
            "margin": contrast.margin,
            "outcome": self.outcome.value,
            "counts": contrast.counts,
            "remark": contrast.remark,
        }


def signed(difference: PairedDifference) -> str:
    text = number(difference.mean, difference.interval)
    return f"+{text}" if difference.mean > 0 else text


def compare(contrasts: Iterable[Contrast]) -> list[Finding]:
    """All comparisons of one claim, their p-values corrected together; those without a shared seed are left out."""
    known = [(c, paired_difference({s: c.a[s] for s in c.seeds}, c.b)) for c in contrasts if c.seeds]
    corrected = holm({str(i): d.p for i, (c, d) in enumerate(known) if c.counts})
    equal = holm({str(i): tost(d, c.margin) for i, (c, d) in enumerate(known) if c.counts and c.margin is not None})
    findings = []
    for i, (contrast, difference) in enumerate(known):
        if contrast.counts:
            difference = replace(difference, p_holm=corrected[str(i)])
        direction: Literal["min", "max"] = "min" if contrast.better == "lower" else "max"
        outcome = decide(difference, contrast.margin, direction=direction)
        outcome = _by_side(contrast, difference) or outcome
        findings.append(Finding(contrast, difference, outcome, equal.get(str(i), math.nan)))
    return findings


def _by_side(contrast: Contrast, difference: PairedDifference) -> Verdict | None:
    """Several seeds with the very same value, compared with a fixed number."""
    values = [contrast.a[seed] for seed in contrast.seeds]
    is_one = len(values) > 1 and all(map(math.isfinite, values)) and max(values) == min(values)
    if not contrast.is_bound or not is_one or difference.mean == 0:
        return None
    return Verdict.better if (difference.mean < 0) == (contrast.better == "lower") else Verdict.worse


@dataclass(frozen=True)
class Claim:
    """One statement, how it is tested, and what came out."""

    key: str
    statement: str
    where: str  # in the paper; "not in the paper" for what it leaves open
    how: str
    paper: str  # its number
    ruling: Ruling
    reason: str
    ours: str  # our number with interval and n
    brief: str = ""  # the same in a few words
    findings: tuple[Finding, ...] = ()
    beside: tuple[Finding, ...] = ()  # shown, tested as a family of their own, no part of the verdict
    notes: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "statement": self.statement,
            "where": self.where,
            "how": self.how,
            "paper": self.paper,
            "verdict": self.ruling.value,
            "reason": self.reason,
            "ours": self.ours,
            "comparisons": [finding.data() for finding in self.findings],
            "beside": [finding.data() for finding in self.beside],
            "notes": list(self.notes),
        }


NOTHING = "–"


def rule(
    key: str,
    statement: str,
    *,
    where: str,
    how: str,
    paper: str,
    contrasts: Sequence[Contrast] = (),
    findings: Sequence[Finding] | None = None,
    missing: Sequence[str] = (),
    beside: Sequence[Contrast] = (),
    notes: Sequence[str] = (),
) -> Claim:
    """A claim with its verdict. `missing` is what "holds" would still need; `findings` are contrasts tested before."""
    found = compare(contrasts) if findings is None else list(findings)
    lacking = [*missing, *[f"equal seeds for {c.sides}" for c in contrasts if not c.seeds]]
    ruling, reason = judge(found, lacking)
    return Claim(
        key, statement, where, how, paper, ruling, reason, *numbers(found, ruling), tuple(found),
        tuple(compare(beside)), tuple(notes),
    )  # fmt: skip


def numbers(findings: Sequence[Finding], ruling: Ruling) -> tuple[str, str]:
    """Our number, in full and in a few words, or that there is none."""
    if not any(finding.contrast.counts for finding in findings):
        return NOTHING, NOTHING
    chosen = headline(findings, ruling)
    return chosen.text, chosen.brief


def judge(findings: Sequence[Finding], missing: Sequence[str]) -> tuple[Ruling, str]:
    """The rule above, and the reason in words, which also say who was not counted."""
    counted = [finding for finding in findings if finding.contrast.counts]
    others = [finding for finding in findings if not finding.contrast.counts]
    if not counted:
        lacking = [f"a comparison that counts ({others[0].contrast.remark})"] if others else []
        return Ruling.untestable, f"needs {_joined([*lacking, *missing])}"
    # "This and that" does not hold by this alone.
    told = {finding.contrast.told for finding in counted}
    untold = any(finding.contrast.told not in told for finding in others)
    ruling, reason = _of_counted(counted, _joined([*missing, *(["all that it names to count"] if untold else [])]))
    return ruling, f"{reason}; not counted: {_joined([f.contrast.sides for f in others])}" if others else reason


def _joined(needs: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(needs))


def _of_counted(counted: Sequence[Finding], needs: str) -> tuple[Ruling, str]:
    worse = [f for f in counted if f.outcome is Verdict.worse]
    if worse:
        return Ruling.fails, f"{_listed(worse)}: decided the other way"
    same = [f for f in counted if f.outcome is Verdict.equivalent]
    if len(same) == len(counted):
        return Ruling.same, f"{_listed(same)}: {_equal(same)}"
    surely = [f for f in same if f.is_surely_equal]
    better = [f for f in counted if f.outcome is Verdict.better]
    if surely:
        return (
            Ruling.fails,
            f"{_listed(surely)}: {_equal(surely)}; better in {len(better)} of {len(counted)} comparisons",
        )
    if len(better) < len(counted):
        reason = _why_open([f for f in counted if f not in better], len(counted))
        return Ruling.undecided, f"{reason}; needs {needs}" if needs else reason
    if needs:
        return Ruling.undecided, f"holds in all {len(counted)} comparisons there are; needs {needs}"
    return Ruling.holds, f"decided in all {len(counted)} comparisons" if len(counted) > 1 else "decided"


def _equal(findings: Sequence[Finding]) -> str:
    return f"equal within what A/A pairs differ by (±{', ±'.join(_margins(findings))})"


def _listed(findings: Sequence[Finding]) -> str:
    names = [f.contrast.sides for f in findings]
    return "; ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _margins(findings: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(f"{f.contrast.margin:.2g}" for f in findings))


def _why_open(findings: Sequence[Finding], total: int) -> str:
    single = [f for f in findings if f.difference.n == 1]
    broken = [f for f in findings if math.isnan(f.difference.mean)]
    rest = [f for f in findings if f not in single and f not in broken]
    reasons = []
    if single:
        reasons.append("n = 1" if len(single) == total else f"n = 1 in {len(single)} of {total} comparisons")
    if broken:
        reasons.append(f"{len(broken)} of {total} comparisons have a score that is not a number")
    decided = total - len(findings)
    if rest:
        known = [f.difference.p_holm for f in rest if not math.isnan(f.difference.p_holm)]
        smallest = f", Holm p from {min(known):.2g}" if known else ""
        counts = sorted({f.difference.n for f in rest})
        n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        reasons.append(f"not decided in {len(rest)} of {total} comparisons (n = {n}{smallest})")
    if decided:
        reasons.append(f"holds in the other {decided}")
    return "; ".join(reasons)


def headline(findings: Sequence[Finding], ruling: Ruling) -> Finding:
    """The comparison that a verdict hangs on: the one that refutes it, or the one nearest to doing so."""
    counted = [f for f in findings if f.contrast.counts]
    deciding = {
        Ruling.fails: (Verdict.worse, Verdict.equivalent),
        Ruling.same: (Verdict.equivalent,),
        Ruling.undecided: (Verdict.undecided, Verdict.equivalent),
    }.get(ruling, ())
    among = next((found for v in deciding if (found := [f for f in counted if f.outcome is v])), counted)
    same_scale = [f for f in among if f.contrast.scale == among[0].contrast.scale]
    return max(same_scale, key=lambda finding: finding.shortfall)


def against(
    about: str, name: str, values: Mapping[int, float], bound: float, better: Better, remark: str = "",
    scale: str = "",
) -> Contrast:  # fmt: skip
    """Each seed's value against a fixed number."""
    return Contrast(
        about, name, f"{bound:g}", values, dict.fromkeys(values, bound), better, remark=remark, is_bound=True,
        scale=scale,
    )  # fmt: skip
