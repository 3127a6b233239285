"""What follows from settings, records and the paper's own tables by arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from studies.paper import paper
from studies.paper.ablation import primary_of
from studies.paper.casting import Cast
from studies.paper.dynamics import mean, points, settled
from trc2.report.finished import FinishedRun
from trc2.report.names import FAMILIES


@dataclass(frozen=True)
class Remark:
    """A conclusion, the sentence that draws it, and its table."""

    key: str
    title: str
    text: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def remarks(cast: Cast) -> list[Remark]:
    return [_span(cast), _bleu(), _guessing(), _last_task(), _primary(), _where_it_leads(), _learning_rate()]


# ------------------------------------------------------------------------------------------------------ memory's reach


@dataclass(frozen=True)
class Reach:
    """How far back readable memory goes, in steps: slots that are searched / writes per step."""

    slots: int
    writes: float
    steps: float
    total: int

    @classmethod
    def of(cls, slots: int, writes: float, total: int) -> Reach:
        return cls(slots, writes, slots / writes if writes > 0 else math.inf, total)


def reach_of(run: FinishedRun) -> Reach | None:
    """From a run's own records, after the start-up transient if it outlives it; None without memory."""
    series = points(run, "hippocampus/writes")
    slots = run.config.model.read_slots
    if not series or not slots:
        return None
    later = [value for step, value in series if step > settled(run)] or [value for _, value in series]
    return Reach.of(slots, mean(later), run.stretches[-1].end)


def papers_reach() -> list[tuple[str, Reach]]:
    total, target = sum(paper.STEPS.values()), paper.SEQUENCES_PER_STEP * paper.TARGET_WRITES
    logged = paper.LAST_WRITES * paper.MICRO_BATCHES_PER_STEP
    return [
        (f"paper, {paper.TARGET_WRITES} writes a sequence (our n_target)", Reach.of(paper.READ_WINDOW, target, total)),
        ("paper, as logged at its end (18 of 64, 16 micro-batches)", Reach.of(paper.READ_WINDOW, logged, total)),
        ("paper, with the 512 slots of its text", Reach.of(paper.SLOTS_IN_TEXT, target, total)),
    ]


def _span(cast: Cast) -> Remark:
    rows = []
    for arm in cast.candidates:
        known = [reach for run in cast.runs(arm) if (reach := reach_of(run)) is not None]
        if known:
            steps, writes = mean([reach.steps for reach in known]), mean([reach.writes for reach in known])
            rows.append(_reach_row(f"{arm.title} (n = {len(known)})", known[0].slots, writes, steps, known[0].total))
    papers = [_reach_row(name, r.slots, r.writes, r.steps, r.total) for name, r in papers_reach()]
    return Remark(
        "memory_reach", "Readable memory spans a moment of the stream",
        "Slots that retrieval searches, divided by writes per step, is how many steps back anything can be read. What "
        "was written before that is overwritten or outside the window, so the episodic store cannot hold the first "
        "task when the last is trained: what is kept that long is kept by weights and replay.",
        ("run", "readable slots", "writes a step", "steps back", "of steps"), tuple(papers + rows),
    )  # fmt: skip


def _reach_row(name: str, slots: int, writes: float, steps: float, total: int) -> tuple[str, ...]:
    return name, f"{slots:,}", f"{writes:.1f}", f"{steps:.0f}", f"{total:,} ({steps / total:.1%})"


# -------------------------------------------------------------------------------------------------- the paper's tables


WIDTH = "Rows of width 768; counts and ranges are over all."


def _shown() -> list[paper.Row]:
    """One row of each family."""
    return [row for row in paper.ROWS if row.d_model == 768]


def _name(row: paper.Row) -> str:
    return f"{FAMILIES[row.family][0]} d{row.d_model}-L{row.depth}"


def untrained_needed(area: float, score: float) -> float:
    """If an area is a loss divided by the gain, the loss is at most the score: gain ≤ score / area, the rest was there
    before any training."""
    return max(0.0, score - score / area)


