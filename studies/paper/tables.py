"""The paper's tables from runs: boundary scores, AUFC, ablation, components and complexity, and our factorial."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from studies.paper.builders import FLOPS_PER_TOKEN, factorial_sides, main_effect
from studies.paper.figures.drawing import COUNTS, TEXT_TITLES, Subject, boundary_measures, text_metric
from studies.paper.roles import Roles, mean
from trc2.config import TRC2Config
from trc2.config.model import PARTS
from trc2.costs.parameters import PAPER_COLUMNS, paper_accounting
from trc2.model.flops import pass_cost
from trc2.report.run import AUFC, FORGETTING, Measure, cost, final_score
from trc2.report.runs import interval_of
from trc2.report.tables import (
    INTERVALS,
    Column,
    NotWritten,
    Table,
    area_measures,
    marked,
    measure_columns,
    not_learned_note,
)

BILL = [
    Measure("mflops", "training FLOPs per token", FLOPS_PER_TOKEN.of, unit="M", factor=1e-6, is_ranked=False),
    Measure("speed", "last logged speed", lambda run: _last_speed(run), "higher", "tokens/s", is_ranked=False),
    Measure("gb_hours", "GB·h per device", cost("gb_hours"), is_ranked=False),
]


def _last_speed(run: Any) -> float | None:
    """The last logged speed, as the paper prints it. Of older runs the mean."""
    end = run.final("end")
    return end.get("efficiency/tokens_per_second_last", end.get("efficiency/tokens_per_second"))


def _heads(roles: Roles, variants: Sequence[str]) -> tuple[pd.Index, list[Column]]:
    """Names, parameters, width, depth, seeds and A/A repeats."""
    frame = roles.table.variants.loc[list(variants)]
    frame.index = pd.Index([marked(roles.table, variant) for variant in variants])
    models = [roles.run(variant).config.model for variant in variants]
    sizes = {"d": [model.d_model for model in models], "L": [model.depth for model in models]}
    columns = [Column("params", frame.parameters)]
    columns += [Column(name, pd.Series(values, index=frame.index)) for name, values in sizes.items()]
    return frame.index, [*columns, Column("n", frame.n), Column("A/A repeats", frame.repeats)]


def boundary_table(subject: Subject) -> Table:
    """Every task right after its own training, what the run cost, and counts as a reference."""
    roles = subject.roles
    variants = list(roles.table.variants.index)
    index, heads = _heads(roles, variants)
    measures = boundary_measures(subject)
    columns = [*heads, *measure_columns(roles.table, variants, [*measures, *BILL])]
    names = [name for name in COUNTS if any(name in known for known in subject.counts.values())]
    if names:
        index = index.append(pd.Index([f"counts, {name}" for name in names]))
        for place, measure in enumerate(measures, start=len(heads)):
            task = measure.name.split("/")[0]
            known = {f"counts, {name}": subject.counts[task][name] for name in names
                     if measure.is_log and name in subject.counts.get(task, {})}  # fmt: skip
            rows = pd.DataFrame.from_dict({name: (value, math.nan, math.nan, 1) for name, value in known.items()},
                                          orient="index", columns=["mean", "low", "high", "n"])  # fmt: skip
            if known:
                old = columns[place]
                columns[place] = Column(old.title, pd.concat([old.data, rows]), old.better, old.competes)
    caption = (
        f"Scores of every task right after its own training, order {roles.table.order}, and costs. {INTERVALS} Speed "
        "and GB·h were measured on a shared machine. Joint and single-task runs are references."
        + (" Counts: tables of word sequences on the same tokens." if names else "")
        + not_learned_note(roles.table)
    )
    return Table("boundary", "Task-boundary performance", caption, index, columns)


def aufc_table(subject: Subject) -> Table:
    roles = subject.roles
    variants = roles.table.competitors
    index, heads = _heads(roles, variants)
    caption = (
        "Area under the forgetting curve (AUFC), mean over past tasks, divided by time: before the last task and at "
        "the end. Perplexity in nats. BLEU and token accuracy as shares of the task's gain where it has one, else raw, "
        f"so BLEU areas of untrained gains mean nothing. {INTERVALS}{not_learned_note(roles.table)}"
    )
    columns = [*heads, *measure_columns(roles.table, variants, area_measures(roles.table))]
    return Table("aufc", "Forgetting area", caption, index, columns)


def _ablation_rows(roles: Roles) -> dict[str, tuple[str, str]]:
    """The paper's four rows: thalamus and hippocampus (memory and replay together) on and off."""
    found = {}
    for thalamus, hippocampus in itertools.product((True, False), repeat=2):
        missing = [*([] if thalamus else ["thalamus"]), *([] if hippocampus else ["memory", "replay"])]
        variant = roles.ablation(*missing)
        if variant is not None:
            found[variant] = "✓" if thalamus else "✗", "✓" if hippocampus else "✗"
    if len(found) < 2:
        raise NotWritten("needs TRC² with and without its thalamus or hippocampus (memory and replay)")
    return found


