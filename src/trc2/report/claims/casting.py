"""Who takes which part in a claim: the arms of the evidence, found by their settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trc2.errors import UserError
from trc2.metrics.learning import unlearned
from trc2.report.claims.ledger import Contrast
from trc2.report.evidence import Arm, Evidence, Measure
from trc2.report.finished import FinishedRun
from trc2.report.names import FAMILIES, PARTS
from trc2.stats.equivalence import margin_from_aa

SWITCHES = {"model.thalamus", "model.memory", "model.replay", "control.mode"}
DRAWS = "model.replay_seed"
BASELINES = tuple(name for name in FAMILIES if name != "trc2")
HIPPOCAMPUS = frozenset({"memory", "replay"})  # what the paper switches off together

Settings = Mapping[str, object]


@dataclass(frozen=True)
class Cast:
    """The evidence, asked by role; None and absences are for the claims to tell."""

    evidence: Evidence

    def seeds(self, arm: Arm, measure: Measure) -> dict[int, float]:
        """A measure by seed, in the listed order of the tasks."""
        order = self.evidence.listed_order if not arm.is_bound else None
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
            and not _has_own_draws(arm)
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
    def constant(self) -> Arm | None:
        """TRC² with replay that nobody steers."""
        return next((arm for arm in self._trc2_arms if not arm.lesions and _mode(arm) == "fixed"), None)

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
        """A/A: arms that replay and differ in the draws only. No run is in two pairs, for independence."""
        arms = [arm for arm in self.evidence.arms if arm.replays and not arm.is_bound]
        others = [arm for arm in arms if _has_own_draws(arm)]
        found = []
        for first in (arm for arm in arms if not _has_own_draws(arm)):
            rest = _without(first.settings, DRAWS)
            found += [(first, second) for second in others if _without(second.settings, DRAWS) == rest][:1]
        return found

    def aa_differences(self, measure: Measure) -> list[float]:
        found = []
        for first, second in self.twins:
            ours, theirs = self.seeds(first, measure), self.seeds(second, measure)
            found += [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        return found

    def margin(self, measure: Measure) -> float | None:
        """The difference below which two arms are called equal; None without A/A pairs that tell."""
        try:
            margin = margin_from_aa(self.aa_differences(measure))
        except UserError:  # none, or all 0
            return None
        return None if math.isnan(margin) else margin

    def unlearned(self, arm: Arm) -> list[str]:
        """Tasks that some run of the arm was trained on and did not learn."""
        found = [task for run in self.runs(arm) for task in unlearned(run.tables["perplexity"])]
        return list(dict.fromkeys(found))

    def contrast(self, measure: Measure, first: Arm, second: Arm) -> Contrast:
        """Two arms in one measure, by seed."""
        return Contrast(
            measure.title, first.title, second.title, self.seeds(first, measure), self.seeds(second, measure),
            measure.better, self.margin(measure),
        )  # fmt: skip


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


def _has_own_draws(arm: Arm) -> bool:
    """Whether replay is drawn by another seed than the run's; 0 is the offset of runs that wrote down the same one."""
    return arm.settings.get(DRAWS) not in (None, 0)


def _mode(arm: Arm) -> str:
    return arm.runs[0].config.control.mode


def _without(settings: Settings, path: str) -> dict[str, object]:
    return {name: value for name, value in settings.items() if name != path}
