"""Many runs of one stream as evidence: arms, which differ in more than seed and order, and their repetitions."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trc2.errors import UserError
from trc2.report.finished import FinishedRun, check_equal_work, declares_length, read_run
from trc2.report.names import (
    FAMILIES,
    Family,
    family_of,
    learning_settings,
    lesions,
    order_of,
    replays,
    size_of,
    title_of,
)
from trc2.runs.folder import RunFolder
from trc2.stats.equivalence import margin_from_aa, without_largest

Repetition = tuple[int, tuple[str, ...]]
"""What repetitions of one experiment may differ in: (seed, order of the tasks)."""
MOST_LEVELS = 4  # that runs are looked for below a folder


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    name: str
    title: str
    better: Literal["lower", "higher"]
    of: Callable[[FinishedRun], float]
    unit: str = ""
    is_keeping: bool = False  # it says how much was kept of what was learnt, and nothing of one that learnt nothing
    gained: str = ""  # the score of which it measures how much of a gain was kept, where that is not perplexity


@dataclass(frozen=True)
class Arm:
    """One experiment: finished runs whose settings are equal but for seed and order."""

    title: str
    settings: Mapping[str, Any]
    runs: tuple[FinishedRun, ...]

    @property
    def family(self) -> Family:
        return family_of(self.runs[0].config)

    @property
    def size(self) -> str:
        return size_of(self.runs[0].config)

    @property
    def replays(self) -> bool:
        return replays(self.runs[0].config)

    @property
    def lesions(self) -> tuple[str, ...]:
        return lesions(self.runs[0].config)

    @property
    def is_bound(self) -> bool:
        """Joint, or of some tasks only: a reference, not a competitor."""
        stream = self.runs[0].config.stream
        assert stream is not None
        return stream.mode == "joint" or stream.only is not None

    def values(self, measure: Measure, order: tuple[str, ...] | None = None) -> dict[Repetition, float]:
        """The measure of every repetition, or of those in one order."""
        found = {repetition_of(run): measure.of(run) for run in self.runs}
        return {key: value for key, value in found.items() if order is None or key[1] == order}

    def in_order(self, order: tuple[str, ...]) -> list[FinishedRun]:
        """Its runs in one order of the tasks, by seed."""
        return [run for run in self.runs if order_of(run.config) == order]


@dataclass(frozen=True)
class Evidence:
    """All runs below some folders: those that ended, as arms, and those that did not, which count nowhere."""

    arms: tuple[Arm, ...]
    unfinished: tuple[FinishedRun, ...]

    @classmethod
    def of(cls, folders: Iterable[Path]) -> Evidence:
        """Read run folders, or folders that hold run folders."""
        runs = [read_run(path) for path in find_runs(folders)]
        ended = [run for run in runs if run.is_finished]
        if not ended:
            raise UserError(f"None of the {len(runs)} runs has ended: finish one with `trc2 resume {runs[0].folder}`.")
        _check_one_stream(ended)
        return cls(_arms(ended), tuple(run for run in runs if not run.is_finished))

    @property
    def runs(self) -> list[FinishedRun]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def tasks(self) -> list[str]:
        """Every task of the stream, as listed."""
        return self.arms[0].runs[0].tasks

    @property
    def listed_order(self) -> tuple[str, ...]:
        return tuple(self.tasks)

    @property
    def orders(self) -> list[tuple[str, ...]]:
        """The orders of all tasks that some arm was trained in, the listed one first."""
        found = {order_of(run.config) for run in self.runs if len(run.stretches) == len(self.tasks)}
        return sorted(found, key=lambda order: (order != self.listed_order, order))

    def arm(self, title: str) -> Arm | None:
        return next((arm for arm in self.arms if arm.title == title), None)


DRAWS = "model.replay_seed"


def has_own_draws(settings: Mapping[str, Any]) -> bool:
    """Whether replay is drawn by another seed than the run's; 0 is the offset of runs that wrote down the same one."""
    return settings.get(DRAWS) not in (None, 0)


def twins_among(arms: Iterable[Arm]) -> list[tuple[Arm, Arm]]:
    """A/A pairs: arms that replay and differ in the draws only, which should not matter. No arm is in two pairs."""
    known = [arm for arm in arms if arm.replays and not arm.is_bound]
    others = [arm for arm in known if has_own_draws(arm.settings)]
    found = []
    for first in (arm for arm in known if not has_own_draws(arm.settings)):
        rest = {**first.settings, DRAWS: None}
        found += [(first, second) for second in others if {**second.settings, DRAWS: None} == rest][:1]
    return found


