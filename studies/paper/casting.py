"""Who takes which part in a claim: the arms of the evidence, found by their settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from studies.paper.ledger import Contrast
from trc2.metrics.learning import unlearned
from trc2.report.evidence import Arm, Evidence, Measure, aa_differences, aa_margin, has_own_draws, twins_among
from trc2.report.finished import WHOLE_GAIN, FinishedRun, gap_unit
from trc2.report.names import FAMILIES, PARTS
from trc2.report.scope import METRIC_TITLES

SWITCHES = {"model.thalamus", "model.memory", "model.replay", "control.mode"}
STRENGTHS = {"model.replay_coefficient", "model.replay_batch_size", "model.replay_long_fraction"}  # what is steered
NEVER_LEARNT = "what was not learnt cannot be forgotten, so it is not counted"
Order = tuple[str, ...]
BASELINES = tuple(name for name in FAMILIES if name != "trc2")
HIPPOCAMPUS = frozenset({"memory", "replay"})  # what the paper switches off together


@dataclass(frozen=True)
class Cast:
    """The evidence, asked by role; None and absences are for the claims to tell."""

    evidence: Evidence

    def seeds(self, arm: Arm, measure: Measure, order: Order | None = None) -> dict[int, float]:
        """A measure by seed, in one order of the tasks: by default the listed one."""
        order = (order or self.evidence.listed_order) if not arm.is_bound else None
        return {seed: value for (seed, _), value in arm.values(measure, order).items()}

    def runs(self, arm: Arm) -> list[FinishedRun]:
        return arm.in_order(self.evidence.listed_order)

    @cached_property
    def candidates(self) -> list[Arm]:
        """Arms that met the tasks one after another in the listed order, without a strategy; no A/A twins."""
        return [
            arm
            for arm in self.evidence.arms
            if not arm.is_bound
            and arm.runs[0].config.strategy.name == "none"
            and not has_own_draws(arm.settings)
            and self.runs(arm)
        ]

    @cached_property
    def _trc2_arms(self) -> list[Arm]:
        """TRC² and its lesions that are alike in all but the three switches: of several such groups the largest."""
        groups: dict[tuple[tuple[str, str], ...], list[Arm]] = {}
        for arm in self.candidates:
            if arm.family.name == "trc2":
                kept = sorted((path, repr(value)) for path, value in arm.settings.items() if path not in SWITCHES)
                groups.setdefault(tuple(kept), []).append(arm)
        return max(groups.values(), key=lambda arms: sum(len(self.runs(arm)) for arm in arms), default=[])

    def lesion(self, *missing: str) -> Arm | None:
        """TRC² without some parts; what replays does so under control."""
        for arm in self._trc2_arms:
            if set(arm.lesions) == set(missing) and (not arm.replays or _mode(arm) == "closed_loop"):
                return arm
        return None

    @property
    def trc2(self) -> Arm | None:
        return self.lesion()

    @property
    def constants(self) -> dict[str, Arm]:
        """TRC² with replay that nobody steers, at one strength or another; alike in everything else. By title."""
        if self.trc2 is None:
            return {}
        steered = {"control.mode", *STRENGTHS}

        def rest(arm: Arm) -> dict[str, Any]:
            return {path: value for path, value in arm.settings.items() if path not in steered}

        wanted = rest(self.trc2)
        found = [arm for arm in self.candidates if _mode(arm) == "fixed" and not arm.lesions and rest(arm) == wanted]
        return {arm.title: arm for arm in found}

    def baselines(self, *, with_replay: bool) -> dict[str, Arm]:
        """By family: the baseline alone or with controlled replay; of several the one with most runs."""
        found: dict[str, Arm] = {}
        for arm in self.candidates:
            name = arm.family.name
            if name == "trc2" or arm.replays != with_replay or (with_replay and _mode(arm) != "closed_loop"):
                continue
            if name not in found or len(self.runs(arm)) > len(self.runs(found[name])):
                found[name] = arm
        return found

    @cached_property
    def joints(self) -> list[Arm]:
        """Arms trained on the mixture of all tasks."""
        streams = [(arm, arm.runs[0].config.stream) for arm in self.evidence.arms]
        return [arm for arm, stream in streams if stream and stream.mode == "joint" and stream.only is None]

    @cached_property
    def twins(self) -> list[tuple[Arm, Arm]]:
        return twins_among(self.evidence.arms)

    def aa_differences(self, measure: Measure) -> list[float]:
        return aa_differences(self.twins, lambda arm: self.seeds(arm, measure))

    def margin(self, measure: Measure) -> float | None:
        """The difference below which two arms are called equal; None without A/A pairs that tell."""
        return aa_margin(self.aa_differences(measure))

    def unlearned(self, arm: Arm, orders: Sequence[Order] | None = None) -> list[str]:
        """Tasks that some run of the arm did not learn in one of these orders; by default in the listed one."""
        runs = self._in_orders(arm, orders)
        return list(dict.fromkeys(task for run in runs for task in unlearned(run.tables["perplexity"])))

    def _in_orders(self, arm: Arm, orders: Sequence[Order] | None) -> list[FinishedRun]:
        return [run for order in orders or [self.evidence.listed_order] for run in arm.in_order(order)]

    def contrast(self, measure: Measure, first: Arm, second: Arm) -> Contrast:
        """Two arms in one measure, by seed."""
        found = Contrast(
            measure.title, first.title, second.title, self.seeds(first, measure), self.seeds(second, measure),
            measure.better, self.margin(measure), scale=measure.unit or measure.name.rsplit("/")[-1],
        )  # fmt: skip
        return self.told(found, first, second, measure=measure)

    def told(self, contrast: Contrast, *arms: Arm, measure: Measure, orders: Sequence[Order] | None = None) -> Contrast:
        """What an arm did not learn is said; where only keeping is compared, the contrast then does not count.

        Nor does one of kept gains in a score that gained nothing. One with a score that is no number goes on counting:
        it stays in, and decides nothing.
        """
        lacking = {arm.title: tasks for arm in arms if (tasks := self.unlearned(arm, orders))}
        words = [f"{title} did not learn {', '.join(tasks)}" for title, tasks in lacking.items()]
        if measure.gained:
            raw = [arm.title for arm in arms if not self._gained(arm, measure.gained, orders)]
            words += [f"{METRIC_TITLES.get(measure.gained, measure.gained)} gained nothing in {title}" for title in raw]
        if not words:
            return contrast
        remark = "; ".join(words)
        is_measured = all(map(math.isfinite, (*contrast.a.values(), *contrast.b.values())))
        if not measure.is_keeping or not is_measured:
            return replace(contrast, remark=remark)
        return replace(contrast, counts=False, remark=f"{remark}: {NEVER_LEARNT}")

    def _gained(self, arm: Arm, metric: str, orders: Sequence[Order] | None) -> bool:
        """Whether every past task's score rose above the untrained network's, so that gaps are shares of a gain."""
        return gap_unit(self._in_orders(arm, orders), metric) == WHOLE_GAIN


def missing_baselines(known: Mapping[str, Arm], what: str = "") -> list[str]:
    """What to run so that all seven of the paper's baselines are there."""
    absent = [FAMILIES[name][0] for name in BASELINES if name not in known]
    if len(absent) == len(BASELINES):
        return [f"runs of the seven baselines{what}"]
    return [f"runs of {', '.join(absent)}{what}"] if absent else []


def lesion_name(*missing: str) -> str:
    """What an absent arm would be called, as `trc2.report.names` calls it."""
    if set(missing) == set(PARTS):
        return "TRC² plain"
    if set(missing) == set(PARTS[:2]):
        return "TRC² plain + controlled replay"
    return " − ".join(["TRC²", *[part for part in PARTS if part in missing]])


def _mode(arm: Arm) -> str:
    return arm.runs[0].config.control.mode
