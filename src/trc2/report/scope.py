"""Which runs of the evidence a table or a figure is about, and its numbers: one order of the tasks, seeds repeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from trc2.bench.footprint import static_budget
from trc2.bench.tables import quantity
from trc2.errors import UserError, did_you_mean
from trc2.metrics.learning import unlearned
from trc2.report.evidence import Arm, Evidence, Measure, log_perplexity_at_end, twins_among
from trc2.report.finished import FinishedRun, scores_in
from trc2.report.grid import Number
from trc2.report.names import PARTS, order_of
from trc2.stats.intervals import mean_interval

Reading = Callable[[FinishedRun], float | None]
"""A number of a run, None where there is none."""


class LeftOut(Exception):
    """A table or figure that these runs cannot fill; the message says what it needs."""


NOT_LEARNT = "†"
METRIC_TITLES = {"perplexity": "PPL", "bleu": "BLEU", "token_accuracy": "token accuracy"}
TASK_TITLES = {  # (dataset, subset), subset None: any
    ("allenai/c4", None): "C4",
    ("Salesforce/wikitext", "wikitext-2-raw-v1"): "WikiText-2 raw",
    ("Salesforce/wikitext", "wikitext-103-raw-v1"): "WikiText-103 raw",
    ("Salesforce/wikitext", "wikitext-103-v1"): "WikiText-103",
    ("openai/gsm8k", None): "GSM8K",
}


@dataclass(frozen=True)
class Scope:
    """The evidence as tables and figures see it."""

    evidence: Evidence
    wanted_reference: str | None = None

    # ----------------------------------------------------------------------------------------------- which runs

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The order of the tasks that seeds are compared in: as listed, if some arm was trained so."""
        orders = self.evidence.orders
        return orders[0] if orders else self.evidence.listed_order

    def runs(self, arm: Arm) -> list[FinishedRun]:
        """Its repetitions in that order; of a bound all, since it has none."""
        return list(arm.runs) if arm.is_bound else arm.in_order(self.order)

    @cached_property
    def arms(self) -> list[Arm]:
        """Those with repetitions in the main order, bounds included."""
        return [arm for arm in self.evidence.arms if self.runs(arm)]

    @cached_property
    def competitors(self) -> list[Arm]:
        """No bounds, and no A/A twins: a repetition of an arm would win where chance favours it."""
        repeated = {second.title for _, second in self.twins}
        return [arm for arm in self.arms if not arm.is_bound and arm.title not in repeated]

    @cached_property
    def twins(self) -> list[tuple[Arm, Arm]]:
        return twins_among(self.arms)

    def competes(self, arm: Arm) -> bool:
        return arm in self.competitors

    @cached_property
    def reference(self) -> Arm:
        """What others are compared with: the arm asked for, else the most complete TRC², else the first."""
        if self.wanted_reference is not None:
            arm = self.evidence.arm(self.wanted_reference)
            if arm is None:
                titles = [arm.title for arm in self.evidence.arms]
                raise UserError(
                    f"There is no arm '{self.wanted_reference}': {did_you_mean(self.wanted_reference, titles)}"
                )
            return arm
        return (self.competitors or self.arms)[0]

    @property
    def steps(self) -> int:
        return max(run.stretches[-1].end for arm in self.arms for run in self.runs(arm))

    # ----------------------------------------------------------------------------------------------- their numbers

    def number(self, arm: Arm, of: Reading, scale: float = 1.0) -> Number | None:
        """The mean over seeds and its 95 % interval; None if no run has the number."""
        return mean_of((of(run) for run in self.runs(arm)), scale)

    def values(self, arm: Arm, of: Reading) -> dict[int, float]:
        """By seed."""
        found = {run.config.train.seed: of(run) for run in self.runs(arm)}
        return {seed: value for seed, value in found.items() if value is not None}

    # ----------------------------------------------------------------------------------------------- words

    @cached_property
    def task_titles(self) -> dict[str, str]:
        """How a task is written: its dataset's own name where we know it, and where names then still differ."""
        stream = self.evidence.runs[0].config.stream
        assert stream is not None
        titles = {
            task.name: TASK_TITLES.get((task.dataset or "", task.subset))
            or TASK_TITLES.get((task.dataset or "", None), task.name)
            for task in stream.tasks
        }
        return titles if len(set(titles.values())) == len(titles) else {name: name for name in titles}

    def unlearnt(self, arm: Arm) -> bool:
        """Whether a run of the arm did not learn one of its tasks: what it forgot then means nothing."""
        return any(unlearnt(run) for run in self.runs(arm))

    def title(self, arm: Arm) -> str:
        """What the arm is called, with a dagger if a run of it did not learn one of its tasks."""
        return f"{arm.title} {NOT_LEARNT}" if self.unlearnt(arm) else arm.title

    def order_words(self, order: tuple[str, ...]) -> str:
        names = [self.task_titles[task] for task in order]
        return " → ".join(names) if len(names) <= 4 else f"{names[0]} → … → {names[-1]} ({len(names)} tasks)"

    def order_letters(self, order: tuple[str, ...]) -> str:
        """Initials where they tell the tasks apart, else places in the list, e.g. C→W→G."""
        initials = {task: self.task_titles[task][:1].upper() for task in self.evidence.tasks}
        if len(set(initials.values())) < len(initials):
            initials = {task: str(place) for place, task in enumerate(self.evidence.tasks, start=1)}
        return "→".join(initials[task] for task in order)

    def count_words(self, arms: Iterable[Arm]) -> str:
        """n = 3 seeds, or from which to which."""
        counts = sorted({len(self.runs(arm)) for arm in arms})
        if not counts:
            return "n = 0"
        if counts == [1]:
            return "n = 1 seed"
        return f"n = {counts[0]} seeds" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]} seeds"

    def data_words(self, arms: Iterable[Arm] | None = None) -> str:
        """The line below every figure: data, sizes, length, repetitions."""
        arms = self.arms if arms is None else list(arms)
        sizes = [quantity(parameters(arm)) for arm in sorted(arms, key=parameters)]
        size = sizes[0] if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
        new = sorted({run.config.train.tokens_per_step for arm in arms for run in arm.runs})
        tokens = f"{new[0]:,}" if len(new) < 2 else f"{new[0]:,} to {new[-1]:,} new"
        return (
            f"{self.order_words(self.order)}, {size} parameters, {self.steps:,} steps of {tokens} tokens, "
            f"{self.count_words(arms)}"
        )


