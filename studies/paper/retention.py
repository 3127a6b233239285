"""Claims about TRC² against the baselines: what it keeps, and how well it learns in the first place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from studies.paper import paper
from studies.paper.casting import Cast, missing_baselines
from studies.paper.ledger import Claim, Contrast, against, rule
from trc2.metrics.forgetting import aufc_curve
from trc2.report.evidence import AREA, PRIMARY, Arm, Measure, summary_value
from trc2.report.finished import FinishedRun, gap_unit
from trc2.report.names import size_of
from trc2.report.scope import METRIC_TITLES

BLEU_AREA = Measure("bleu_aufc", "BLEU AUFC", "lower", summary_value("bleu", "aufc"), is_keeping=True, gained="bleu")
ACCURACY_AREA = Measure(
    "accuracy_aufc", "token-accuracy AUFC", "lower", summary_value("token_accuracy", "aufc"), is_keeping=True,
    gained="token_accuracy",
)  # fmt: skip


def area_at(boundary: int, metric: str = "perplexity") -> Measure:
    """AUFC at the end of a task, counted from 0; only tasks before it are past."""

    def of(run: FinishedRun) -> float:
        if len(run.stretches) <= boundary or metric not in run.tables:
            return math.nan
        return run.summary(metric, run.stretches[boundary].end).get(f"cl/{metric}/aufc", math.nan)

    title = f"{'' if metric == 'perplexity' else METRIC_TITLES[metric] + ' '}AUFC at boundary {boundary + 1}"
    unit = "nats" if metric == "perplexity" else ""
    gained = "" if metric == "perplexity" else metric
    return Measure(f"aufc_{boundary}/{metric}", title, "lower", of, unit, is_keeping=True, gained=gained)


def just_learnt(metric: str, task: str) -> Measure:
    """A task's score right after its own training; perplexity as its logarithm."""

    def of(run: FinishedRun) -> float:
        end = next((stretch.end for stretch in run.stretches if stretch.task == task), None)
        if end is None or metric not in run.tables:
            return math.nan
        value = run.score(metric, task, end)
        if metric != "perplexity":
            return value
        return math.log(value) if value > 0 else math.nan

    name = "log-perplexity" if metric == "perplexity" else metric.replace("_", " ").replace("bleu", "BLEU")
    better = "lower" if metric == "perplexity" else "higher"
    return Measure(f"{task}/{metric}", f"{task} {name} just after its training", better, of)  # type: ignore[arg-type]


def retention_claims(cast: Cast) -> list[Claim]:
    plain = cast.baselines(with_replay=False)
    first_two = "C4 → WikiText-103" if list(cast.evidence.tasks[:2]) == ["c4", "wikitext"] else "two tasks"
    return [
        _of_forgetting(
            cast, "retention.area", "TRC² has the lowest perplexity AUFC of all models at the end of the stream",
            where=f"section 4.2; {paper.AREA_TABLE}; Figure 5", paper_says=paper.lead("area_22k"), measure=AREA,
        ),
        _of_forgetting(
            cast, "retention.bleu_area", "TRC² has the lowest BLEU AUFC of all models",
            where=f"{paper.AREA_TABLE}; section K", paper_says=paper.lead("bleu_area_22k"), measure=BLEU_AREA,
            notes=("The paper's BLEU areas compare unlike with unlike; see what arithmetic says.", bleu_unit(cast)),
        ),
        _of_forgetting(
            cast, "retention.accuracy_area", "TRC² has the lowest token-accuracy AUFC of all models",
            where=f"{paper.AREA_TABLE}; section K", paper_says=paper.lead("accuracy_area_22k"),
            measure=ACCURACY_AREA,
        ),
        _of_forgetting(
            cast, "retention.second_boundary",
            f"TRC² has the lowest perplexity AUFC already after {first_two}",
            where=f"{paper.AREA_TABLE}, 20k; Figure I.9", paper_says=paper.lead("area_20k"), measure=area_at(1),
        ),
        _of_forgetting(
            cast, "retention.bleu_second_boundary", f"… and the lowest BLEU AUFC after {first_two}",
            where=f"{paper.AREA_TABLE}, 20k", paper_says=paper.lead("bleu_area_20k"),
            measure=area_at(1, "bleu"), notes=(bleu_unit(cast),),
        ),
        _of_forgetting(
            cast, "retention.accuracy_second_boundary", f"… and the lowest token-accuracy AUFC after {first_two}",
            where=f"{paper.AREA_TABLE}, 20k", paper_says=paper.lead("accuracy_area_20k"),
            measure=area_at(1, "token_accuracy"),
        ),
        _throughout(cast, plain),
        _lowest_at_boundaries(cast, plain),
        _separation(cast, plain),
        _text_scores(cast, plain),
        _scales(cast),
    ]  # fmt: skip


