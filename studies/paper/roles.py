"""Which configurations of a folder of runs play which part in the paper's comparisons, decided by their settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from trc2.config.model import PARTS
from trc2.metrics.forgetting import is_divided
from trc2.report.run import Measure, Run
from trc2.report.runs import RunTable
from trc2.report.variants import FAMILIES, title_of
from trc2.runs.identity import variant_settings

BASELINES = tuple(name for name in FAMILIES if name != "trc2")
HIPPOCAMPUS = ("memory", "replay")  # the paper removes both together
SWITCHES = {*(f"model.{part}" for part in PARTS), "control.mode"}
STRENGTHS = {"model.replay_coefficient", "model.replay_batch_size", "model.replay_long_fraction"}


class Roles:
    """The runs, asked by role. A role that no run plays is None or missing from a mapping."""

    def __init__(self, table: RunTable) -> None:
        self.table = table

    def run(self, variant: str) -> Run:
        return self.table.example(variant)

    def title(self, variant: str) -> str:
        """The configuration in words, from its settings. Where two read alike, the title of the table of runs."""
        return self._titles[variant]

    @cached_property
    def _titles(self) -> dict[str, str]:
        titles = {variant: title_of(self.run(variant).config) for variant in self.table.runs.variant.unique()}
        counts = Counter(titles.values())
        largest = {title: self._first_of([v for v in titles if titles[v] == title]) for title in counts}
        return {v: title if counts[title] == 1 or largest[title] == v else v for v, title in titles.items()}

    def _first_of(self, variants: Sequence[str]) -> str:
        """Of several configurations with one title, the one with most runs keeps it."""
        return max(variants, key=lambda variant: int((self.table.runs.variant == variant).sum()))

    def seeds(self, measure: Measure, variant: str, order: str | None = None) -> dict[int, float]:
        """A measure by seed in one order of the tasks. A/A repeats of a seed are averaged."""
        return self.table.seeds(measure, variant, order=order)

    def traced(self, of: Callable[[Run], float | None], variant: str) -> dict[int, float]:
        """A number of one configuration's runs by seed, for numbers that other configurations do not have."""
        found: dict[int, list[float]] = {}
        for run in self.runs(variant):
            value = of(run)
            if value is not None:
                found.setdefault(run.config.train.seed, []).append(value)
        return {seed: mean(values) for seed, values in sorted(found.items())}

    @cached_property
    def plain_training(self) -> list[str]:
        """Competitors that use no strategy beside replay."""
        frame = self.table.variants
        return [name for name in self.table.competitors if frame.strategy[name] == "none"]

    # ------------------------------------------------------------------------------------------------- TRC²

    @cached_property
    def _trc2_group(self) -> list[str]:
        """TRC² and its ablations: of the groups that differ only in the three parts, the largest with a full model."""
        groups: dict[str, list[str]] = {}
        for name in self.plain_training:
            if self.table.variants.backbone[name] == "trc2":
                groups.setdefault(repr(_rest(self.run(name), SWITCHES)), []).append(name)
        return max(groups.values(), key=self._rank, default=[])

    def _rank(self, group: Sequence[str]) -> tuple[bool, int]:
        is_whole = any(not self.missing(name) and self.is_controlled(name) for name in group)
        return is_whole, sum(self.table.variants.n[name] for name in group)

    def missing(self, variant: str) -> set[str]:
        """The parts that a TRC² lacks."""
        return set(filter(None, self.table.variants.missing[variant].split(", ")))

    def is_controlled(self, variant: str) -> bool:
        """Whether the paper's controller steers the weight of replay."""
        config = self.run(variant).config
        return config.control.mode == "closed_loop" and config.model.replay_share is None

    def ablation(self, *missing: str) -> str | None:
        """TRC² without some parts. With replay, the paper's controller steers it."""
        for name in self._trc2_group:
            if self.missing(name) == set(missing) and ("replay" in missing or self.is_controlled(name)):
                return name
        return None

    @property
    def trc2(self) -> str | None:
        return self.ablation()

    @cached_property
    def constants(self) -> list[str]:
        """TRC² with constant replay of any strength, equal to TRC² in all other settings."""
        if self.trc2 is None:
            return []
        steered = {"control.mode", *STRENGTHS}
        rest = _rest(self.run(self.trc2), steered)
        return [
            name
            for name in self.plain_training
            if self.run(name).config.control.mode == "fixed" and not self.missing(name)
            if self.table.variants.backbone[name] == "trc2" and _rest(self.run(name), steered) == rest
        ]  # fmt: skip

    # ------------------------------------------------------------------------------------------------- baselines

    def baselines(self, *, replay: bool) -> dict[str, str]:
        """By backbone: the baseline without replay, or with the replay and controller of TRC².

        Of several the comparable one is taken: the width of TRC², more than one seed, rotary positions as in TRC²,
        most seeds.
        """
        frame = self.table.variants
        found: dict[str, str] = {}
        for name in self.plain_training:
            backbone = frame.backbone[name]
            if backbone == "trc2" or frame.replays[name] != replay or (replay and not self.is_controlled(name)):
                continue
            if backbone not in found or self._comparable(name) > self._comparable(found[backbone]):
                found[backbone] = name
        return {backbone: found[backbone] for backbone in FAMILIES if backbone in found}

    def _comparable(self, variant: str) -> tuple[bool, bool, bool, int]:
        n, width = int(self.table.variants.n[variant]), self.run(variant).config.model.d_model
        is_wide = self.trc2 is None or width == self.run(self.trc2).config.model.d_model
        return is_wide, n > 1, self.is_rotary(variant), n

    def is_rotary(self, variant: str) -> bool:
        model = self.run(variant).config.model
        return model.name == "trc2" or getattr(model, "positions", "learned") == "rotary"

    @cached_property
    def joint(self) -> dict[str, str]:
        """By backbone: training on the mixture of all tasks, the bound. If possible with the schedule of TRC²."""
        found: dict[str, str] = {}
        references = list(self.table.variants.index[self.table.variants.is_reference])
        for name in sorted(references, key=lambda variant: not self.has_usual_schedule(variant)):
            stream = self.run(name).config.stream
            if stream is not None and stream.mode == "joint" and stream.only is None:
                found.setdefault(self.table.variants.backbone[name], name)
        return found

    def has_usual_schedule(self, variant: str) -> bool:
        """Whether its learning rate follows the schedule of TRC²."""
        schedule = self.run(variant).config.train.schedule
        return self.trc2 is None or schedule == self.run(self.trc2).config.train.schedule

    @cached_property
    def panel(self) -> list[str]:
        """One configuration per family for figures: TRC² itself, and each baseline with the same replay.

        A family that was never trained with replay is shown without.
        """
        fair, alone = self.baselines(replay=True), self.baselines(replay=False)
        chosen = [fair.get(name) or alone.get(name) for name in BASELINES]
        return [name for name in [self.trc2, *chosen] if name is not None]

    # ------------------------------------------------------------------------------------------------- caveats

    @cached_property
    def _runs(self) -> dict[str, list[tuple[str, bool, Run]]]:
        """By configuration: the order of each run, whether it is a reference, and the run."""
        found: dict[str, list[tuple[str, bool, Run]]] = {}
        for name, variant, order, is_reference in self.table.runs[["variant", "order", "is_reference"]].itertuples():
            found.setdefault(variant, []).append((order, is_reference, self.table.by_name[name]))
        return found

    def runs(self, variant: str, orders: Iterable[str] | None = None) -> list[Run]:
        """The runs of a configuration in some orders, by default the main one. Reference runs have no order."""
        wanted = {self.table.order} if orders is None else set(orders)
        return [run for order, is_reference, run in self._runs[variant] if is_reference or order in wanted]

    def unlearned(self, variant: str, orders: Iterable[str] | None = None) -> list[str]:
        """Tasks that some run of the configuration did not learn."""
        return list(dict.fromkeys(task for run in self.runs(variant, orders) for task in run.unlearned))

    def gained(self, variant: str, metric: str, orders: Iterable[str] | None = None) -> bool:
        """Whether the score of every past task rose above the untrained network's, so gaps are shares of a gain."""
        tables = [run.tables[metric] for run in self.runs(variant, orders) if metric in run.tables]
        past = [(table, span) for table in tables for span in table.spans[:-1]]
        return bool(past) and all(is_divided(table, span) for table, span in past)

    def repeats(self, variant: str, order: str | None = None) -> int:
        """How many A/A repeats were averaged into the values of a configuration in one order."""
        rows = self.table.runs
        in_order = rows.is_reference | (rows.order == (order or self.table.order))
        return int(((rows.variant == variant) & in_order & (rows.draw != 0)).sum())

    # ------------------------------------------------------------------------------------------------- what is missing

    def absent_baselines(self, known: Iterable[str], what: str = "") -> list[str]:
        absent = [FAMILIES[name][0] for name in BASELINES if name not in set(known)]
        if len(absent) == len(BASELINES):
            return [f"runs of the seven baselines{what}"]
        return [f"runs of {', '.join(absent)}{what}"] if absent else []

    def absent_ablations(self, *wanted: Sequence[str]) -> list[str]:
        return [f"runs of {ablation_title(missing)}" for missing in wanted if self.ablation(*missing) is None]


def ablation_title(missing: Sequence[str]) -> str:
    """What an ablation is called, as `trc2.report.variants.title_of` would."""
    if set(missing) == set(PARTS):
        return "TRC² backbone only"
    if set(missing) == set(PARTS[:2]):
        return "TRC² backbone + controlled replay"
    return f"TRC² without {' and '.join(part for part in PARTS if part in missing)}" if missing else "TRC²"


def _rest(run: Run, without: set[str]) -> dict[str, Any]:
    """The settings of a run without some of them and without the seed of replay."""
    settings = variant_settings(run.config)
    return {path: settings[path] for path in sorted(settings) if path not in {*without, "model.replay_seed"}}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