def _ablation(subject: Subject, name: str, title: str, caption: str, measures: Sequence[Measure]) -> Table:
    roles = subject.roles
    rows = _ablation_rows(roles)
    index, heads = _heads(roles, list(rows))
    ticks = [Column(part, pd.Series([row[place] for row in rows.values()], index=index))
             for place, part in enumerate(("thalamus", "hippocampus"))]  # fmt: skip
    columns = [*ticks, heads[-2], heads[-1], *measure_columns(roles.table, list(rows), measures)]
    return Table(name, title, f"{caption} {INTERVALS}", index, columns)


def ablation_table(subject: Subject) -> Table:
    """The upper panel: scores after the last step."""
    tasks, run = subject.tasks, subject.roles.run(next(iter(_ablation_rows(subject.roles))))
    measures = [Measure(f"{t}/end", f"{subject.task_title(t)} perplexity", final_score(t), is_log=True) for t in tasks]
    for task in tasks:
        metric = text_metric(run, task)
        if metric is not None:
            unit, factor = ("%", 100.0) if metric == "token_accuracy" else ("", 1.0)
            title = f"{subject.task_title(task)} {TEXT_TITLES[metric]}"
            measures.append(
                Measure(f"{task}/end_{metric}", title, final_score(task, metric), "higher", unit, factor=factor)
            )
    caption = (
        "TRC² with (✓) and without (✗) its thalamus and its hippocampus, which is memory and replay together. Scores "
        "after the last step."
    )
    return _ablation(subject, "ablation", "Ablation: scores at the end", caption, [*measures, *BILL])


def ablation_area_table(subject: Subject) -> Table:
    """The lower panel: forgetting areas."""
    caption = "The same configurations: forgetting areas (AUFC) before the last task and at the end."
    return _ablation(subject, "ablation_aufc", "Ablation: retention", caption, area_measures(subject.roles.table))


def factorial_table(subject: Subject) -> Table:
    """All combinations of thalamus, memory and replay."""
    roles = subject.roles
    combinations = [c for size in range(4) for c in itertools.combinations(PARTS, size)]
    rows = {variant: missing for missing in combinations if (variant := roles.ablation(*missing)) is not None}
    if len(rows) < 2:
        raise NotWritten("needs TRC² with and without some of thalamus, memory and replay")
    index, heads = _heads(roles, list(rows))
    ticks = [Column(part, pd.Series(["✗" if part in missing else "✓" for missing in rows.values()], index=index))
             for part in PARTS]  # fmt: skip
    measures = [roles.table.final_loss, AUFC, FORGETTING]
    caption = f"TRC² with (✓) and without (✗) thalamus, memory and replay. {INTERVALS}"
    columns = [*ticks, heads[-2], heads[-1], *measure_columns(roles.table, list(rows), measures)]
    return Table("factorial", "Thalamus × memory × replay", caption, index, columns)


def effects_table(subject: Subject) -> Table:
    """Main effects and interactions of the three parts, by seed."""
    roles = subject.roles
    names = [list(c) for size in (1, 2, 3) for c in itertools.combinations(PARTS, size)]
    columns: list[Column] = []
    for measure in (roles.table.final_loss, AUFC):
        rows = {}
        for parts in names:
            plus, minus = factorial_sides(roles, measure, parts)
            if plus:
                interval = interval_of([plus[seed] - minus[seed] for seed in plus])
                rows[" × ".join(parts)] = interval.mean, interval.low, interval.high, interval.n
        if not rows:
            raise NotWritten("needs a seed of all eight combinations of thalamus, memory and replay")
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high", "n"])
        columns += [Column("n", frame.n)] if not columns else []
        columns.append(Column(measure.label, frame[["mean", "low", "high"]]))
    effects = {part: mean(list(main_effect(roles, AUFC, part).values())) for part in PARTS}
    share = effects["replay"] / sum(effects.values())
    caption = (
        "Effects of the parts of TRC²: with minus without, averaged over the other two. Products are interactions: how "
        "much the effect of one part changes with another, divided by 2 for each further part. Below zero is better. "
        f"By seed, then mean [95 % t-interval]. Replay has {share:.0%} of the sum of the three effects on AUFC."
    )
    return Table("effects", "Effects of thalamus, memory and replay", caption, frame.index, columns, head="effect of")