def aa_differences(pairs: Iterable[tuple[Arm, Arm]], values: Callable[[Arm], Mapping[int, float]]) -> list[float]:
    """What repeating alone does: first minus second of every pair, by seed."""
    found = []
    for first, second in pairs:
        ours, theirs = values(first), values(second)
        found += [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return found


def aa_margin(differences: Sequence[float]) -> float | None:
    """What two arms may differ by and still be called equal; None where A/A differences do not tell."""
    known = without_largest(differences)
    if not any(known) or not all(map(math.isfinite, known)):
        return None
    return margin_from_aa(known)


def repetition_of(run: FinishedRun) -> Repetition:
    return run.config.train.seed, order_of(run.config)


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The run folders among and below some folders, each once, in the order of their names."""
    found: list[Path] = []
    for folder in folders:
        here = [folder] if RunFolder(folder).is_run else _runs_below(folder)
        if not here:
            raise UserError(
                f"{folder} is no run folder and holds none: give a folder that `trc2 train` or sweep wrote."
            )
        found += [path for path in here if path not in found]
    return found


def holds_runs(folder: Path) -> bool:
    """Whether a folder is no run itself and has some below it."""
    return not RunFolder(folder).is_run and bool(_runs_below(folder))


def _runs_below(folder: Path) -> list[Path]:
    """Run folders up to a few levels down: not hidden ones, nor what lies inside a run."""
    found = []
    for name, below, _ in os.walk(folder):
        path = Path(name)
        run = RunFolder(path)
        if run.is_run and run.has_diary:
            found.append(path)
        is_end = run.is_run or len(path.relative_to(folder).parts) >= MOST_LEVELS
        below[:] = [] if is_end else sorted(entry for entry in below if not entry.startswith("."))
    return sorted(found)


def _check_one_stream(runs: list[FinishedRun]) -> None:
    """Refuse runs on other data, of other lengths, or with other batches: no table should hold both."""
    first = runs[0]
    lengths: dict[frozenset[tuple[str, int]], FinishedRun] = {}
    for run in (run for run in runs if not declares_length(run)):
        lengths.setdefault(frozenset((s.task, s.end - s.start) for s in run.stretches), run)
    if len(lengths) > 1:
        one, other = list(lengths.values())[:2]
        raise UserError(
            f"{one.folder} and {other.folder} trained their tasks for other numbers of steps, and budget.match does "
            "not say so: report them apart."
        )
    for run in runs[1:]:
        if run.data["fingerprint"] != first.data["fingerprint"]:
            raise UserError(f"{run.folder} and {first.folder} were trained on different data: report them apart.")
        if run.tasks != first.tasks:
            raise UserError(
                f"{run.folder} has the tasks {', '.join(run.tasks)}, {first.folder} {', '.join(first.tasks)}: report "
                "them apart."
            )
    check_equal_work(runs)


def _arms(runs: list[FinishedRun]) -> tuple[Arm, ...]:
    """Runs grouped by their settings, with titles that tell the groups apart."""
    groups: list[tuple[dict[str, Any], list[FinishedRun]]] = []
    for run in runs:
        settings = learning_settings(run.config)
        group = next((members for known, members in groups if known == settings), None)
        if group is None:
            groups.append((settings, [run]))
        else:
            _check_new_repetition(run, group)
            group.append(run)
    # Where two read alike, a twin is called one; of others the one with more runs has the plain name, else that which
    # differs least from what most are.
    usual = _usual([settings for settings, _ in groups])
    groups.sort(key=lambda group: (has_own_draws(group[0]), -len(group[1]), _unlike(group[0], usual)))
    titles = _titles([(settings, members[0]) for settings, members in groups])
    arms = [
        Arm(title, settings, tuple(sorted(members, key=lambda run: (run.config.train.seed, order_of(run.config)))))
        for title, (settings, members) in zip(titles, groups, strict=True)
    ]
    return tuple(sorted(arms, key=_place))


def _usual(many: list[dict[str, Any]]) -> dict[str, str]:
    """The value of each setting that most have."""
    paths = dict.fromkeys(path for settings in many for path in settings)
    return {path: Counter(repr(settings.get(path)) for settings in many).most_common(1)[0][0] for path in paths}


def _unlike(settings: dict[str, Any], usual: dict[str, str]) -> int:
    return sum(repr(settings.get(path)) != value for path, value in usual.items())


def _check_new_repetition(run: FinishedRun, group: list[FinishedRun]) -> None:
    for known in group:
        if repetition_of(known) == repetition_of(run):
            raise UserError(
                f"{run.folder} and {known.folder} are the same run twice (seed {run.config.train.seed}): give one."
            )
        if known.stretches[-1].end != run.stretches[-1].end:
            raise UserError(
                f"{run.folder} has {run.stretches[-1].end} steps, {known.folder} {known.stretches[-1].end}, with equal "
                "settings otherwise: truncated or unequal runs are never averaged."
            )


def _place(arm: Arm) -> tuple[bool, int, int, int, int, str]:
    """Competitors before bounds, families in their order, fewer lesions first, then small models."""
    families = list(FAMILIES)
    family = families.index(arm.family.name) if arm.family.name in families else len(families)
    model = arm.runs[0].config.model
    lacks = len(arm.lesions) if arm.family.name == "trc2" else int(arm.replays)
    return arm.is_bound, family, lacks, model.d_model, model.depth, arm.title


def _titles(groups: list[tuple[dict[str, Any], FinishedRun]]) -> list[str]:
    """What an arm is; where two read alike, also in which settings they differ from the first of them."""
    plain = [title_of(run.config) for _, run in groups]
    sizes = {
        title: {size_of(run.config) for t, (_, run) in zip(plain, groups, strict=True) if t == title} for title in plain
    }
    titles: list[str] = []
    firsts: dict[str, dict[str, Any]] = {}
    for title, (settings, run) in zip(plain, groups, strict=True):
        name = f"{title} {size_of(run.config)}" if len(sizes[title]) > 1 else title
        if name not in firsts:
            firsts[name] = settings
            titles.append(name)
            continue
        other = firsts[name]
        idle = _goes_without_saying(settings, other)
        paths = [path for path in settings | other if settings.get(path) != other.get(path) and path not in idle]
        words = ", ".join(_difference(path, settings.get(path)) for path in sorted(paths))
        titles.append(f"{name.removesuffix(')')}, {words})" if name.endswith(")") else f"{name} ({words})")
    return titles


def _goes_without_saying(settings: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """What a share of the tokens makes idle, and how many chunks are stored where they are as many tokens."""
    idle = {"model.replay_coefficient", "model.replay_batch_size"} if settings.get("model.replay_share") else set()
    for store in ("model.replay_long_chunks", "model.replay_recent_chunks"):
        tokens = [values.get(store, 0) * values.get("model.replay_chunk_length", 0) for values in (settings, other)]
        if tokens[0] == tokens[1]:
            idle.add(store)
    return idle


SHORT = {"model.replay_coefficient": "λ", "model.replay_batch_size": "B_R", "model.replay_long_fraction": "ρ"}


def _difference(path: str, value: Any) -> str:
    if path == "model.replay_seed":
        return "other replay draws"
    return f"{SHORT.get(path) or path.split('.', 1)[-1]}={value}"


# ------------------------------------------------------------------------------------------------------ measures


def log_perplexity_at_end(run: FinishedRun) -> float:
    """The mean over *all* tasks of log-perplexity after the last step: it rewards both keeping and learning."""
    end = run.stretches[-1].end
    values = [run.score("perplexity", task, end) for task in run.tasks]
    return sum(math.log(value) if value > 0 else math.nan for value in values) / len(values)


def summary_value(metric: str, name: str) -> Callable[[FinishedRun], float]:
    """A number of `FinishedRun.summary`, NaN where there is none, e.g. because nothing was past."""
    return lambda run: run.summary(metric).get(f"cl/{metric}/{name}", math.nan)


PRIMARY = Measure(
    "log_perplexity", "mean log-perplexity of all tasks at the end", "lower", log_perplexity_at_end, "nats"
)
AREA = Measure(
    "aufc", "forgetting area (AUFC, log-perplexity)", "lower", summary_value("perplexity", "aufc"), "nats",
    is_keeping=True,
)  # fmt: skip
FORGETTING = Measure(
    "forgetting", "forgetting at the end (log-perplexity)", "lower", summary_value("perplexity", "forgetting"), "nats",
    is_keeping=True,
)  # fmt: skip
SPEED = Measure(
    "tokens_per_second", "training speed", "higher",
    lambda run: run.final("end").get("efficiency/tokens_per_second", math.nan), "tokens/s",
)  # fmt: skip


def final_perplexity(task: str) -> Measure:
    return Measure(
        f"{task}/perplexity", f"{task} perplexity at the end", "lower",
        lambda run: run.score("perplexity", task, run.stretches[-1].end),
    )  # fmt: skip