def _bleu() -> Remark:
    """At 20k only C4 is past, so the area is the mean loss on C4 between 10k and 20k."""
    rows = []
    for row in _shown():
        area, score = row.bleu_area_20k, row.c4_bleu
        rows.append(
            (_name(row), f"{area:.2f}", f"{score:.2f}", f"{untrained_needed(area, score):.1f}",
             f"{area / score if area > 1 else area:.2f}", f"{row.accuracy_area_20k:.2f}")
        )  # fmt: skip
    above = [row for row in paper.baselines() if row.bleu_area_20k > 1]
    needed = [untrained_needed(row.bleu_area_20k, row.c4_bleu) for row in above]
    shares = [row.bleu_area_20k / row.c4_bleu for row in above]
    ours = [row.bleu_area_20k for row in paper.variants()]
    full = next(row for row in paper.variants() if (row.d_model, row.depth) == (768, 4))
    return Remark(
        "bleu_areas", "The paper's BLEU areas compare unlike with unlike",
        f"{paper.AREA_TABLE} says gaps are divided by the task's gain where that is known, else raw. {len(above)} of "
        f"{len(paper.baselines())} baselines have areas above 1 at 20k. Divided, they would have lost more than they "
        f"gained, which needs untrained networks with {min(needed):.1f}–{max(needed):.1f} BLEU. Networks with tied "
        "embeddings repeat their input before any training and may have more: then nothing is gained, and the paper's "
        "rule takes gaps raw. "
        f"TRC²'s look divided: raw, its 0.12 at 22k would be hard to reach when C4 alone went from {full.c4_bleu} to "
        f"{paper.LESIONS['full'].c4_bleu} ({paper.LESION_TABLE}). With the raw ones divided by the C4 score at 10k "
        f"they are {min(shares):.2f}–{max(shares):.2f}, beside {min(ours):.2f}–{max(ours):.2f} of TRC² and "
        f"{paper.LESIONS['neither'].bleu_area_20k} of its plain twin: a lead of a quarter, not tenfold. {WIDTH}",
        ("model", "BLEU AUFC 20k", "C4 BLEU 10k", "untrained BLEU needed, if divided", "share lost, if raw where > 1",
         "accuracy AUFC 20k"),
        tuple(rows),
    )  # fmt: skip


def cost_of_wrong_tokens(perplexity: float, accuracy: float) -> float:
    """Mean loss of the tokens that are not predicted, if the others cost nothing, so at most: ln P / (1 − accuracy)."""
    return math.log(perplexity) / (1 - accuracy)


def _guessing() -> Remark:
    uniform = math.log(paper.VOCABULARY)
    rows = []
    for row in _shown():
        wrong = cost_of_wrong_tokens(row.gsm8k, row.gsm8k_accuracy / 100)
        rows.append((_name(row), f"{row.gsm8k:,.0f}", f"{row.gsm8k_accuracy:.2f} %", f"{wrong:.1f}",
                     "worse than uniform" if wrong > uniform else ""))  # fmt: skip
    bare = paper.LESIONS["neither"]
    wrong = cost_of_wrong_tokens(bare.gsm8k, bare.gsm8k_accuracy / 100)
    rows.append(("TRC² d768-L4, neither", f"{bare.gsm8k:g}", f"{bare.gsm8k_accuracy:.2f} %", f"{wrong:.1f}", ""))
    count = sum(cost_of_wrong_tokens(row.gsm8k, row.gsm8k_accuracy / 100) > uniform for row in paper.baselines())
    worst = max((row for row in _shown() if not row.is_trc2), key=lambda row: row.gsm8k)
    above = max(paper.baselines(), key=lambda row: row.gsm8k)
    share = worst.gsm8k_accuracy / 100
    right = (math.log(worst.gsm8k) - (1 - share) * uniform) / share
    return Remark(
        "gsm8k_perplexity", "The paper's GSM8K perplexities of baselines are hard to reconcile with their accuracies",
        "About half of the tokens are right. If these cost little, as right ones do, the rest carry the whole loss: in "
        f"{count} of {len(paper.baselines())} baselines they cost more than a uniform guess over "
        f"{paper.VOCABULARY:,} tokens ({uniform:.1f} nats) — right after training on just this task. {_name(above)} "
        f"has a perplexity of {above.gsm8k:,.0f}, more than there are tokens. For {_name(worst)} to stay at a uniform "
        f"guess, its right tokens would have to cost {right:.1f} nats on average. "
        "Without thalamus and hippocampus TRC² "
        f"reaches {paper.LESIONS['neither'].gsm8k}, better than with them ({paper.LESIONS['full'].gsm8k}): the "
        f"separation on GSM8K is not due to these parts. {WIDTH}",
        ("model", "GSM8K perplexity 22k", "accuracy", "nats per wrong token, if right ones cost 0", ""), tuple(rows),
    )  # fmt: skip