def closed_table(subject: Subject) -> Table:
    """The share of the distance from sequential training without protection to joint training."""
    roles = subject.roles
    loss, rows = roles.table.final_loss, {}
    for backbone, joint in roles.joint.items():
        plain = roles.ablation(*PARTS) if backbone == "trc2" else roles.baselines(replay=False).get(backbone)
        if plain is None:
            continue
        base, bound = roles.seeds(loss, plain), roles.seeds(loss, joint)
        distance = mean(list(base.values())) - mean(list(bound.values()))
        same = [v for v in roles.table.competitors if roles.table.variants.backbone[v] == backbone and v != plain]
        members = [v for v in same if roles.has_usual_schedule(v)]
        for variant in members if distance > 0 else ():
            ours = roles.seeds(loss, variant)
            shares = [100 * (base[seed] - ours[seed]) / distance for seed in ours if seed in base]
            if shares:
                interval = interval_of(shares)
                rows[marked(roles.table, variant)] = interval.mean, interval.low, interval.high, interval.n
    if not rows:
        raise NotWritten("needs joint training that ends better than the same backbone without protection")
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high", "n"])
    caption = (
        "Share of the distance from the backbone without replay (0 %) to joint training of the same backbone (100 %), "
        f"in final loss, by seed. The distance counts as known. {INTERVALS}"
    )
    columns = [Column("n", frame.n), Column("closed (%)", frame[["mean", "low", "high"]], "higher", list(frame.index))]
    return Table("closed", "Distance from sequential to joint training", caption, frame.index, columns)


def component_table(subject: Subject) -> Table:
    """Shares of columns, hippocampus and thalamus in the paper's accounting."""
    rows = {}
    for variant in subject.roles.table.variants.index:
        model = subject.roles.run(variant).config.model
        missing = "".join(f" − {part}" for part in ("thalamus", "memory") if not getattr(model, part, True))
        title = f"TRC² d{model.d_model}-L{model.depth}{missing}"
        if isinstance(model, TRC2Config) and title not in rows:
            counted = paper_accounting(model)
            parts = [counted[name] for name in PAPER_COLUMNS]
            shares = [100 * part[place] / sum(p[place] for p in parts) for place in (0, 1) for part in parts]
            rows[title] = [*shares, sum(part[1] for part in parts) / 2**20]
    if not rows:
        raise NotWritten("needs a run of TRC²")
    titles = [f"{name}, {what} (%)" for what in ("parameters", "memory") for name in PAPER_COLUMNS]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=[*titles, "memory (MiB)"])
    caption = (
        "Component shares of TRC² in the paper's accounting: trainable parameters, and static memory as float32 "
        "parameters with persistent buffers. Embedding and head are left out. Percent of the three shown."
    )
    columns = [Column(title, frame[title]) for title in frame.columns]
    return Table("components", "Component budget", caption, frame.index, columns, head="model")


ORDERS = {
    "columns": "O(BT²d + BTd² + BT·k_E·d·d_ff)",
    "thalamus": "O(BT(dr + r²))",
    "hippocampus": "O(BT(d·d_k + S_max·d_k + d²))",
    "embedding and head": "not given",
}


def complexity_table(subject: Subject) -> Table:
    """The paper's orders beside counted FLOPs, and how these grow when one size doubles."""
    roles = subject.roles
    if roles.trc2 is None:
        raise NotWritten("needs a run of TRC²")
    run = roles.run(roles.trc2)
    model, train = run.config.model, run.config.train
    assert isinstance(model, TRC2Config)
    rows, length, slots = train.batch_size, train.sequence_length, model.read_slots

    def forward(config: TRC2Config, length: int, slots: int) -> dict[str, float]:
        return {
            name: cost.forward for name, cost in pass_cost(config, rows, length, slots=slots, is_batch=True).items()
        }

    base, longer = forward(model, length, slots), forward(model, 2 * length, slots)
    deeper = forward(model.replace(memory_slots=2 * model.memory_slots), length, 2 * slots)
    index = pd.Index(list(base))
    data: dict[str, list[Any]] = {
        "order in the paper": [ORDERS.get(name, "not given") for name in base],
        "forward MFLOPs per token": [base[name] / rows / length / 1e6 for name in base],
        "share (%)": [100 * base[name] / sum(base.values()) for name in base],
        "× when T doubles": [longer[name] / base[name] if base[name] else math.nan for name in base],
        "× when memory slots double": [deeper[name] / base[name] if base[name] else math.nan for name in base],
    }
    caption = (
        f"Arithmetic of one forward pass of {roles.title(roles.trc2)} with B = {rows}, T = {length} and a full memory "
        f"of {slots:,} readable slots: matrix products, counted by formulas that a test compares with torch's counter."
    )
    columns = [Column(title, pd.Series(values, index=index)) for title, values in data.items()]
    return Table("complexity", "Complexity", caption, index, columns, head="part")


TABLES: tuple[tuple[str, Callable[[Subject], Table]], ...] = (
    ("Task-boundary performance", boundary_table),
    ("Forgetting area", aufc_table),
    ("Ablation: scores at the end", ablation_table),
    ("Ablation: retention", ablation_area_table),
    ("Thalamus × memory × replay", factorial_table),
    ("Effects of thalamus, memory and replay", effects_table),
    ("Distance from sequential to joint training", closed_table),
    ("Component budget", component_table),
    ("Complexity", complexity_table),
)
