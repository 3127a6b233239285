"""Builders of the tests of claims: which comparisons decide a claim, and what is missing for them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from studies.paper import numbers, traces
from studies.paper.ledger import (
    AREA_MARGIN,
    LOSS_MARGIN,
    Better,
    Compared,
    Comparison,
    Effect,
    Scope,
    against,
)
from studies.paper.roles import BASELINES, HIPPOCAMPUS, Roles, ablation_title, mean
from trc2.config.model import PARTS
from trc2.metrics.forgetting import aufc
from trc2.report.run import (
    AUFC,
    Measure,
    Run,
    area_at,
    cost,
    final_score,
    learning,
    own_score,
    summary_value,
)
from trc2.report.variants import FAMILIES

THALAMUS, MEMORY, FULL = ("thalamus",), ("memory",), ()
BLEU_AREA = Measure("bleu_aufc", "BLEU AUFC", summary_value("aufc", "bleu"), is_forgetting=True)
ACCURACY_AREA = Measure(
    "token_accuracy_aufc", "token-accuracy AUFC", summary_value("aufc", "token_accuracy"), is_forgetting=True
)
FLOPS_PER_TOKEN = Measure("flops_per_token", "training FLOPs per token", cost("training_flops_per_token"), unit="FLOP")
TABLE_TASKS = ("c4", "wikitext", "gsm8k")
COMPETITIVE = 1 / 0.9  # times the median baseline's cost. The paper does not say what competitive means
DRIFT = 0.05  # relative to the mean: a smaller rise is not a drift
FIGURE_ONLY = "figure only"
REPLAYED = " with controlled replay"
NOT_COUNTED = "a model cannot forget what it did not learn, so this comparison does not count"


def before_last(metric: str) -> Measure:
    """AUFC at the end of the last task but one: step 20k of the paper."""
    names = {"perplexity": "", "bleu": "BLEU ", "token_accuracy": "token-accuracy "}
    unit = "nats" if metric == "perplexity" else ""
    title = f"{names[metric]}AUFC before the last task"
    return Measure(f"{metric}_aufc_before", title, area_at(metric, -2), unit=unit, is_forgetting=True)


def own_loss_of(task: str) -> Measure:
    return Measure(f"{task}/own_loss", f"{task} loss right after its own training", learning(task), unit="nats")


def own_text(task: str, metric: str) -> Measure:
    title = f"{task} {metric.replace('_', ' ').replace('bleu', 'BLEU')} right after its own training"
    return Measure(f"{task}/{metric}", title, own_score(task, metric), "higher")


def end_loss(task: str) -> Measure:
    def of(run: Run) -> float:
        value = run.score("perplexity", task, run.end)
        return math.log(value) if value is not None and value > 0 else math.nan

    return Measure(f"{task}/end_loss", f"{task} loss at the end", of, unit="nats")


def end_accuracy(task: str) -> Measure:
    title = f"{task} token accuracy at the end"
    return Measure(f"{task}/end_accuracy", title, final_score(task, "token_accuracy"), "higher")


def margin_of(measure: Measure) -> float | None:
    """The margin of relevance: only losses and their areas have one."""
    return None if measure.unit != "nats" else AREA_MARGIN if measure.is_forgetting else LOSS_MARGIN


# --------------------------------------------------------------------------------------------------- builders of tests


def pair(
    roles: Roles, measure: Measure, first: str, second: str, effect: Effect | None = None, order: str | None = None
) -> Comparison:
    """Two configurations in one measure, by seed."""
    found = Comparison(
        measure.title if order is None else f"{measure.title}, {order}", roles.title(first), roles.title(second),
        roles.seeds(measure, first, order), roles.seeds(measure, second, order), measure.better, margin_of(measure),
        effect, measure.unit or measure.name, repeats=roles.repeats(first, order) + roles.repeats(second, order),
    )  # fmt: skip
    return marked(roles, found, measure, (first, second), None if order is None else [order])


def marked(
    roles: Roles, comparison: Comparison, measure: Measure, variants: Iterable[str], orders: Iterable[str] | None = None
) -> Comparison:
    """Name the tasks that a configuration did not learn. A comparison of forgetting then does not count.

    Neither does one of kept gains in a text score that gained nothing over the untrained network.
    """
    chosen, asked = list(variants), None if orders is None else list(orders)
    lacking = {name: tasks for name in chosen if (tasks := roles.unlearned(name, asked))}
    words = [f"{roles.title(name)} did not learn {', '.join(tasks)}" for name, tasks in lacking.items()]
    metric = next((m for m in ("bleu", "token_accuracy") if measure.is_forgetting and measure.name.startswith(m)), None)
    if metric is not None:
        flat = [roles.title(name) for name in chosen if not roles.gained(name, metric, asked)]
        words += [f"{metric.replace('_', ' ').replace('bleu', 'BLEU')} gained nothing in {title}" for title in flat]
    if not words:
        return comparison
    remark = "; ".join(words)
    is_measured = all(map(math.isfinite, (*comparison.a.values(), *comparison.b.values())))
    if not measure.is_forgetting or not is_measured:
        return replace(comparison, remark=remark)
    return replace(comparison, counts=False, remark=f"{remark}: {NOT_COUNTED}")


def rivals_of(roles: Roles, scope: Scope) -> dict[str, str]:
    return roles.baselines(replay=scope is not Scope.one_sided)


def needs_rivals(roles: Roles, scope: Scope, rivals: Iterable[str]) -> list[str]:
    words = "" if scope is Scope.one_sided else REPLAYED
    return [*roles.absent_ablations(FULL), *roles.absent_baselines(rivals, words)]


def positions_note(roles: Roles, rivals: Mapping[str, str]) -> list[str]:
    learned = [FAMILIES[name][0] for name, variant in rivals.items() if not roles.is_rotary(variant)]
    if not learned:
        return []
    return [f"Confounded with positions: TRC² rotates, {', '.join(learned)} add learned positions to their input."]


def versus_baselines(
    measures: Callable[[Roles], Sequence[Measure]], field: Mapping[str, str] | None = None
) -> Callable[[Roles, Scope], Compared]:
    """TRC² against each baseline. `field` names the printed column of a measure, whose ratio is the paper's effect."""

    def test(roles: Roles, scope: Scope) -> Compared:
        ours, rivals = roles.trc2, rivals_of(roles, scope)
        missing = needs_rivals(roles, scope, rivals)
        if ours is None:
            return Compared(missing=missing)
        if lacking := roles.unlearned(ours):
            missing.append(f"a TRC² that learns {', '.join(lacking)}")
        found = []
        for measure, (family, rival) in itertools.product(measures(roles), rivals.items()):
            effect = None
            if scope is Scope.one_sided and field and measure.name in field and family in BASELINES:
                ratio = numbers.ratio(field[measure.name], family)
                effect = Effect(math.log(ratio), False) if measure.name.endswith("own_loss") else Effect(ratio)
            found.append(replace(pair(roles, measure, ours, rival, effect), is_one_of=True))
        return Compared(found, missing, notes=positions_note(roles, rivals))

    return test