def versus(
    cast: Cast, rivals: Mapping[str, Arm], measures: Sequence[Measure], ours: Arm | None = None
) -> list[Contrast]:
    """TRC², or one of its lesions, against each of them."""
    ours = ours or cast.trc2
    if ours is None:
        return []
    pairs = [(measure, rival) for measure in measures for rival in rivals.values()]
    return [replace(cast.contrast(measure, ours, rival), is_one_of=True) for measure, rival in pairs]


def bleu_unit(cast: Cast) -> str:
    """What our BLEU areas are measured in, which need not be what the paper's are."""
    runs = [run for arm in cast.candidates for run in cast.runs(arm)]
    return f"Our BLEU gaps: {gap_unit(runs, 'bleu')}. TRC²'s in the paper look divided by the gain."


def needs_trc2(cast: Cast) -> list[str]:
    return [] if cast.trc2 is not None else ["runs of TRC² (all parts, controlled replay)"]


def _of_forgetting(
    cast: Cast, key: str, statement: str, *, where: str, paper_says: str, measure: Measure,
    notes: tuple[str, ...] = (),
) -> Claim:  # fmt: skip
    plain = cast.baselines(with_replay=False)
    lacking = cast.unlearned(cast.trc2) if cast.trc2 is not None else []
    missing = [*needs_trc2(cast), *missing_baselines(plain)]
    if lacking:
        missing.append(f"a TRC² that learns {', '.join(lacking)}")
    return rule(
        key, statement, where=where, paper=paper_says,
        how=f"{measure.title}: TRC² minus each baseline without replay, paired by seed.",
        contrasts=versus(cast, plain, [measure]), missing=missing, notes=notes,
    )  # fmt: skip


def _throughout(cast: Cast, plain: Mapping[str, Arm]) -> Claim:
    trc2, contrasts = cast.trc2, []
    for rival in plain.values() if trc2 is not None else ():
        assert trc2 is not None
        found = never_above(trc2, rival, cast.evidence.listed_order)
        contrasts.append(cast.told(found, trc2, rival, measure=AREA))
    return rule(
        "retention.throughout", "TRC²'s perplexity AUFC stays below the baselines' throughout the stream",
        where="section K; Figure K.16", paper="figure only",
        how="The largest AUFC of TRC² minus the baseline's over all evaluations after the first boundary, "
        "by seed, against 0.",
        contrasts=contrasts, missing=[*needs_trc2(cast), *missing_baselines(plain)],
    )  # fmt: skip


def never_above(ours: Arm, theirs: Arm, order: tuple[str, ...], when: str = "") -> Contrast:
    """The largest AUFC of the first minus the second's over all evaluations of the stream, by seed, against 0."""
    a, b = _curves(ours.in_order(order)), _curves(theirs.in_order(order))
    gaps = {seed: _largest_gap(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())}
    about = f"largest difference of AUFC over the stream{when}"
    return replace(against(about, f"{ours.title} less {theirs.title}", gaps, 0.0, "lower"), is_one_of=True)


def _curves(runs: list[FinishedRun]) -> dict[int, dict[int, float]]:
    """Mean AUFC over past tasks, by seed and step."""
    return {
        run.config.train.seed: {
            step: sum(tasks.values()) / len(tasks) for step, tasks in aufc_curve(run.tables["perplexity"]) if tasks
        }
        for run in runs
    }