def last_phase(area_20k: float, area_22k: float) -> float:
    """Mean forgetting per task over the last 2,000 steps, from the two printed areas.

    With t₀ = 10k: at 20k only C4 is past, ∫ F_C4 = 10 A₂₀; at 22k both, ∫ F_C4 + ∫ F_Wiki = 2 · 12 A₂₂ (in thousands
    of steps). So the last 2 thousand have (24 A₂₂ − 10 A₂₀) / 2 of both together, half of it per task.
    """
    return (24 * area_22k - 10 * area_20k) / 2 / 2


LAST_PHASE = "In the paper, baselines lose most in the last 2,000 steps, and the plain twin does not"


def _last_task() -> Remark:
    lesions = [(f"TRC² d768-L4, {name}", row.area_20k, row.area_22k) for name, row in paper.LESIONS.items()]
    others = [(_name(row), row.area_20k, row.area_22k) for row in _shown() if not row.is_trc2]
    rows = [
        (name, f"{early:.2f}", f"{late:.2f}", f"{last_phase(early, late):.1f}")
        for name, early, late in lesions + others
    ]
    moe = [row for row in paper.baselines() if row.family == "moe"]
    bare, full = paper.LESIONS["neither"], paper.LESIONS["full"]
    moe_20k, moe_22k = (_mean([getattr(row, field) for row in moe]) for field in ("area_20k", "area_22k"))
    return Remark(
        "last_phase", LAST_PHASE,
        "From the printed areas at 20k and 22k follows the mean forgetting in between. Until 20k the plain twin (a "
        f"mixture of experts) forgets as MoE does ({bare.area_20k} and {moe_20k:.2f}). At 22k the gap from MoE to the "
        f"full model is {moe_22k:.2f} − {full.area_22k} = {moe_22k - full.area_22k:.2f}, of which "
        f"{moe_22k - bare.area_22k:.2f} are there without thalamus and hippocampus. Something else separates the "
        f"baselines in the last phase. {WIDTH}",
        ("model", "PPL AUFC 20k", "22k", "mean forgetting 20k–22k, nats per task"), tuple(rows),
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _primary() -> Remark:
    values = {name: primary_of(row) for name, row in paper.LESIONS.items()}
    with_hippo, without = values["− thalamus"] - values["full"], values["neither"] - values["− hippocampus"]
    return Remark(
        "lesions_at_end", "By the paper's own lesion table the thalamus is worth 0.01 nats at the end",
        f"Mean log-perplexity of the three tasks at 22k, from {paper.LESION_TABLE}: the thalamus brings "
        f"{with_hippo:.3f} nats with hippocampus and costs {-without:.3f} without; the hippocampus (memory and replay) "
        f"brings {values['− hippocampus'] - values['full']:.2f} and {values['neither'] - values['− thalamus']:.2f}.",
        ("arm", "C4", "WikiText-103", "GSM8K", "mean log-perplexity"),
        tuple((name, f"{row.c4:.2f}", f"{row.wikitext:.2f}", f"{row.gsm8k:.2f}", f"{values[name]:.3f}")
              for name, row in paper.LESIONS.items()),
    )  # fmt: skip


def _where_it_leads() -> Remark:
    tasks = {"c4": "C4", "wikitext": "WikiText-103", "gsm8k": "GSM8K"}
    rows = []
    for task, title in tasks.items():
        theirs, ours = paper.lowest(task)
        rows.append((title, f"{theirs:,.2f}", f"{ours:,.2f}", f"{paper.lead_in_nats(task):.2f}"))
    return Remark(
        "where_it_leads", "By the paper's own table the lead on WikiText-103 is the smallest of the three",
        "Section 5 has the gains largest on the later tasks, “especially WikiText-103 and GSM8K”. Best against best, "
        f"from {paper.BOUNDARY_TABLE}: nothing is forgotten yet on C4, and the lead there is more than twice that on "
        "WikiText-103. That on GSM8K rests on the baselines' odd perplexities above.",
        ("task", "best baseline's perplexity", "best TRC²'s", "lead, nats"), tuple(rows),
    )  # fmt: skip


def cosine(step: int, total: int, warmup: int) -> float:
    """The learning rate relative to its peak, down to 0."""
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def _learning_rate() -> Remark:
    total = sum(paper.STEPS.values())
    begin = total - paper.STEPS["gsm8k"]
    peak = cosine(begin, total, paper.WARMUP_STEPS)
    return Remark(
        "learning_rate", "In the paper's order the last task is trained with next to no learning rate",
        f"One warm-up and cosine over {total:,} steps leave {peak:.1%} of the peak when GSM8K begins and 0 at its end. "
        "What comes last then both learns and destroys little, and areas of different orders differ already for this "
        f"reason. It does not fit that the baselines lose most in just these steps (“{LAST_PHASE}”).",
    )  # fmt: skip