def largest_gap(roles: Roles, ours: str, theirs: str, order: str | None = None) -> Comparison:
    """The largest AUFC of the first minus the second's over all evaluations of the stream, by seed, against 0."""
    a, b = (_curves(roles.runs(name, None if order is None else [order])) for name in (ours, theirs))
    gaps = {seed: _largest(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())}
    about = "largest difference of AUFC over the stream" + ("" if order is None else f", {order}")
    found = against(about, gaps, 0.0, "lower", f"{roles.title(ours)} − {roles.title(theirs)}", is_one_of=True)
    return marked(roles, found, AUFC, (ours, theirs), None if order is None else [order])


def _curves(runs: Sequence[Run]) -> dict[int, dict[int, float]]:
    """Mean AUFC over past tasks by seed and step. A/A repeats of a seed are averaged."""
    by_seed: dict[int, list[dict[int, float]]] = {}
    for run in runs:
        areas = {step: list(aufc(run.perplexity, step).values()) for step in run.perplexity.steps}
        curve = {step: mean(values) for step, values in areas.items() if values}
        by_seed.setdefault(run.config.train.seed, []).append(curve)
    return {
        seed: {step: mean([curve[step] for curve in curves]) for step in set.intersection(*map(set, curves))}
        for seed, curves in by_seed.items()
    }