def _largest_gap(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    gaps = [ours[step] - theirs[step] for step in ours.keys() & theirs.keys()]
    return math.nan if not gaps or any(map(math.isnan, gaps)) else max(gaps)


def _lowest_at_boundaries(cast: Cast, plain: Mapping[str, Arm]) -> Claim:
    measures = [just_learnt("perplexity", task) for task in cast.evidence.tasks]
    return rule(
        "boundary.perplexity", "TRC² has the lowest perplexity of each task right after its training",
        where=f"section 4.2; Figure 2; {paper.BOUNDARY_TABLE}",
        paper="; ".join(f"{task} {paper.lead(task)}" for task in ("c4", "wikitext", "gsm8k")),
        how="Log-perplexity of each task at its own boundary: TRC² minus each baseline without replay.",
        contrasts=versus(cast, plain, measures),
        missing=[*needs_trc2(cast), *missing_baselines(plain)],
        notes=("After the first task nothing can have been forgotten: a lead there is not continual learning.",),
    )  # fmt: skip


def _separation(cast: Cast, plain: Mapping[str, Arm]) -> Claim:
    tasks, trc2 = cast.evidence.tasks, cast.trc2
    leads = {task: _leads(cast, task, plain) for task in tasks} if trc2 is not None else {}
    contrasts = [
        Contrast("lead over the best baseline", tasks[-1], task, leads[tasks[-1]], leads[task], "higher")
        for task in tasks[:-1]
        if leads
    ]
    if leads and leads[tasks[-1]]:
        contrasts.append(against(f"lead on {tasks[-1]}", "TRC²", leads[tasks[-1]], 0.0, "higher"))
    return rule(
        "boundary.separation", "The lead over the baselines is largest on the last task (GSM8K)",
        where="section 4.2; Figure 2",
        how="Lead in log-perplexity over the best baseline at each task's boundary, by seed: the last task's against "
        "each other's, and against 0; on the seeds that all baselines have.",
        paper=", ".join(f"{task} {paper.lead_in_nats(task):.2f}" for task in ("c4", "wikitext", "gsm8k"))
        + " nats, best against best",
        contrasts=contrasts if plain else [],
        missing=[*needs_trc2(cast), *missing_baselines(plain)],
        notes=("GSM8K perplexities of the paper's baselines are hard to reconcile with their accuracies; see what "
               "arithmetic says.",),
    )  # fmt: skip


def _leads(cast: Cast, task: str, plain: Mapping[str, Arm]) -> dict[int, float]:
    assert cast.trc2 is not None
    measure = just_learnt("perplexity", task)
    ours = cast.seeds(cast.trc2, measure)
    found = {}
    for seed, known in on_shared_seeds(ours, [cast.seeds(arm, measure) for arm in plain.values()]).items():
        found[seed] = math.nan if any(map(math.isnan, known)) else min(known) - ours[seed]
    return found


def on_shared_seeds(ours: Mapping[int, float], theirs: Sequence[Mapping[int, float]]) -> dict[int, list[float]]:
    """The numbers of all rivals, on the seeds that all of them and we have.

    A best or a median of some rivals in one seed and of others in the next would compare unlike with unlike, and one
    of those that happen to have more seeds is not what a claim about all of them says.
    """
    shared = set(ours).intersection(*map(set, theirs)) if theirs else set()
    return {seed: [values[seed] for values in theirs] for seed in sorted(shared)}


def _text_scores(cast: Cast, plain: Mapping[str, Arm]) -> Claim:
    tasks = cast.evidence.tasks
    measures = [*[just_learnt("bleu", task) for task in tasks[:-1]], just_learnt("token_accuracy", tasks[-1])]
    return rule(
        "boundary.text", "TRC² has the best BLEU (first tasks) and token accuracy (last task) right after training",
        where=f"section 4.2; Figure 3; {paper.BOUNDARY_TABLE}",
        paper=f"C4 BLEU {paper.lead('c4_bleu', 'higher')}; WikiText BLEU {paper.lead('wikitext_bleu', 'higher')}; "
        f"GSM8K accuracy {paper.lead('gsm8k_accuracy', 'higher')}",
        how="BLEU or token accuracy at each task's own boundary: TRC² minus each baseline without replay.",
        contrasts=versus(cast, plain, measures),
        missing=[*needs_trc2(cast), *missing_baselines(plain)],
    )  # fmt: skip


def _scales(cast: Cast) -> Claim:
    sizes: dict[str, Arm] = {}
    for arm in cast.candidates:
        if arm.family.name == "trc2" and not arm.lesions and arm.runs[0].config.control.mode == "closed_loop":
            sizes.setdefault(size_of(arm.runs[0].config), arm)
    rivals = [arm for arm in cast.candidates if arm.family.name != "trc2" and not arm.replays]
    contrasts = [
        replace(cast.contrast(AREA, ours, rival), about=f"{AREA.title}, TRC² {size}", is_one_of=True)
        for size, ours in sizes.items()
        for rival in rivals
        if len(sizes) > 1
    ]
    return rule(
        "retention.scales", "The retention gain is there at every model size",
        where=f"section 4.2; Figures 2, 3, 5; {paper.AREA_TABLE}", paper=f"five sizes: {paper.lead('area_22k')}",
        how="AUFC of TRC² at each of several sizes against each baseline at each size.",
        contrasts=contrasts, missing=["TRC² and baselines at several sizes"] if len(sizes) < 2 or not rivals else [],
    )  # fmt: skip


def primary_claim(cast: Cast) -> Claim:
    """Ours: forgetting alone rewards a model that never learnt."""
    plain = cast.baselines(with_replay=False)
    return rule(
        "primary.baselines", "TRC² has the lowest mean log-perplexity over all tasks at the end",
        where=f"not in the paper, which has boundaries ({paper.BOUNDARY_TABLE}) and areas ({paper.AREA_TABLE}) apart",
        paper="not reported for baselines",
        how=f"{PRIMARY.title}: TRC² minus each baseline without replay, paired by seed.",
        contrasts=versus(cast, plain, [PRIMARY]),
        missing=[*needs_trc2(cast), *missing_baselines(plain)],
    )  # fmt: skip
