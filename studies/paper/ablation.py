"""Claims about what the parts of TRC² are for: Table 1 of the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

from studies.paper import paper
from studies.paper.casting import HIPPOCAMPUS, Cast, lesion_name, missing_baselines
from studies.paper.ledger import Claim, Contrast, against, rule
from studies.paper.retention import ACCURACY_AREA, BLEU_AREA, bleu_unit
from trc2.report.evidence import AREA, PRIMARY, Measure
from trc2.report.finished import FinishedRun
from trc2.report.names import PARTS

THALAMUS = ("thalamus",)
HIPPO = tuple(part for part in PARTS if part in HIPPOCAMPUS)
Pair = tuple[tuple[str, ...], tuple[str, ...]]  # what the better side lacks, what the other lacks


def ablation_claims(cast: Cast) -> list[Claim]:
    last = cast.evidence.listed_order[-1]
    return [
        _lesions(
            cast, "lesion.hippocampus", "Removing the hippocampus (memory and replay together) costs most retention",
            [((), HIPPO), (THALAMUS, HIPPO)], [AREA], where=f"section 4.2; {paper.LESION_TABLE}",
            paper_says=f"PPL AUFC at 22k: {paper.lesion_values('area_22k')}",
            how="AUFC without hippocampus against the full model's, and against that without thalamus.",
        ),
        _lesions(
            cast, "lesion.thalamus", "Removing the thalamus costs some retention",
            [((), THALAMUS)], [AREA], where=f"section 4.2; {paper.LESION_TABLE}",
            paper_says=f"PPL AUFC at 22k: full {paper.LESIONS['full'].area_22k}, "
            f"− thalamus {paper.LESIONS['− thalamus'].area_22k}",
            how="AUFC of the full model minus that of TRC² without thalamus.",
        ),
        _lesions(
            cast, "lesion.profile", "The full model has the best AUFC profile: perplexity, BLEU and token accuracy",
            [((), THALAMUS), ((), HIPPO), ((), PARTS)], [AREA, BLEU_AREA, ACCURACY_AREA],
            where=f"section 4.2; {paper.LESION_TABLE}",
            paper_says=f"BLEU: {paper.lesion_values('bleu_area_22k')}; "
            f"accuracy: {paper.lesion_values('accuracy_area_22k')}",
            how="Each of the three areas: the full model minus each of the three lesions.", notes=[bleu_unit(cast)],
        ),
        _lesions(
            cast, "lesion.last_task", "The lesions without hippocampus are better on the last task at the end",
            [(HIPPO, ()), (PARTS, ())], [_end_of(last, "perplexity"), _end_of(last, "token_accuracy")],
            where=f"section 4.2; {paper.LESION_TABLE}",
            paper_says=f"GSM8K perplexity: {paper.lesion_values('gsm8k')}; "
            f"accuracy: {paper.lesion_values('gsm8k_accuracy')}",
            how="Log-perplexity and token accuracy of the last task at the end: lesion minus full model.",
        ),
        _lesions(
            cast, "lesion.primary", "The full model is better than each lesion over all tasks at the end",
            [((), THALAMUS), ((), HIPPO), ((), PARTS)], [PRIMARY],
            where=f"not in the paper; computed from {paper.LESION_TABLE}", paper_says=paper_primary(),
            how=f"{PRIMARY.title}: the full model minus each of the three lesions.",
        ),
        _pathways(cast),
    ]  # fmt: skip


def paper_primary() -> str:
    """Mean log-perplexity of the three tasks at 22k by the paper's own table."""
    return ", ".join(f"{name} {primary_of(row):.3f}" for name, row in paper.LESIONS.items()) + " nats"


def primary_of(row: paper.LesionRow) -> float:
    return (math.log(row.c4) + math.log(row.wikitext) + math.log(row.gsm8k)) / 3