def _largest(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    gaps = [ours[step] - theirs[step] for step in ours.keys() & theirs.keys()]
    return math.nan if not gaps or any(map(math.isnan, gaps)) else max(gaps)


def throughout(roles: Roles, scope: Scope) -> Compared:
    ours, rivals = roles.trc2, rivals_of(roles, scope)
    found = [] if ours is None else [largest_gap(roles, ours, rival) for rival in rivals.values()]
    return Compared(found, needs_rivals(roles, scope, rivals))


def shared_seeds(ours: Mapping[int, float], theirs: Sequence[Mapping[int, float]]) -> dict[int, list[float]]:
    """The values of all rivals on the seeds that all of them and we have, so that a best or median is of all."""
    shared = set(ours).intersection(*map(set, theirs)) if theirs else set()
    return {seed: [values[seed] for values in theirs] for seed in sorted(shared)}


def separation(roles: Roles, scope: Scope) -> Compared:
    """The lead over the best baseline on the last task against the lead on each other task, and against 0."""
    ours, rivals, tasks = roles.trc2, rivals_of(roles, scope), roles.table.tasks
    missing = needs_rivals(roles, scope, rivals)
    if ours is None or not rivals:
        return Compared(missing=missing)
    leads: dict[str, dict[int, float]] = {}
    for task in tasks:
        measure = own_loss_of(task)
        own = roles.seeds(measure, ours)
        others = [roles.seeds(measure, rival) for rival in rivals.values()]
        leads[task] = {
            seed: math.nan if any(map(math.isnan, known)) else min(known) - own[seed]
            for seed, known in shared_seeds(own, others).items()
        }
    last = tasks[-1]
    found = [
        Comparison("lead over the best baseline", last, task, leads[last], leads[task], "higher", unit="nats")
        for task in tasks[:-1]
    ]
    return Compared([*found, against(f"lead on {last}", leads[last], 0.0, "higher", unit="nats")], missing)


def every_size(roles: Roles, scope: Scope) -> Compared:
    """TRC² at each of several sizes against each baseline at each size."""
    table = roles.table
    wanted = scope is not Scope.one_sided
    ours = [v for v in roles.plain_training if table.variants.backbone[v] == "trc2" and not roles.missing(v)]
    sizes = {table.variants["size"][v]: v for v in ours if roles.is_controlled(v)}
    rivals = [
        v
        for v in roles.plain_training
        if table.variants.backbone[v] in BASELINES and table.variants.replays[v] == wanted
    ]
    if len(sizes) < 2 or not rivals:
        return Compared(missing=["TRC² and baselines at several sizes"])
    pairs = [
        replace(pair(roles, AUFC, v, rival), about=f"{AUFC.title}, TRC² {size}", is_one_of=True)
        for size, v in sizes.items()
        for rival in rivals
    ]
    return Compared(pairs, needs_rivals(roles, scope, [table.variants.backbone[rival] for rival in rivals]))


Pair = tuple[Sequence[str], Sequence[str]]
"""What the side that should be better lacks, and what the other side lacks."""


def ablations(
    pairs: Sequence[Pair],
    measures: Callable[[Roles], Sequence[Measure]],
    effect: Callable[[Measure, Pair], Effect | None] = lambda *_: None,
    beside: Callable[[Roles], Sequence[Measure]] = lambda _: (),
) -> Callable[[Roles], Compared]:
    def test(roles: Roles) -> Compared:
        def all_pairs(chosen: Sequence[Measure], *, is_effect: bool = True) -> list[Comparison]:
            return [
                pair(roles, measure, first, second, effect(measure, lacks) if is_effect else None)
                for measure in chosen
                for lacks in pairs
                if (first := roles.ablation(*lacks[0])) is not None
                and (second := roles.ablation(*lacks[1])) is not None
            ]

        missing = roles.absent_ablations(*dict.fromkeys(tuple(side) for lacks in pairs for side in lacks))
        return Compared(all_pairs(measures(roles)), missing, all_pairs(beside(roles), is_effect=False))

    return test


PRINTED_ROWS = {FULL: "full", THALAMUS: "− thalamus", HIPPOCAMPUS: "− hippocampus", PARTS: "neither"}
PRINTED_COLUMNS = {
    "aufc": "area_22k",
    "token_accuracy_aufc": "accuracy_area_22k",
    "gsm8k/end_accuracy": "gsm8k_accuracy",
}


def printed_ablation(measure: Measure, lacks: Pair) -> Effect | None:
    """The ratio of two rows of the paper's ablation table, or their difference in log-perplexity."""
    first, second = (PRINTED_ROWS.get(tuple(side)) for side in lacks)
    if first is None or second is None:
        return None
    if measure.name == "gsm8k/end_loss":
        return Effect(math.log(numbers.ablation_ratio("gsm8k", first, second)), is_ratio=False)
    column = PRINTED_COLUMNS.get(measure.name)
    return None if column is None else Effect(numbers.ablation_ratio(column, first, second))


def pathways(roles: Roles) -> Compared:
    """How much of the way from a baseline to TRC² the parts go, and how much the backbone."""
    full, plain, rivals = roles.trc2, roles.ablation(*PARTS), roles.baselines(replay=False)
    missing = [*roles.absent_ablations(FULL, PARTS, THALAMUS, MEMORY), *roles.absent_baselines(rivals)]
    found = []
    if full is not None and plain is not None:
        ours, bare = roles.seeds(AUFC, full), roles.seeds(AUFC, plain)
        parts = {seed: bare[seed] - ours[seed] for seed in ours if seed in bare}
        found.append(against("AUFC gained by the parts (backbone only → TRC²)", parts, 0.0, "higher", unit="nats"))
        for rival in rivals.values():
            theirs = roles.seeds(AUFC, rival)
            body = {seed: theirs[seed] - bare[seed] for seed in theirs if seed in bare}
            name = f"by the backbone ({roles.title(rival)} → backbone only)"
            gain = Comparison("AUFC gained", "by the parts", name, parts, body, "higher", unit="nats", is_one_of=True)
            found.append(marked(roles, gain, AUFC, (full, plain, rival)))
    for part in (THALAMUS, MEMORY):  # any backbone can have replay, so replay alone must not make the claim hold
        ablated = roles.ablation(*part)
        found += [pair(roles, AUFC, full, ablated)] if full is not None and ablated is not None else []
    shares = [
        f"{part} {mean(list(effect.values())):+.3f}" for part in PARTS if (effect := main_effect(roles, AUFC, part))
    ]
    note = [f"Main effects on AUFC: {', '.join(shares)} nats.".replace("-", "−")] if shares else []
    return Compared(found, missing, notes=note)


# --------------------------------------------------------------------------------------------------- orders


def shared_orders(roles: Roles, ours: str, rival: str) -> list[str]:
    """The orders in which both were trained, if there are several."""
    both = [order for order in roles.table.orders if roles.runs(ours, [order]) and roles.runs(rival, [order])]
    return both if len(both) > 1 else []


def in_orders(
    compare: Callable[[Roles, str, str, list[str]], list[Comparison]],
    beside: Callable[[Roles, str, str, list[str]], list[Comparison]] = lambda *_: [],
    ours_lacks: Sequence[str] = FULL,
) -> Callable[[Roles, Scope], Compared]:
    """TRC², or an ablation, against each baseline that was trained in several orders too."""

    def test(roles: Roles, scope: Scope) -> Compared:
        is_alone = "replay" in ours_lacks
        ours, words = roles.ablation(*ours_lacks), "" if scope is Scope.one_sided or is_alone else REPLAYED
        rivals = roles.baselines(replay=scope is not Scope.one_sided and not is_alone)
        orders, wanted = roles.table.orders, math.factorial(len(roles.table.tasks))
        missing = roles.absent_ablations(ours_lacks)
        if len(orders) < wanted:
            missing.append(f"runs in all {wanted} orders of the tasks (there are {len(orders)})")
        if ours is None:
            return Compared(missing=missing)
        both = {name: shared for name, rival in rivals.items() if (shared := shared_orders(roles, ours, rival))}
        missing += roles.absent_baselines(both, f"{words} in several orders")
        short = [FAMILIES[name][0] for name, shared in both.items() if len(shared) < len(orders)]
        missing += [f"{', '.join(short)}{words} in all {len(orders)} orders"] if short else []
        found, shown = [], []
        for name, shared in both.items():
            found += compare(roles, ours, rivals[name], shared)
            shown += beside(roles, ours, rivals[name], shared)
        return Compared(found, missing, shown)

    return test


def in_each(measures: Callable[[Roles], Sequence[Measure]]) -> Callable[[Roles, str, str, list[str]], list[Comparison]]:
    def compare(roles: Roles, ours: str, rival: str, orders: list[str]) -> list[Comparison]:
        chosen = itertools.product(measures(roles), orders)
        return [replace(pair(roles, measure, ours, rival, order=order), is_one_of=True) for measure, order in chosen]

    return compare


def over_orders(
    measures: Callable[[Roles], Sequence[Measure]], reduce: Callable[[list[float]], float] = mean, words: str = "mean"
) -> Callable[[Roles, str, str, list[str]], list[Comparison]]:
    """A number over the orders, for each seed that has them all: orders of one seed are not independent."""

    def side(roles: Roles, measure: Measure, variant: str, orders: list[str]) -> dict[int, float]:
        by_order = [roles.seeds(measure, variant, order) for order in orders]
        return {seed: reduce([values[seed] for values in by_order]) for seed in set.intersection(*map(set, by_order))}

    def compare(roles: Roles, ours: str, rival: str, orders: list[str]) -> list[Comparison]:
        found = []
        for measure in measures(roles):
            a, b = (side(roles, measure, variant, orders) for variant in (ours, rival))
            about = f"{measure.title}, {words} over {len(orders)} orders"
            margin = margin_of(measure) if words == "mean" else None
            c = Comparison(about, roles.title(ours), roles.title(rival), a, b, measure.better, margin,
                           unit=measure.unit or measure.name, is_one_of=True)  # fmt: skip
            found.append(marked(roles, c, measure, (ours, rival), orders))
        return found

    return compare


def gap_in_each(roles: Roles, ours: str, rival: str, orders: list[str]) -> list[Comparison]:
    return [largest_gap(roles, ours, rival, order) for order in orders]


def relative_spread(values: list[float]) -> float:
    return statistics.stdev(values) / mean(values) if len(values) > 1 and mean(values) else math.nan


# --------------------------------------------------------------------------------------------------- traces


def by_seed(roles: Roles, of: traces.Trace) -> dict[int, float]:
    """A number of TRC²'s runs, by seed. A/A repeats of a seed are averaged."""
    return {} if roles.trc2 is None else roles.traced(of, roles.trc2)


Bounded = tuple[str, traces.Trace, float, Better]
"""What is measured, how, the bound, and which side of it the claim names."""


def traced(
    bounded: Sequence[Bounded], needs: str, beside: Sequence[Bounded] = (), writes: bool = False
) -> Callable[[Roles], Compared]:
    """Numbers of TRC²'s logs against bounds. Where writes are saturated, claims about them cannot be tested."""

    def test(roles: Roles) -> Compared:
        if roles.trc2 is None:
            return Compared(missing=roles.absent_ablations(FULL))
        repeats, notes = roles.repeats(roles.trc2), []
        saturated = all(map(traces.is_saturated, roles.runs(roles.trc2)))
        if writes and (known := by_seed(roles, traces.clipped_share)):
            notes = [f"Share of steps whose largest surprise is at its clip: {_percent(known)}."]

        def comparison(entry: Bounded) -> Comparison | None:
            about, of, bound, better = entry
            values = by_seed(roles, of)
            if not values:
                return None
            found = against(about, values, bound, better, repeats=repeats)
            is_void = saturated and ("threshold" in about or "fraction" in about or "written" in about)
            remark = "every candidate's surprise is at its clip, so the threshold cannot select"
            return replace(found, counts=False, remark=remark) if is_void else found

        found = [c for entry in bounded if (c := comparison(entry)) is not None]
        shown = [c for entry in beside if (c := comparison(entry)) is not None]
        return Compared(found, [] if len(found) == len(bounded) else [needs], shown, notes)

    return test


def _percent(values: Mapping[int, float]) -> str:
    return ", ".join(f"{value:.0%} (seed {seed})" for seed, value in sorted(values.items()))


def trace_pair(
    about: str, first: str, of: traces.Trace, second: str, than: traces.Trace, better: Better, needs: str
) -> Callable[[Roles], Compared]:
    """Two numbers of the same run of TRC²."""

    def test(roles: Roles) -> Compared:
        a, b = by_seed(roles, of), by_seed(roles, than)
        found = (
            [Comparison(about, first, second, a, b, better, repeats=roles.repeats(roles.trc2))]
            if a and roles.trc2
            else []
        )
        return Compared(found, [] if found else [*roles.absent_ablations(FULL), needs])

    return test


def critic_falls(roles: Roles) -> Compared:
    rows = [(f"decades L_td falls in {task}", traces.decades(task), 0.0, "higher") for task in roles.table.tasks]
    return traced(rows, "a logged L_td")(roles)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- cost


def cost_ratio(roles: Roles, first: str | None, second: str | None) -> dict[int, float]:
    if first is None or second is None:
        return {}
    a, b = (roles.seeds(FLOPS_PER_TOKEN, variant) for variant in (first, second))
    return {seed: a[seed] / b[seed] for seed in a if seed in b}


def ablations_cost_less(roles: Roles) -> Compared:
    about, found = "training FLOPs per token, relative to the full model", []
    for missing in (THALAMUS, HIPPOCAMPUS, PARTS):
        if ratios := cost_ratio(roles, roles.ablation(*missing), roles.trc2):
            found.append(against(about, ratios, 1.0, "lower", ablation_title(missing)))
    both = cost_ratio(roles, roles.ablation(*HIPPOCAMPUS), roles.ablation(*THALAMUS))
    if both:
        found.append(against("training FLOPs per token, without hippocampus over without thalamus", both, 1.0, "lower"))
    return Compared(found, roles.absent_ablations(FULL, THALAMUS, HIPPOCAMPUS, PARTS))


def cost_against(
    reduce: Callable[[list[float]], float], words: str, bound: float, better: Better
) -> Callable[[Roles, Scope], Compared]:
    """TRC²'s FLOPs over one of all the baselines', on the seeds that all have."""

    def test(roles: Roles, scope: Scope) -> Compared:
        rivals = rivals_of(roles, scope)
        missing = needs_rivals(roles, scope, rivals)
        if roles.trc2 is None or not rivals:
            return Compared(missing=missing)
        ours = roles.seeds(FLOPS_PER_TOKEN, roles.trc2)
        known = shared_seeds(ours, [roles.seeds(FLOPS_PER_TOKEN, rival) for rival in rivals.values()])
        ratios = {seed: ours[seed] / reduce(values) for seed, values in known.items()}
        about = f"training FLOPs per token over the {words} baseline's"
        return Compared([against(about, ratios, round(bound, 2), better)] if ratios else [], missing)

    return test


# --------------------------------------------------------------------------------------------------- our questions


COMBINATIONS = [tuple(c) for size in range(4) for c in itertools.combinations(PARTS, size)]
SIDES = {1: ("with", "without"), 2: ("both or neither", "one of them"), 3: ("all or one", "two or none")}


def factorial_sides(roles: Roles, measure: Measure, parts: Sequence[str]) -> tuple[dict[int, float], dict[int, float]]:
    """Means over the four configurations of sign + and of sign −, by the seeds that all eight have.

    The sign is the product over `parts` of +1 where the configuration has the part and −1 where it lacks it.
    """
    sides: tuple[list[dict[int, float]], list[dict[int, float]]] = [], []
    for missing in COMBINATIONS:
        variant = roles.ablation(*missing)
        if variant is None:
            return {}, {}
        sides[sum(part in missing for part in parts) % 2].append(roles.seeds(measure, variant))
    seeds = sorted(set.intersection(*[set(values) for side in sides for values in side]))
    plus, minus = ({seed: mean([values[seed] for values in side]) for seed in seeds} for side in sides)
    return plus, minus


def main_effect(roles: Roles, measure: Measure, part: str) -> dict[int, float]:
    plus, minus = factorial_sides(roles, measure, [part])
    return {seed: plus[seed] - minus[seed] for seed in plus}


def absent_combinations(roles: Roles) -> list[str]:
    absent = roles.absent_ablations(*COMBINATIONS)
    return ["runs of all eight combinations of thalamus, memory and replay"] if len(absent) == 8 else absent


def factorial(names: Sequence[Sequence[str]]) -> Callable[[Roles], Compared]:
    """Main effects and interactions on the final loss, and beside them on AUFC."""

    def test(roles: Roles) -> Compared:
        found: list[list[Comparison]] = [[], []]
        for place, measure in enumerate((roles.table.final_loss, AUFC)):
            for parts in names:
                a, b = factorial_sides(roles, measure, parts)
                margin = margin_of(measure)
                scale = 2 ** (len(parts) - 1)  # an interaction is this fraction of the change in a part's worth
                kind = "effect" if len(parts) == 1 else "interaction"
                about = f"{kind} of {' × '.join(parts)} on {measure.title}"
                if a:
                    margin = None if margin is None else margin / scale
                    found[place].append(Comparison(about, *SIDES[len(parts)], a, b, "lower", margin, unit="nats"))
        return Compared(found[0], absent_combinations(roles), found[1])

    return test


def replay_does_most(roles: Roles) -> Compared:
    effects = {part: main_effect(roles, roles.table.final_loss, part) for part in PARTS}
    if not effects["replay"]:
        return Compared(missing=absent_combinations(roles))
    about = f"main effect on {roles.table.final_loss.title}"
    found = [
        Comparison(about, "replay", part, effects["replay"], effects[part], unit="nats")
        for part in ("thalamus", "memory")
    ]
    return Compared(
        [*found, against(about, effects["replay"], 0.0, "lower", "replay", unit="nats")], absent_combinations(roles)
    )


def final_loss(roles: Roles) -> list[Measure]:
    return [roles.table.final_loss]


def area(_: Roles) -> list[Measure]:
    return [AUFC]


def without_replay(measures: Callable[[Roles], Sequence[Measure]]) -> Callable[[Roles], Compared]:
    """TRC² without replay against each baseline without replay."""

    def test(roles: Roles) -> Compared:
        ours, rivals = roles.ablation("replay"), roles.baselines(replay=False)
        pairs = itertools.product(measures(roles), rivals.values()) if ours is not None else ()
        found = [replace(pair(roles, measure, str(ours), rival), is_one_of=True) for measure, rival in pairs]
        missing = [*roles.absent_ablations(("replay",)), *roles.absent_baselines(rivals)]
        return Compared(found, missing, notes=positions_note(roles, rivals))

    return test


def control(roles: Roles) -> Compared:
    """The controller against constants. A weaker constant cannot tell steering from more replay."""
    trc2, missing = (
        roles.trc2,
        [*roles.absent_ablations(FULL), *([] if roles.constants else ["runs of TRC² with constant replay"])],
    )
    if trc2 is None:
        return Compared(missing=missing)
    strength = mean(list(by_seed(roles, traces.steered_strength).values()))
    strengths = [roles.run(variant).config.model.replay_coefficient for variant in roles.constants]
    if strengths and max(strengths) < strength:
        missing.append(f"a constant coefficient of at least {strength:.3g}, the controller's mean after the first task")
    pairs = [
        [pair(roles, measure, trc2, variant) for variant in roles.constants]
        for measure in (roles.table.final_loss, AUFC)
    ]
    return Compared(pairs[0], missing, pairs[1])
