"""What follows by arithmetic from the settings, the logs and the paper's own tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

from studies.paper import numbers
from studies.paper.numbers import primary_of
from studies.paper.roles import Roles, mean
from studies.paper.traces import memory_reach
from trc2.report.variants import FAMILIES


@dataclass(frozen=True)
class Remark:
    """A conclusion, the sentence that draws it, and its table."""

    key: str
    title: str
    text: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def remarks(roles: Roles) -> list[Remark]:
    return [_span(roles), _bleu(), _guessing(), _last_task(), _primary(), _where_it_leads(), _learning_rate()]


# ------------------------------------------------------------------------------------------------------ memory's reach


def papers_reach() -> list[tuple[str, int, float]]:
    """(settings, readable slots, writes a step) of the paper, by three readings of its text."""
    target = numbers.SEQUENCES_PER_STEP * numbers.TARGET_WRITES
    logged = numbers.LAST_WRITES * numbers.MICRO_BATCHES_PER_STEP
    return [
        (f"paper, {numbers.TARGET_WRITES} writes a sequence (our n_target)", numbers.READ_WINDOW, target),
        ("paper, as logged at its end (18 of 64, 16 micro-batches)", numbers.READ_WINDOW, logged),
        ("paper, with the 512 slots of its text", numbers.SLOTS_IN_TEXT, target),
    ]


def _span(roles: Roles) -> Remark:
    total = sum(numbers.STEPS.values())
    rows = [_reach_row(name, slots, slots / writes, total) for name, slots, writes in papers_reach()]
    for variant in roles.plain_training:
        run = roles.run(variant)
        known = roles.traced(memory_reach, variant) if run.config.model.read_slots else {}
        if known:
            name = f"{roles.title(variant)} (n = {len(known)})"
            rows.append(_reach_row(name, run.config.model.read_slots, mean(list(known.values())), run.end))
    return Remark(
        "memory_reach", "Readable memory covers a small part of the stream",
        "The number of slots that retrieval searches, divided by the writes per step, says how many steps back "
        "anything can be read. Earlier writes are overwritten or outside the window. So the memory cannot hold the "
        "first task while the last is trained. Weights and replay keep what is kept that long.",
        ("run", "readable slots", "writes a step", "steps back", "of steps"), tuple(rows),
    )  # fmt: skip


def _reach_row(name: str, slots: int, steps: float, total: int) -> tuple[str, ...]:
    return name, f"{slots:,}", f"{slots / steps:.1f}", f"{steps:.0f}", f"{total:,} ({steps / total:.1%})"


# ------------------------------------------------------------------------------------------------- the paper's tables


WIDTH = "The table shows width 768. Counts and ranges are over all widths."
BARE, FULL = numbers.ABLATIONS["neither"], numbers.ABLATIONS["full"]


def _shown() -> list[numbers.Row]:
    """One row of each family."""
    return [row for row in numbers.ROWS if row.d_model == 768]


def _name(row: numbers.Row) -> str:
    return f"{FAMILIES[row.family][0]} d{row.d_model}-L{row.depth}"


def untrained_needed(area: float, score: float) -> float:
    """The BLEU that an untrained network must have if the area is a loss divided by the gain.

    The loss is at most the score, so the gain is at most score / area.
    """
    return max(0.0, score - score / area)


def _bleu() -> Remark:
    """At 20k only C4 is past, so the area is the mean loss on C4 between 10k and 20k."""
    rows = []
    for row in _shown():
        area, score = row.bleu_area_20k, row.c4_bleu
        needed, share = untrained_needed(area, score), area / score if area > 1 else area
        rows.append((_name(row), f"{area:.2f}", f"{score:.2f}", f"{needed:.1f}", f"{share:.2f}",
                     f"{row.accuracy_area_20k:.2f}"))  # fmt: skip
    above = [row for row in numbers.baselines() if row.bleu_area_20k > 1]
    needed_all = [untrained_needed(row.bleu_area_20k, row.c4_bleu) for row in above]
    shares = [row.bleu_area_20k / row.c4_bleu for row in above]
    ours = [row.bleu_area_20k for row in numbers.variants()]
    full = next(row for row in numbers.variants() if (row.d_model, row.depth) == (768, 4))
    return Remark(
        "bleu_areas", "The paper's BLEU areas mix two units",
        f"{numbers.AREA_TABLE} divides gaps by the task's gain where the gain is known, and takes them raw elsewhere. "
        f"{len(above)} of {len(numbers.baselines())} baselines have areas above 1 at 20k. As shares they would have "
        f"lost more than they gained. That needs untrained networks with {min(needed_all):.1f}–{max(needed_all):.1f} "
        "BLEU. An untrained network with tied embeddings repeats its input and can have more, and then gains nothing, "
        f"so the rule takes its gaps raw. The areas of TRC² look like shares: raw, 0.12 at 22k does not fit a C4 BLEU "
        f"that went from {full.c4_bleu} to {FULL.c4_bleu} ({numbers.ABLATION_TABLE}). If we divide the raw areas by "
        f"the C4 score at 10k, baselines lose {min(shares):.2f}–{max(shares):.2f}, TRC² {min(ours):.2f}–"
        f"{max(ours):.2f} and its backbone only {BARE.bleu_area_20k}. The lead is then about a quarter, not tenfold. "
        f"{WIDTH}",
        ("model", "BLEU AUFC 20k", "C4 BLEU 10k", "untrained BLEU needed, if a share", "share lost, if raw where > 1",
         "accuracy AUFC 20k"),
        tuple(rows),
    )  # fmt: skip


def cost_of_wrong_tokens(perplexity: float, accuracy: float) -> float:
    """Mean loss of the wrongly predicted tokens if the others cost nothing: ln P / (1 − accuracy), an upper bound."""
    return math.log(perplexity) / (1 - accuracy)


def _guessing() -> Remark:
    uniform = math.log(numbers.VOCABULARY)

    def wrong_of(row: numbers.Scores) -> float:
        return cost_of_wrong_tokens(row.gsm8k, row.gsm8k_accuracy / 100)

    rows = [
        (_name(row), f"{row.gsm8k:,.0f}", f"{row.gsm8k_accuracy:.2f} %", f"{wrong_of(row):.1f}",
         "worse than uniform" if wrong_of(row) > uniform else "")
        for row in _shown()
    ]  # fmt: skip
    rows.append(
        ("TRC² d768-L4, neither", f"{BARE.gsm8k:g}", f"{BARE.gsm8k_accuracy:.2f} %", f"{wrong_of(BARE):.1f}", "")
    )
    count = sum(wrong_of(row) > uniform for row in numbers.baselines())
    above = max(numbers.baselines(), key=lambda row: row.gsm8k)
    return Remark(
        "gsm8k_perplexity", "The paper's GSM8K perplexities of baselines are hard to reconcile with their accuracies",
        "About half of the tokens are predicted correctly. If correct tokens cost little, the wrong ones carry the "
        f"loss. In {count} of {len(numbers.baselines())} baselines a wrong token then costs more than a uniform guess "
        f"over {numbers.VOCABULARY:,} tokens ({uniform:.1f} nats), right after training on this task. {_name(above)} "
        f"has a perplexity of {above.gsm8k:,.0f}, which is more than the number of tokens. TRC² without thalamus and "
        f"hippocampus reaches {BARE.gsm8k}, and with them {FULL.gsm8k}. So these parts do not explain the separation "
        f"on GSM8K. {WIDTH}",
        ("model", "GSM8K perplexity 22k", "accuracy", "nats per wrong token, if right ones cost 0", ""), tuple(rows),
    )  # fmt: skip


def last_phase(area_20k: float, area_22k: float) -> float:
    """Mean forgetting per task over the last 2,000 steps, from the two printed areas.

    With t₀ = 10k: at 20k only C4 is past, ∫ F_C4 = 10 A₂₀; at 22k both, ∫ F_C4 + ∫ F_Wiki = 2 · 12 A₂₂ (in thousands
    of steps). So the last 2 thousand have (24 A₂₂ − 10 A₂₀) / 2 of both together, half of it per task.
    """
    return (24 * area_22k - 10 * area_20k) / 2 / 2


LAST_PHASE = "In the paper, baselines lose most in the last 2,000 steps, and TRC²'s backbone does not"


def _last_task() -> Remark:
    areas = [(f"TRC² d768-L4, {name}", row.area_20k, row.area_22k) for name, row in numbers.ABLATIONS.items()]
    areas += [(_name(row), row.area_20k, row.area_22k) for row in _shown() if not row.is_trc2]
    rows = [(name, f"{early:.2f}", f"{late:.2f}", f"{last_phase(early, late):.1f}") for name, early, late in areas]
    moe = [row for row in numbers.baselines() if row.family == "moe"]
    moe_20k, moe_22k = (mean([getattr(row, field) for row in moe]) for field in ("area_20k", "area_22k"))
    return Remark(
        "last_phase", LAST_PHASE,
        "The printed areas at 20k and 22k imply the mean forgetting in between. Until 20k the backbone only (a mixture "
        f"of experts) forgets as MoE does ({BARE.area_20k} and {moe_20k:.2f}). At 22k the gap from MoE to the full "
        f"model is {moe_22k:.2f} − {FULL.area_22k} = {moe_22k - FULL.area_22k:.2f}. Of this, "
        f"{moe_22k - BARE.area_22k:.2f} exist without thalamus and hippocampus. So something else separates the "
        f"baselines in the last phase. {WIDTH}",
        ("model", "PPL AUFC 20k", "22k", "mean forgetting 20k–22k, nats per task"), tuple(rows),
    )  # fmt: skip


def _primary() -> Remark:
    values = {name: primary_of(row) for name, row in numbers.ABLATIONS.items()}
    with_hippo, without = values["− thalamus"] - values["full"], values["neither"] - values["− hippocampus"]
    return Remark(
        "ablations_at_end", "By the paper's own ablation table the thalamus is worth 0.01 nats at the end",
        f"Mean log-perplexity of the three tasks at 22k, from {numbers.ABLATION_TABLE}. The thalamus gains "
        f"{with_hippo:.3f} nats with hippocampus and costs {-without:.3f} without it. The hippocampus (memory and "
        f"replay) gains {values['− hippocampus'] - values['full']:.2f} with thalamus and "
        f"{values['neither'] - values['− thalamus']:.2f} without it.",
        ("configuration", "C4", "WikiText-103", "GSM8K", "mean log-perplexity"),
        tuple((name, f"{row.c4:.2f}", f"{row.wikitext:.2f}", f"{row.gsm8k:.2f}", f"{values[name]:.3f}")
              for name, row in numbers.ABLATIONS.items()),
    )  # fmt: skip


def _where_it_leads() -> Remark:
    rows = []
    for task, title in {"c4": "C4", "wikitext": "WikiText-103", "gsm8k": "GSM8K"}.items():
        theirs, ours = numbers.lowest(task)
        rows.append((title, f"{theirs:,.2f}", f"{ours:,.2f}", f"{numbers.lead_in_nats(task):.2f}"))
    return Remark(
        "where_it_leads", "By the paper's own table the lead on WikiText-103 is the smallest of the three",
        "Section 5 says that the gains are largest on later tasks, “especially WikiText-103 and GSM8K”. We compare the "
        f"best models of {numbers.BOUNDARY_TABLE}. On C4 nothing can be forgotten yet, and the lead there is more than "
        "twice that on WikiText-103. The lead on GSM8K rests on the baselines' odd perplexities above.",
        ("task", "best baseline's perplexity", "best TRC²'s", "lead, nats"), tuple(rows),
    )  # fmt: skip


def cosine(step: int, total: int, warmup: int) -> float:
    """The learning rate relative to its peak, down to 0."""
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def _learning_rate() -> Remark:
    total = sum(numbers.STEPS.values())
    peak = cosine(total - numbers.STEPS["gsm8k"], total, numbers.WARMUP_STEPS)
    return Remark(
        "learning_rate", "In the paper's order the last task is trained with next to no learning rate",
        f"One warm-up and cosine over {total:,} steps leave {peak:.1%} of the peak when GSM8K begins and 0 at its end. "
        "The last task then learns little and destroys little, so areas of different orders differ for this reason "
        f"alone. It does not fit that the baselines lose most in these steps (“{LAST_PHASE}”).",
    )  # fmt: skip