def mean_of(values: Iterable[float | None], scale: float = 1.0) -> Number | None:
    """Mean and half width of the 95 % t-interval of those there are."""
    known = [scale * value for value in values if value is not None]
    if not known:
        return None
    interval = mean_interval(known)
    if interval.n == 1:
        return Number(known[0])
    half = (interval.high - interval.low) / 2
    return Number(interval.mean, 0.0 if half <= 1e-12 * abs(interval.mean) else half, interval.n)  # 0 but for rounding


# ------------------------------------------------------------------------------------------------- numbers of a run


def measured(measure: Measure) -> Reading:
    """A measure as a reading: NaN stands for "not there" in those read from records, but not in a broken run."""

    def of(run: FinishedRun) -> float | None:
        value = measure.of(run)
        is_there = measure.of is log_perplexity_at_end or _is_broken(run)
        return None if math.isnan(value) and not is_there else value

    return of


def boundary_score(metric: str, task: str) -> Reading:
    """A task's score right after its own training; None where the run did not train it."""

    def of(run: FinishedRun) -> float | None:
        ends = [stretch.end for stretch in run.stretches if stretch.task == task]
        return known_score(run, metric, task, ends[-1]) if ends else None

    return of


def final_score(metric: str, task: str) -> Reading:
    return lambda run: known_score(run, metric, task, run.stretches[-1].end)


def known_score(run: FinishedRun, metric: str, task: str, step: int) -> float | None:
    table = run.tables.get(metric)
    return table.scores[step][task] if table is not None and table.has(step, task) else None


def area_at(metric: str, checkpoint: int) -> Reading:
    """AUFC at one of the run's checkpoints, counted from the end: −1 is the last step."""

    def of(run: FinishedRun) -> float | None:
        steps = checkpoints(run)
        if len(steps) < -checkpoint:
            return None
        return run.summary(metric, steps[checkpoint]).get(f"cl/{metric}/aufc")

    return of


def checkpoints(run: FinishedRun) -> list[int]:
    """Where the paper reads areas: at the last boundary before the final task, if something is past then, and the end.

    The stream of three tasks of 10k, 10k and 2k steps gives 20k and 22k.
    """
    ends = sorted({stretch.end for stretch in run.stretches})
    return ends[1:][-2:]


def cost(name: str) -> Reading:
    """A number of the run's bill, e.g. tokens_per_second."""
    return lambda run: run.final("end").get(f"efficiency/{name}")


def _is_broken(run: FinishedRun) -> bool:
    """Whether a perplexity was no number."""
    return not all(math.isfinite(value) for row in run.tables["perplexity"].scores.values() for value in row.values())


def metrics_of(runs: Iterable[FinishedRun]) -> list[str]:
    """The scores that all runs have, in their usual order; those of plug-ins last."""
    runs = list(runs)
    return [name for name in scores_in(runs) if all(name in run.tables for run in runs)]


