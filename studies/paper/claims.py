"""The paper's claims and our questions, one declared row each."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable

from studies.paper import numbers, traces
from studies.paper.builders import (
    ACCURACY_AREA,
    BLEU_AREA,
    COMPETITIVE,
    DRIFT,
    FIGURE_ONLY,
    FULL,
    MEMORY,
    TABLE_TASKS,
    THALAMUS,
    Pair,
    ablations,
    ablations_cost_less,
    area,
    before_last,
    control,
    cost_against,
    critic_falls,
    end_accuracy,
    end_loss,
    every_size,
    factorial,
    final_loss,
    gap_in_each,
    in_each,
    in_orders,
    over_orders,
    own_loss_of,
    own_text,
    pathways,
    printed_ablation,
    relative_spread,
    replay_does_most,
    separation,
    throughout,
    trace_pair,
    traced,
    versus_baselines,
    without_replay,
)
from studies.paper.ledger import Compared, Row, Scope
from studies.paper.roles import HIPPOCAMPUS, Roles
from trc2.config.model import PARTS
from trc2.report.run import AUFC, OWN_LOSS, Measure


def scoped(scope: Scope, test: Callable[[Roles, Scope], Compared]) -> Callable[[Roles], Compared]:
    return lambda roles: test(roles, scope)


def _in(
    scope: Scope, group: str, rows: Iterable[tuple[str, str, str, str, str, Callable[[Roles, Scope], Compared]]]
) -> list[Row]:
    """Rows that exist in two scopes, for one of them."""
    tag = "" if scope is Scope.fair else ".one_sided"
    return [Row(f"{key}{tag}", statement, where, paper, how, scoped(scope, test), group, scope)
            for key, statement, where, paper, how, test in rows]  # fmt: skip


def _text_measures(roles: Roles) -> list[Measure]:
    *first, last = roles.table.tasks
    return [*[own_text(task, "bleu") for task in first], own_text(last, "token_accuracy")]


def _own_losses(roles: Roles) -> list[Measure]:
    return [own_loss_of(task) for task in roles.table.tasks]


AREAS, SIZES = f"section 4.2; {numbers.AREA_TABLE}", "Figures 2, 3, 5"
EACH = "TRC² minus each baseline, paired by seed."
AGAINST_BASELINES = (
    ("retention.area", "TRC² has the lowest perplexity AUFC at the end of the stream", f"{AREAS}; Figure 5",
     numbers.lead("area_22k"), EACH, versus_baselines(area, {"aufc": "area_22k"})),
    ("retention.accuracy_area", "TRC² has the lowest token-accuracy AUFC at the end", f"{AREAS}; section K",
     numbers.lead("accuracy_area_22k"), EACH,
     versus_baselines(lambda _: [ACCURACY_AREA], {"token_accuracy_aufc": "accuracy_area_22k"})),
    ("retention.bleu_area", "TRC² has the lowest BLEU AUFC at the end", f"{AREAS}; section K",
     numbers.lead("bleu_area_22k"), EACH, versus_baselines(lambda _: [BLEU_AREA])),
    ("retention.second_boundary", "TRC² has the lowest perplexity AUFC already before the last task",
     f"{numbers.AREA_TABLE}, 20k; Figure I.9", numbers.lead("area_20k"), EACH,
     versus_baselines(lambda _: [before_last("perplexity")], {"perplexity_aufc_before": "area_20k"})),
    ("retention.accuracy_second_boundary", "… and the lowest token-accuracy AUFC there",
     f"{numbers.AREA_TABLE}, 20k", numbers.lead("accuracy_area_20k"), EACH,
     versus_baselines(lambda _: [before_last("token_accuracy")],
                      {"token_accuracy_aufc_before": "accuracy_area_20k"})),
    ("retention.bleu_second_boundary", "… and the lowest BLEU AUFC there", f"{numbers.AREA_TABLE}, 20k",
     numbers.lead("bleu_area_20k"), EACH, versus_baselines(lambda _: [before_last("bleu")])),
    ("retention.throughout", "TRC²'s perplexity AUFC is below the baselines' throughout the stream",
     "section K; Figure K.16", FIGURE_ONLY,
     "The largest AUFC of TRC² minus the baseline's over all evaluations, by seed, against 0.", throughout),
    ("boundary.perplexity", "TRC² has the lowest perplexity of each task right after its training",
     f"section 4.2; Figure 2; {numbers.BOUNDARY_TABLE}",
     "; ".join(f"{task} {numbers.lead(task)}" for task in TABLE_TASKS),
     "Loss of each task right after its own training: TRC² minus each baseline.",
     versus_baselines(_own_losses, {f"{task}/own_loss": task for task in TABLE_TASKS})),
    ("boundary.separation", "The lead over the baselines is largest on the last task (GSM8K)",
     "section 4.2; Figure 2",
     ", ".join(f"{task} {numbers.lead_in_nats(task):.2f}" for task in TABLE_TASKS) + " nats, best against best",
     "Lead in loss over the best baseline, by seed: the last task's against each other's, and against 0.", separation),
    ("boundary.text", "TRC² has the best BLEU (first tasks) and token accuracy (last task) right after training",
     f"section 4.2; Figure 3; {numbers.BOUNDARY_TABLE}",
     f"C4 BLEU {numbers.lead('c4_bleu', 'higher')}; WikiText BLEU {numbers.lead('wikitext_bleu', 'higher')}; GSM8K "
     f"accuracy {numbers.lead('gsm8k_accuracy', 'higher')}", EACH, versus_baselines(_text_measures)),
    ("retention.scales", "The retention gain exists at every model size", f"{AREAS}; {SIZES}",
     f"five sizes: {numbers.lead('area_22k')}", "AUFC of TRC² at each size minus each baseline at each size.",
     every_size),
)  # fmt: skip

ORDERS = (
    ("orders.every", "TRC² has the lowest perplexity AUFC in every order of the tasks",
     "section J; Figures J.10 and J.11", f"{FIGURE_ONLY}: ratio best baseline / TRC² above 1 in every shuffle",
     "AUFC at the end in each order, paired by seed.", in_orders(in_each(area))),
    ("orders.throughout", "TRC²'s perplexity AUFC stays lowest throughout the stream in every order",
     "section J; Figure J.10", f"{FIGURE_ONLY}: “lowest forgetting band throughout training”",
     "The largest AUFC of TRC² minus the baseline's over all evaluations, in each order, against 0.",
     in_orders(gap_in_each)),
    ("orders.mean", "TRC²'s perplexity AUFC averaged over orders is below all baselines'",
     "section J; Figures J.10 and J.11", FIGURE_ONLY, "Mean over the orders that both have, by seed.",
     in_orders(over_orders(area), over_orders(final_loss))),
    ("orders.spread", "TRC²'s AUFC varies less with the order of the tasks than the baselines'",
     "section J; Figures J.10 and J.11", f"{FIGURE_ONLY}: “much smaller”",
     "Standard deviation over orders by seed. A model that forgets less in every order also varies less, so the "
     "spread relative to the mean is shown beside it.",
     in_orders(over_orders(area, statistics.stdev, "standard deviation"),
               over_orders(area, relative_spread, "standard deviation ÷ mean"))),
    ("orders.text", "Averaged over orders, TRC² also has the lowest BLEU and token-accuracy AUFC",
     "section J; Figure J.12", FIGURE_ONLY, "Mean over the orders that both have, by seed.",
     in_orders(over_orders(lambda _: [ACCURACY_AREA, BLEU_AREA]))),
    ("orders.boundary", "In every order TRC² has the lowest perplexity of each task right after its training",
     "section J; Figure J.13", f"{FIGURE_ONLY}: “comparatively low”",
     "Loss of each task right after its own training, in each order.", in_orders(in_each(_own_losses))),
)  # fmt: skip

COSTS = (
    ("cost.competitive", "TRC² is competitive in cost: about as many training FLOPs as the median baseline, or fewer",
     f"abstract; sections 4.2 and 5; {numbers.BOUNDARY_TABLE}", "given as tokens/s and GB·h",
     f"FLOPs per token over the median baseline's, against {COMPETITIVE:.2f}.",
     cost_against(statistics.median, "median", COMPETITIVE, "lower")),
    ("cost.cheapest", "The cheapest model is a baseline", f"section 4.2; {numbers.BOUNDARY_TABLE}",
     "given as tokens/s: the fastest run is a baseline", "FLOPs per token over the cheapest baseline's, against 1.",
     cost_against(min, "cheapest", 1.0, "higher")),
)  # fmt: skip

BAND = "–".join(f"{bound:g}" for bound in numbers.KEEP_BAND)
FEW, LOGS = numbers.SATURATED_LOGS
ROUTER_BOUND = round(numbers.ROUTER_RANGE[1] / 0.04, 2)
TRACE, LOSSES = "section E; Figure E.3", "section E; Figure E.4"
LONGER = "runs longer than the start-up of the threshold"
INSIDE = "Inside a run of TRC²"
INSIDE_ROWS = (
    Row("writes.sparse", f"After warm-up writes are sparse: keep and raw write fraction are usually {BAND}", TRACE,
        f"{numbers.LAST_KEEP_FRACTION} and {numbers.LAST_RAW_FRACTION} at the end",
        f"Share of logged steps after the start-up with a fraction within {BAND}, against a half.",
        traced([("steps with a keep fraction in the band", traces.share_of("keep_fraction", traces.in_band), 0.5,
                 "higher"),
                ("steps with a raw fraction in the band", traces.share_of("raw_fraction", traces.in_band), 0.5,
                 "higher")], LONGER, writes=True), INSIDE),
    Row("writes.saturated", "The write fraction is far from saturation at almost all logged steps", TRACE,
        f"all candidates written at {FEW} of {LOGS} logged steps ({FEW / LOGS:.2%})",
        "Share of logged steps after the start-up at which every candidate was written, against 5 %.",
        traced([("steps at which every candidate is written", traces.share_of("keep_fraction", lambda v: v >= 1), 0.05,
                 "lower")], LONGER, writes=True), INSIDE),
    Row("surprise.switches", "Surprise and write threshold rise when the task changes", TRACE, FIGURE_ONLY,
        f"First {traces.FIRST} logged steps of a task minus last {traces.LAST} of the task before, mean over switches, "
        "against 0.",
        traced([("rise of mean surprise", traces.jump("surprise_mean"), 0.0, "higher"),
                ("rise of the threshold", traces.jump("threshold"), 0.0, "higher")],
               "a switch of tasks after the threshold's start-up", writes=True), INSIDE),
    Row("surprise.relaxes", "Surprise and write threshold then fall within the task", TRACE, FIGURE_ONLY,
        "Last fifth of a task minus its first fifth, mean over tasks after the first, against 0.",
        traced([("change of mean surprise", traces.change_within("surprise_mean"), 0.0, "lower"),
                ("change of the threshold", traces.change_within("threshold"), 0.0, "lower")],
               "a task that begins after the threshold's start-up", writes=True), INSIDE),
    Row("surprise.last_switch", "The clearest rise is at the last switch (WikiText-103 → GSM8K)", TRACE, FIGURE_ONLY,
        "Rise of mean surprise at the last switch minus that at the first, by seed.",
        trace_pair("rise of mean surprise", "last switch", traces.jump("surprise_mean", -1), "first switch",
                   traces.jump("surprise_mean", 0), "higher", "a stream with two switches"), INSIDE),
    Row("critic.falls", "The critic's loss falls within each task", LOSSES, FIGURE_ONLY,
        "log10 of L_td in the first fifth of a task over the last fifth, for each task, against 0.", critic_falls,
        INSIDE),
    Row("critic.decades", "… by orders of magnitude", LOSSES, "“by orders of magnitude”; figure only",
        "The same, mean over tasks, against 1 (ten times).",
        traced([("decades L_td falls, mean over tasks", traces.decades(), 1.0, "higher")], "a logged L_td"), INSIDE),
    Row("replay.loss", "The replay loss is largest early in the first task and smaller over the later tasks", LOSSES,
        FIGURE_ONLY, "Mean L_rep after the first task minus that in the first fifth of the first task.",
        trace_pair("mean L_rep", "later tasks", traces.replay_loss(is_later=True), "beginning of the first task",
                   traces.replay_loss(is_later=False), "lower", "a logged L_rep over two tasks"), INSIDE),
    Row("losses.drift", "The critic's and the replay loss do not drift upward over the stream",
        "Figure E.4, caption", FIGURE_ONLY,
        f"Last fifth of the last task minus last fifth of the first, relative to the mean, against {DRIFT:g}.",
        traced([("relative drift of L_td", traces.drift("train/loss_td"), DRIFT, "lower"),
                ("relative drift of L_rep", traces.drift("train/loss_replay"), DRIFT, "lower")],
               "a logged L_td and L_rep"), INSIDE),
    Row("router.range", "The router loss stays bounded near its balanced value", LOSSES,
        f"{numbers.ROUTER_RANGE[0]}–{numbers.ROUTER_RANGE[1]} over the run; balanced is 0.04 (d768-l4)",
        f"Largest logged router loss over its balanced value λ_lb·L, against the paper's {ROUTER_BOUND:g}.",
        traced([("largest router loss / balanced", traces.largest_router_loss, ROUTER_BOUND, "lower")],
               "a logged router loss"), INSIDE),
    Row("router.drift", "The router loss does not drift upward over the stream", LOSSES,
        f"{numbers.ROUTER_AT_END} at the end of {numbers.ROUTER_RANGE[0]}–{numbers.ROUTER_RANGE[1]}",
        f"Last fifth of the last task minus last fifth of the first, relative to the mean, against {DRIFT:g}.",
        traced([("relative drift of the router loss", traces.drift("train/loss_load_balance"), DRIFT, "lower")],
               "a logged router loss"), INSIDE),
    Row("replay.controller", "The controller strengthens replay when it measures forgetting",
        "section 3.2; section B.6", "no trace is shown",
        "Correlation of measured forgetting and replay coefficient over the calls of the controller, against 0.",
        traced([("correlation of forgetting and coefficient", traces.controller_correlation, 0.0, "higher")],
               "three calls of the controller that differ"), INSIDE,
        notes=("The controller's equations imply it: this checks the function and is not a finding.",)),
)  # fmt: skip

ABLATION = f"section 4.2; {numbers.ABLATION_TABLE}"
AREA_VALUES = f"AUFC at 22k: {numbers.ablation_values('area_22k')}"
PROFILE = (AUFC, ACCURACY_AREA, BLEU_AREA)
PROFILE_VALUES = (
    f"BLEU: {numbers.ablation_values('bleu_area_22k')}; accuracy: {numbers.ablation_values('accuracy_area_22k')}"
)
FAIR_ABLATIONS = (
    Row("ablation.thalamus", "Removing the thalamus costs some retention", ABLATION, AREA_VALUES,
        "AUFC of TRC² minus that of TRC² without thalamus.", ablations([(FULL, THALAMUS)], area, printed_ablation),
        "Ablations with replay on both sides"),
    Row("ablation.memory", "Removing the memory costs retention, with replay on both sides", ABLATION,
        "removed only together with replay", "AUFC of TRC² minus that of TRC² without memory.",
        ablations([(FULL, MEMORY)], area), "Ablations with replay on both sides"),
    Row("ablation.profile", "TRC² has a better AUFC profile (perplexity, accuracy, BLEU) than without thalamus or "
        "memory", ABLATION, PROFILE_VALUES, "Each of the three areas: TRC² minus each ablation.",
        ablations([(FULL, THALAMUS), (FULL, MEMORY)], lambda _: PROFILE, printed_ablation),
        "Ablations with replay on both sides"),
)  # fmt: skip
HIPPO_GROUP = "Ablations of the hippocampus, which remove memory and replay together"
ONE_SIDED_ABLATIONS = (
    Row("ablation.hippocampus", "Removing the hippocampus (memory and replay) costs most retention", ABLATION,
        AREA_VALUES, "AUFC without hippocampus against the full model's, and against that without thalamus.",
        ablations([(FULL, HIPPOCAMPUS), (THALAMUS, HIPPOCAMPUS)], area, printed_ablation), HIPPO_GROUP,
        Scope.one_sided),
    Row("ablation.profile.one_sided", "The full model has the best AUFC profile (perplexity, accuracy, BLEU)", ABLATION,
        PROFILE_VALUES, "Each of the three areas: the full model minus each of the paper's three ablations.",
        ablations([(FULL, THALAMUS), (FULL, HIPPOCAMPUS), (FULL, PARTS)], lambda _: PROFILE, printed_ablation),
        HIPPO_GROUP, Scope.one_sided),
    Row("ablation.last_task", "The ablations without hippocampus are better on the last task at the end", ABLATION,
        f"GSM8K perplexity: {numbers.ablation_values('gsm8k')}; accuracy: {numbers.ablation_values('gsm8k_accuracy')}",
        "Loss and token accuracy of the last task at the end: ablation minus full model.",
        ablations([(HIPPOCAMPUS, FULL), (PARTS, FULL)],
                  lambda roles: [end_loss(roles.table.tasks[-1]), end_accuracy(roles.table.tasks[-1])],
                  printed_ablation), HIPPO_GROUP, Scope.one_sided),
    Row("ablation.pathways", "The gain is driven by thalamus and hippocampus rather than by the rest of the backbone",
        "abstract; sections 1 and 6", "at 22k against MoE d768: parts 0.34, backbone 0.51",
        "AUFC of the backbone only minus TRC² (parts) against AUFC of a baseline minus the backbone only, and against "
        "0. Also TRC² against itself without thalamus, and without memory: replay alone must not make the claim hold.",
        pathways, HIPPO_GROUP, Scope.one_sided,
        ("By the paper's own tables the backbone only already has the larger part of the gain at 22k.",)),
)  # fmt: skip

PARTS_GROUP, REPLAY_GROUP = "Thalamus × memory × replay, all eight combinations", "Replay elsewhere"
OPEN = Scope.ours
HOW_FACTORIAL = "Mean of the four configurations with it minus mean of the four without, by seed."
TWIN: list[Pair] = [(FULL, THALAMUS + MEMORY)]
OUR_ROWS = (
    *[Row(f"open.{part}", f"{part.capitalize()} lowers the final loss, averaged over the other two parts",
          "not in the paper", "not reported", HOW_FACTORIAL, factorial([[part]]), PARTS_GROUP, OPEN) for part in PARTS],
    Row("open.interactions", "The parts add up: none changes what another is worth", "not in the paper", "not reported",
        HOW_FACTORIAL, factorial([list(c) for size in (2, 3) for c in itertools.combinations(PARTS, size)]),
        PARTS_GROUP, OPEN, is_absence=True),
    Row("open.replay_most", "Of the three parts, replay does most", "not in the paper",
        "switched off only together with memory", "Main effect of replay minus that of thalamus and of memory, and "
        "against 0.", replay_does_most, PARTS_GROUP, OPEN),
    Row("open.ablations", "TRC² has a lower final loss than without thalamus, and than without memory",
        "not in the paper", f"from {numbers.ABLATION_TABLE}: "
        + ", ".join(f"{name} {numbers.primary_of(row):.3f}" for name, row in numbers.ABLATIONS.items()) + " nats",
        "Final loss of TRC² minus each ablation.", ablations([(FULL, THALAMUS), (FULL, MEMORY)], final_loss),
        PARTS_GROUP, OPEN),
    Row("open.backbone_replay", "TRC² is better than its own backbone with the same controlled replay",
        "not in the paper", "no such configuration", "Final loss of TRC² minus that of the backbone with replay.",
        ablations(TWIN, final_loss, beside=area), REPLAY_GROUP, OPEN),
    Row("open.learning", "Thalamus and memory make TRC² learn the task at hand better",
        "implied by section 4.2, not tested", "not reported",
        "Loss right after a task's own training, mean of all tasks: TRC² minus its backbone with the same replay.",
        ablations(TWIN, lambda _: [OWN_LOSS]), REPLAY_GROUP, OPEN),
    Row("open.final_loss", "TRC² has a lower final loss than every baseline with the same controlled replay",
        "not in the paper", "baselines have no replay", EACH, scoped(Scope.fair, versus_baselines(final_loss)),
        REPLAY_GROUP, OPEN),
    Row("open.final_loss_without", "Without replay on either side TRC² has a lower final loss than every baseline",
        "not in the paper", "no such configuration", "TRC² without replay minus each baseline without replay.",
        without_replay(final_loss), REPLAY_GROUP, OPEN),
    Row("open.area_without", "Without replay on either side TRC² forgets less than every baseline",
        "section 1 wants continual learning in the architecture; not tested", "no such configuration",
        "AUFC of TRC² without replay minus each baseline without replay.", without_replay(area), REPLAY_GROUP, OPEN),
    Row("open.orders_without", "Without replay on either side TRC² forgets least, averaged over orders",
        "section J calls the gain architectural; not tested", "no such configuration",
        "Mean over the orders that both have, by seed.",
        scoped(OPEN, in_orders(over_orders(area), over_orders(final_loss), ours_lacks=("replay",))), REPLAY_GROUP,
        OPEN),
    Row("open.control", "Controlled replay is better than constant replay",
        "claimed by design in section 3.2; not tested", "no such configuration",
        "Final loss of TRC² with controlled minus with constant replay.", control,
        REPLAY_GROUP, OPEN),
)  # fmt: skip

ROWS: tuple[Row, ...] = (
    *_in(Scope.fair, "TRC² against baselines with the same replay", AGAINST_BASELINES),
    *FAIR_ABLATIONS,
    *INSIDE_ROWS,
    *_in(Scope.fair, "Cost", COSTS),
    *_in(Scope.fair, "Orders of the tasks, with the same replay", ORDERS),
    *_in(Scope.one_sided, "TRC² with replay against baselines without", AGAINST_BASELINES),
    *ONE_SIDED_ABLATIONS,
    Row("cost.ablations", "Ablations cost less: without thalamus a little, without hippocampus much",
        ABLATION, "tokens/s: − thalamus ×1.06, − hippocampus ×1.43, neither ×1.50",
        "Training FLOPs per token of each ablation over the full model's, against 1; and hippocampus against thalamus.",
        ablations_cost_less, "Cost", Scope.one_sided),
    *_in(Scope.one_sided, "Cost", COSTS),
    *_in(Scope.one_sided, "Orders of the tasks, replay for TRC² only", ORDERS),
    *OUR_ROWS,
)  # fmt: skip