def _end_of(task: str, metric: str) -> Measure:
    """A task's score after the last step; perplexity as its logarithm."""

    def of(run: FinishedRun) -> float:
        value = run.score(metric, task, run.stretches[-1].end) if metric in run.tables else math.nan
        if metric != "perplexity":
            return value
        return math.log(value) if value > 0 else math.nan

    if metric == "perplexity":
        return Measure(f"{task}/log_perplexity", f"{task} log-perplexity at the end", "lower", of, "nats")
    return Measure(f"{task}/{metric}", f"{task} {metric.replace('_', ' ')} at the end", "higher", of)


def _lesions(
    cast: Cast, key: str, statement: str, pairs: Sequence[Pair], measures: Sequence[Measure], *, where: str,
    paper_says: str, how: str, notes: Sequence[str] = (),
) -> Claim:  # fmt: skip
    """Arms that lack one thing against arms that lack another, in each of the measures."""
    contrasts, missing = [], []
    for measure in measures:
        for better, worse in pairs:
            first, second = cast.lesion(*better), cast.lesion(*worse)
            if first is not None and second is not None:
                contrasts.append(cast.contrast(measure, first, second))
            missing += [f"runs of {lesion_name(*m)}" for m in (better, worse) if cast.lesion(*m) is None]
    return rule(
        key, statement, where=where, paper=paper_says, how=how, contrasts=contrasts, missing=missing, notes=notes
    )


def _pathways(cast: Cast) -> Claim:
    """Of the way from a baseline down to TRC², which part do thalamus and hippocampus go, which the body?"""
    full, plain, rivals = cast.trc2, cast.lesion(*PARTS), cast.baselines(with_replay=False)
    missing = [f"runs of {lesion_name(*m)}" for m in ((), PARTS) if cast.lesion(*m) is None]
    contrasts = []
    if full is not None and plain is not None:
        ours, bare = cast.seeds(full, AREA), cast.seeds(plain, AREA)
        parts = {seed: bare[seed] - ours[seed] for seed in ours if seed in bare}
        contrasts.append(
            against("AUFC gained by the parts (plain twin → TRC²)", "TRC²", parts, 0.0, "higher", scale=AREA.unit)
        )
        for rival in rivals.values():
            theirs = cast.seeds(rival, AREA)
            body = {seed: theirs[seed] - bare[seed] for seed in theirs if seed in bare}
            found = Contrast("AUFC gained", "by the parts (plain twin → TRC²)",
                             f"by the body ({rival.title} → plain twin)", parts, body, "higher",
                             scale=AREA.unit, is_one_of=True)  # fmt: skip
            contrasts.append(cast.told(found, full, plain, rival, measure=AREA))
    for part in ("thalamus", "memory"):  # replay apart: any backbone can have it
        lesioned = cast.lesion(part)
        missing += [] if lesioned else [f"runs of {lesion_name(part)}"]
        contrasts += [cast.contrast(AREA, full, lesioned)] if full and lesioned else []
    moe = next(row for row in paper.ROWS if row.family == "moe" and row.d_model == 768)
    bare_area, full_area = paper.LESIONS["neither"].area_22k, paper.LESIONS["full"].area_22k
    return rule(
        "lesion.pathways", "The gain is driven by thalamus and hippocampus rather than by the rest of the backbone",
        where="abstract; sections 1 and 6",
        paper=f"at 22k against MoE d768: parts {bare_area - full_area:.2f}, body {moe.area_22k - bare_area:.2f}",
        how="AUFC of the plain twin minus TRC² (parts) against AUFC of a baseline minus the plain twin (body), and "
        "against 0; and TRC² against itself without thalamus, and without memory: replay alone must not make it hold.",
        contrasts=contrasts, missing=[*missing, *missing_baselines(rivals)],
        notes=("By the paper's own Table 1 and D.2 the plain twin already has the larger part of the gain at 22k, "
               "and none of it at 20k; see what arithmetic says.",),
    )  # fmt: skip
