"""The ledger as Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from studies.paper import paper
from studies.paper.arithmetic import Remark
from studies.paper.casting import Cast
from studies.paper.ledger import NOTHING, Claim, Finding, Ruling, signed
from studies.paper.unasked import Distance
from trc2.report.evidence import AREA, PRIMARY
from trc2.report.markdown import markdown
from trc2.stats.equivalence import ALPHA, without_largest
from trc2.stats.intervals import bounds, number

RULES = (
    "A claim is one or several comparisons “the first side is better”, paired by seed in the listed order of tasks.",
    "Holds: every comparison is decided that way (two-sided paired t-test, Holm over the claim's comparisons, "
    f"p < {ALPHA:g}). That all of several hold would need no correction; with it fewer claims hold by chance.",
    "Does not hold: at least one comparison is decided the other way.",
    "No difference: all are equivalent (two one-sided tests) within the margin that A/A pairs set: arms that differ in "
    "their replay draws only, without the pair that differs most. If some are, also after Holm over the claim's "
    "equivalence tests, and others are not, the claim does not hold for all. Without such pairs nothing is equal.",
    "Undecided: everything else. n = 1 is shown and never decides; nor does a score that is not a number. A value that "
    "is the same in all of several seeds decides against a fixed bound, without a p-value. Where a claim says “this "
    "and that”, it holds only if each of them could be counted; of several baselines one may be left out.",
    "Not testable here: no comparison can be made; the reason says what is missing.",
    "An arm that did not learn a task is marked, and not counted where only forgetting is compared: what was never "
    "learnt cannot be forgotten. The same goes for text scores that gained nothing over an untrained network.",
    "The family of a correction is one claim, not the ledger: of twenty claims without any effect, one may be decided "
    "by chance.",
)
DECIDED = (Ruling.holds, Ruling.fails, Ruling.same)
FIRST = ("retention.area", "primary.baselines", "open.twin_replay", "open.baselines_replay",
         "open.keeping_replay", "open.keeping_backbone", "open.replay",
         "open.memory", "open.thalamus", "lesion.hippocampus")  # fmt: skip


@dataclass(frozen=True)
class Section:
    """Claims that belong together."""

    title: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Ledger:
    """Everything that claims.md and claims.json say."""

    cast: Cast
    sections: tuple[Section, ...]
    distances: tuple[Distance, ...]
    remarks: tuple[Remark, ...]

    @property
    def claims(self) -> list[Claim]:
        return [claim for section in self.sections for claim in section.claims]

    def claim(self, key: str) -> Claim:
        return next(claim for claim in self.claims if claim.key == key)

    def number_of(self, claim: Claim) -> int:
        return 1 + [known.key for known in self.claims].index(claim.key)


def as_json(ledger: Ledger) -> str:
    evidence = ledger.cast.evidence
    data = {
        "schema": 1,
        "paper": paper.as_data(),
        "runs": len(evidence.runs),
        "unfinished": len(evidence.unfinished),
        "tasks": evidence.tasks,
        "arms": [_arm_data(ledger.cast, title) for title in (arm.title for arm in evidence.arms)],
        "margins": [_margin_data(ledger.cast, measure.name) for measure in (PRIMARY, AREA)],
        "rules": list(RULES),
        "claims": [
            {"number": ledger.number_of(claim), "group": section.title, **claim.data()}
            for section in ledger.sections
            for claim in section.claims
        ],
        "distances": [asdict(distance) for distance in ledger.distances],
        "arithmetic": [asdict(remark) for remark in ledger.remarks],
    }
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not a number becomes null."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _arm_data(cast: Cast, title: str) -> dict[str, Any]:
    arm = cast.evidence.arm(title)
    assert arm is not None
    return {
        "title": title,
        "runs": len(arm.runs),
        "seeds": sorted({run.config.train.seed for run in arm.runs}),
        "orders": len({tuple(stretch.task for stretch in run.stretches) for run in arm.runs}),
        "not_learnt": [] if arm.is_bound else cast.unlearned(arm, cast.evidence.orders),
    }


def _margin_data(cast: Cast, name: str) -> dict[str, Any]:
    measure = {PRIMARY.name: PRIMARY, AREA.name: AREA}[name]
    return {"measure": name, "differences": cast.aa_differences(measure), "margin": cast.margin(measure)}


# ---------------------------------------------------------------------------------------------------------- Markdown


def as_markdown(ledger: Ledger) -> str:
    lines = ["# Claims ledger", "", _evidence_line(ledger), "", *_in_short(ledger)]
    lines += ["", "## All claims", "", "Our number is the comparison that the verdict hangs on.", ""]
    for section in ledger.sections:
        header = ("#", section.title, "verdict", "our number", "the paper's")
        lines += [*_table(header, _summary_rows(ledger, section)), ""]
    lines += ["## Rules", "", *[f"- {_inline(rule)}" for rule in RULES], "", *_margins(ledger.cast)]
    lines += ["", *_unlearned(ledger.cast), *_distances(ledger.distances)]
    lines += ["## What arithmetic says", ""]
    for remark in ledger.remarks:
        lines += [f"### {markdown(remark.title)}", "", markdown(remark.text), ""]
        lines += [*_table(remark.header, remark.rows), ""] if remark.rows else []
    lines += ["## Details", ""]
    for section in ledger.sections:
        lines += [f"### {section.title}", ""]
        for claim in section.claims:
            lines += [*_details(ledger, claim), ""]
    return "\n".join(lines).rstrip() + "\n"


def _evidence_line(ledger: Ledger) -> str:
    evidence = ledger.cast.evidence
    seeds = sorted({run.config.train.seed for run in evidence.runs})
    tasks = " → ".join(markdown(task) for task in evidence.tasks)
    steps = max(run.stretches[-1].end for run in evidence.runs)
    more = f"; {len(evidence.unfinished)} unfinished runs count nowhere" if evidence.unfinished else ""
    return (
        f"What {len(evidence.runs)} finished runs say to the paper's claims: {len(evidence.arms)} arms, seeds "
        f"{', '.join(map(str, seeds))}, {tasks}, {steps:,} steps{more}. Computed from run folders; typed in are "
        "the paper's numbers and, named with each test, the bounds that its words leave open."
    )


def _in_short(ledger: Ledger) -> list[str]:
    counts = {ruling: sum(claim.ruling is ruling for claim in ledger.claims) for ruling in Ruling}
    told = " · ".join(f"{ruling.value}: {count}" for ruling, count in counts.items())
    lines = [f"**{len(ledger.claims)} claims** – {told}", ""]
    for key in FIRST:
        claim = ledger.claim(key)
        lines.append(f"- {_inline(claim.statement)}: **{verdict_text(claim)}**{_because(claim)}")
    for distance in ledger.distances:
        if distance.warning:
            lines.append(f"- {markdown(distance.warning)}")
    lines += [f"- {markdown(remark.title)}." for remark in ledger.remarks[:2]]
    return lines


def verdict_text(claim: Claim) -> str:
    """The verdict, with n where it is too small for any."""
    counted = [finding for finding in claim.findings if finding.contrast.counts]
    if claim.ruling is Ruling.undecided and counted and all(f.difference.n == 1 for f in counted):
        return f"{claim.ruling.value} (n = 1)"
    return claim.ruling.value


def _because(claim: Claim) -> str:
    if claim.ruling is Ruling.untestable:
        return f" – {_inline(claim.reason)}."
    why = f" ({_inline(claim.reason)})" if claim.ruling is Ruling.undecided else ""
    return f" – {_inline(claim.ours)}{why}."


def _summary_rows(ledger: Ledger, section: Section) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for claim in section.claims:
        ours = claim.brief if claim.brief != NOTHING else claim.reason
        verdict = f"**{verdict_text(claim)}**" if claim.ruling in DECIDED else verdict_text(claim)
        rows.append((str(ledger.number_of(claim)), claim.statement, verdict, ours, claim.paper))
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]


def _cell(text: str) -> str:
    if text.startswith("**") and text.endswith("**"):
        return f"**{_inline(text[2:-2])}**"
    return _inline(text)


def _inline(text: str) -> str:
    """Text that does not begin a line, where a number or a sign needs no escape."""
    return markdown(f"x {text}")[2:].strip()


def _margins(cast: Cast) -> list[str]:
    lines = []
    for measure in (PRIMARY, AREA):
        differences, margin = cast.aa_differences(measure), cast.margin(measure)
        if margin is None:
            lines.append(f"- No A/A margin for {measure.title}: needs twins that differ in their replay draws only.")
        else:
            lines.append(
                f"- A/A margin of {measure.title}: ±{margin:.3g} {measure.unit}, from {len(differences)} pairs"
                f"{_left_out(differences)}."
            )
    return lines


def _left_out(differences: Sequence[float]) -> str:
    largest = max(map(abs, differences))
    is_left_out = len(without_largest(differences)) < len(differences)
    return f" but for the largest difference, {largest:.3g}" if is_left_out else f" (largest difference {largest:.3g})"


def _unlearned(cast: Cast) -> list[str]:
    marked = [(arm.title, cast.unlearned(arm, cast.evidence.orders)) for arm in cast.evidence.arms if not arm.is_bound]
    lines = [f"- {markdown(title)} did not learn {markdown(', '.join(tasks))}." for title, tasks in marked if tasks]
    return (
        ["**Arms that did not learn a task** (a small forgetting area is no merit there):", "", *lines, ""]
        if lines
        else []
    )


def _distances(distances: Sequence[Distance]) -> list[str]:
    lines = ["## Share of the distance to joint training", ""]
    if not distances:
        return [*lines, "Not testable here: needs joint and plain sequential runs of one backbone.", ""]
    lines += ["Only within a backbone: where joint training of another one ends says nothing about it.", ""]
    for distance in distances:
        lines += [
            f"From {markdown(distance.plain)} (0) to {markdown(distance.joint)} (1) in {PRIMARY.title}: "
            f"{distance.nats:.3g} nats, between the means over seeds, which count as known."
            + (f" {markdown(distance.steps)}" if distance.steps else "")
            + (f" **Warning:** {markdown(distance.warning)}" if distance.warning else ""),
            "",
        ]
        rows = [(c.arm, number(c.share.mean, c.share), bounds(c.share)) for c in distance.closed]
        lines += [*_table(("arm", "share closed", ""), rows), ""]
    return lines


def _details(ledger: Ledger, claim: Claim) -> list[str]:
    lines = [
        f"#### {ledger.number_of(claim)}. {_inline(claim.statement)}",
        "",
        f"**{verdict_text(claim)}**: {_inline(claim.reason)}.",
        "",
        f"- in the paper: {_inline(claim.where)}; {_inline(claim.paper)}",
        f"- test: {_inline(claim.how)}",
        *([f"- ours: {_inline(claim.ours)}"] if claim.ours != NOTHING else []),
        *[f"- note: {_inline(note)}" for note in claim.notes],
    ]
    if len(claim.findings) > 1 or claim.beside or any(f.contrast.remark for f in claim.findings):
        rows = [_finding_row(finding) for finding in claim.findings]
        rows += [_finding_row(finding, "beside; ") for finding in claim.beside]
        header = ("what", "first", "second", "difference", "", "Holm p", "outcome", "remark")
        lines += ["", *_table(header, rows)]
    return lines


def _finding_row(finding: Finding, mark: str = "") -> tuple[str, ...]:
    known, contrast = finding.difference, finding.contrast
    first, second = (number(mean, known.interval) for mean in finding.means)
    p = NOTHING if math.isnan(known.p_holm) or not contrast.counts else f"{known.p_holm:.2g}"
    return (
        contrast.about, f"{contrast.first} {first}",
        second if contrast.is_bound else f"{contrast.second} {second}",
        signed(known), bounds(known.interval), p, finding.outcome.value, f"{mark}{contrast.remark}".rstrip("; "),
    )  # fmt: skip