def text_metric(run: FinishedRun, task: str) -> str | None:
    """The paper's choice of a text score: token accuracy where texts are made of several fields, such as question and
    answer, BLEU of running text; where BLEU was not measured, token accuracy."""
    stream = run.config.stream
    assert stream is not None
    layout = next(entry.format for entry in stream.tasks if entry.name == task)
    wanted = "token_accuracy" if layout == "gsm8k" or layout.count("{") > 1 else "bleu"
    return next((name for name in (wanted, "token_accuracy") if name in run.tables), None)


def unlearnt(run: FinishedRun) -> list[str]:
    """Tasks that a run trained and did not learn. That looks like not forgetting, so tables and figures mark it."""
    return unlearned(run.tables["perplexity"])


_counted: dict[str, int] = {}


def parameters(arm: Arm) -> int:
    """All parameters of the arm's model, frozen ones too."""
    model = arm.runs[0].config.model
    key = model.model_dump_json()
    if key not in _counted:
        _counted[key] = sum(part.total for part in static_budget(model).values())
    return _counted[key]


# ------------------------------------------------------------------------------------------------- groups of arms


Switches = tuple[bool, bool, bool]
"""Thalamus, memory, replay."""


def factorial(scope: Scope) -> dict[Switches, Arm]:
    """Arms of TRC² that differ in nothing but which of the three parts they have: the largest such group."""
    groups: dict[str, dict[Switches, Arm]] = {}
    for arm in scope.competitors:
        if arm.family.name != "trc2":
            continue
        rest = {path: value for path, value in arm.settings.items() if path.removeprefix("model.") not in PARTS}
        here: Switches = tuple(part not in arm.lesions for part in PARTS)  # type: ignore[assignment]
        groups.setdefault(repr(sorted(rest.items(), key=lambda item: item[0])), {}).setdefault(here, arm)
    largest = max(groups.values(), key=len, default={})
    return dict(sorted(largest.items(), reverse=True))


METHODS = ("lora_drs",)  # backbones that are themselves a method against forgetting


def plain_twin(scope: Scope, arm: Arm) -> Arm | None:
    """The arm of the same backbone and size with nothing against forgetting."""
    plain = [other for other in scope.competitors if _is_plain(other)]
    return next((other for other in plain if (other.family, other.size) == (arm.family, arm.size)), None)


def _is_plain(arm: Arm) -> bool:
    if arm.replays or arm.runs[0].config.strategy.name != "none" or arm.family.name in METHODS:
        return False
    return arm.family.name != "trc2" or arm.lesions == PARTS


def joint_bound(scope: Scope, arm: Arm) -> Arm | None:
    """The joint run of the same backbone and size: where another one ends says nothing about this."""
    joint = [a for a in scope.arms if a.is_bound and len(order_of(a.runs[0].config)) == len(scope.evidence.tasks)]
    own = [other for other in joint if (other.family, other.size) == (arm.family, arm.size)]
    return max(own, key=lambda other: len(scope.runs(other)), default=None)


MANY = 10


def headline(scope: Scope) -> list[Arm]:
    """The arms that lines are drawn of: all competitors, or, of many, without partly lesioned TRC².

    If these are still many and some are the same thing in several sizes, the best size of each.
    """
    if len(scope.competitors) <= MANY:
        return scope.competitors
    whole = ((), PARTS, PARTS[:2], PARTS[2:])  # complete, plain, plain with replay, complete without replay
    kept = [arm for arm in scope.competitors if arm.family.name != "trc2" or arm.lesions in whole]
    if len(kept) <= MANY:
        return kept
    best: dict[str, tuple[float, Arm]] = {}
    for arm in kept:
        number = scope.number(arm, log_perplexity_at_end)
        height = math.inf if number is None or math.isnan(number.value) else number.value
        name = arm.title.replace(f" {arm.size}", "")
        if name not in best or height < best[name][0]:
            best[name] = height, arm
    chosen = {arm.title for _, arm in best.values()}
    return [arm for arm in kept if arm.title in chosen]


def headline_words(scope: Scope) -> str:
    drawn = {arm.title for arm in headline(scope)}
    missing = [arm for arm in scope.competitors if arm.title not in drawn]
    lesioned = sum(bool(arm.lesions) for arm in missing)
    kinds = [f"{lesioned} partly lesioned arms"] if lesioned else []
    kinds += [f"{len(missing) - lesioned} sizes that end worse"] if len(missing) > lesioned else []
    return f" Not drawn: {' and '.join(kinds)}." if kinds else ""
