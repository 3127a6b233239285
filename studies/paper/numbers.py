"""Every number of the paper that the study cites, with the table or figure where the paper prints it.

Numbering follows the LaTeX counters, as in docs/fidelity.md: the appendices' counters run on across sections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

BOUNDARY_TABLE = "Table D.1"
AREA_TABLE = "Table D.2"
ABLATION_TABLE = "Table 1"


@dataclass(frozen=True)
class Scores:
    """The columns that Table D.1 (boundaries, cost) with Table D.2 (areas) and Table 1 (ablation) share."""

    c4: float  # perplexity: at 10k in Table D.1, at 22k in Table 1
    wikitext: float  # at 20k, or at 22k
    gsm8k: float  # at 22k
    c4_bleu: float
    wikitext_bleu: float
    gsm8k_accuracy: float  # per cent
    tokens_per_second: float
    gb_hours: float
    area_20k: float
    area_22k: float
    bleu_area_20k: float
    bleu_area_22k: float
    accuracy_area_20k: float
    accuracy_area_22k: float


@dataclass(frozen=True, kw_only=True)
class Row(Scores):
    """One configuration of Tables D.1 and D.2, whose rows are the same."""

    family: str  # as our backbones are named
    d_model: int
    depth: int

    @property
    def is_trc2(self) -> bool:
        return self.family == "trc2"


# Family, millions of parameters, width and depth, then the columns of Scores.
PRINTED = """
transformer  144  512 28   93.17 33.83  1.7e3  7.90 16.15 51.42   93000  157  1.16 1.15 2.21 1.33 0.21 0.15
transformer  228  768 20   76.27 29.94  2.8e3  8.06 16.78 53.09   84000  202  1.23 1.30 2.16 1.30 0.20 0.15
transformer  321 1024 16   70.68 28.90  2.8e3  7.78 16.69 53.41   73000  266  1.15 1.30 1.88 1.16 0.19 0.14
moe          345  512 16   99.28 35.71  2.3e3  7.32 15.96 51.01   76000  238  1.25 1.24 2.11 1.26 0.21 0.15
moe          441  768 10   94.32 34.47  6.4e3  6.83 14.91 50.09   78000  235  1.18 1.29 1.92 1.15 0.20 0.14
moe          493 1024  6  136.04 36.75  1.8e4  4.70 13.69 47.46   91000  211  1.11 1.22 1.22 0.74 0.20 0.14
mamba        151  512 28  110.15 37.31  1.5e4  6.51 14.60 42.49   77000  229  1.17 1.20 1.80 1.09 0.22 0.15
mamba        202  768 18   97.53 34.50  4.9e4  5.85 14.52 43.59   76000  255  1.12 1.33 1.51 0.94 0.21 0.15
mamba        245 1024 12   95.25 33.01  9.2e4  5.92 15.41 44.01   84000  226  1.12 1.34 1.50 0.93 0.21 0.15
deepseek_moe 338  512 14   71.59 33.09  1.8e3  8.54 16.58 54.20   88000  220  1.21 1.28 2.37 1.42 0.19 0.14
deepseek_moe 308  768  6   80.84 32.75  6.9e3  7.53 15.75 52.80  118000  142  1.22 1.32 2.08 1.26 0.20 0.14
deepseek_moe 545 1024  6   68.71 33.22  8.3e3  7.39 16.73 53.28   87000  246  1.21 1.40 1.75 1.08 0.18 0.13
blk_attn_res 144  512 28   91.94 36.05  2.2e3  7.97 15.87 51.22   55000  418  1.19 1.07 0.21 0.15 0.28 0.20
blk_attn_res 190  768 16   67.95 29.12  1.2e3  8.10 16.81 54.71   41000  630  1.18 1.13 0.25 0.19 0.20 0.15
blk_attn_res 187 1024  8   83.92 34.25  5.6e3  7.35 14.66 51.64   87000  219  1.13 1.20 0.27 0.20 0.20 0.15
falcon       144  512 32   80.04 32.09  3.5e3  7.36 16.25 51.01   19000 1259  1.14 1.27 1.47 0.94 0.19 0.14
falcon       193  768 20   67.27 30.02  7.8e3  8.22 16.72 51.93   27000  892  1.15 1.37 2.09 1.29 0.19 0.14
falcon       220 1024 12   64.06 29.30 1.29e4  7.74 16.92 51.54   35000  607  1.13 1.41 1.79 1.13 0.18 0.14
lora_drs     156  512 38   92.25 33.62  1.5e3  7.34 15.63 51.98   85000  196  1.16 1.10 1.82 1.12 0.20 0.15
lora_drs     252  768 30   74.47 29.54  2.3e3  7.81 16.77 52.71   70000  279  1.17 1.24 1.72 1.09 0.19 0.14
lora_drs     284 1024 18   75.03 28.51  4.3e3  7.46 15.60 53.17   79000  238  1.13 1.28 1.73 1.06 0.19 0.14
trc2         149  256 24   52.48 27.59  56.36  8.31 17.44 55.49   29000  515  0.71 0.49 0.18 0.12 0.13 0.08
trc2         254  512 10   37.43 23.09  42.99  9.76 19.31 57.90   61000  259  0.69 0.49 0.21 0.13 0.13 0.09
trc2         226  768  4   38.06 21.73  31.28  9.28 18.11 57.19  103000  134  0.63 0.44 0.20 0.12 0.13 0.08
trc2         408  768  8   34.29 25.04  35.70  9.84 19.16 59.03   59000  349  0.71 0.50 0.19 0.12 0.13 0.08
trc2         560 1024  6   33.49 26.95  29.87  9.55 18.65 58.80   60000  211  0.70 0.48 0.18 0.12 0.13 0.08
"""


def _row(line: str) -> Row:
    family, _, d_model, depth, *scores = line.split()
    return Row(*map(float, scores), family=family, d_model=int(d_model), depth=int(depth))


ROWS = tuple(_row(line) for line in PRINTED.split("\n") if line)
ABLATIONS = {  # Table 1 (d768-l4): scores at step 22k above, areas below
    "full": Scores(990.26, 68.70, 31.28, 4.05, 15.03, 57.19, 103e3, 134, 0.63, 0.44, 0.20, 0.12, 0.13, 0.08),
    "− thalamus": Scores(1284.79, 55.26, 30.93, 3.23, 15.52, 57.15, 109e3, 131, 0.86, 0.56, 0.20, 0.13, 0.12, 0.08),
    "− hippocampus": Scores(2015.73, 613.29, 27.44, 1.82, 3.28, 57.74, 147e3, 95, 1.19, 0.76, 0.26, 0.19, 0.20, 0.15),
    "neither": Scores(2050.02, 550.08, 26.79, 2.30, 4.50, 58.51, 154e3, 87, 1.23, 0.78, 0.26, 0.20, 0.21, 0.16),
}

STEPS = {"c4": 10_000, "wikitext": 10_000, "gsm8k": 2_000}  # section C
WARMUP_STEPS = 1_000  # section C
SEQUENCES_PER_STEP = 128  # section C: 8 × 4 × 4
READ_WINDOW = 8_192  # section C: S_max
SLOTS_IN_TEXT = 512  # section C: N_s. Table E.3 needs 32,768
TARGET_WRITES = 2  # ours: n_target is not printed. 2 of k_W = 8 fits the logged keep fraction 0.28125
MICRO_BATCHES_PER_STEP = 16  # section C: 4 accumulations × 4 ranks
LAST_WRITES = 18  # section E: "18 writes at the last step"
KEEP_BAND = (0.1, 0.4)  # section E: keep and raw fraction "usually lie in the 0.1–0.4 band"
LAST_KEEP_FRACTION = 0.28125  # section E
LAST_RAW_FRACTION = 0.171875  # section E
SATURATED_LOGS = (5, 1100)  # section E: the maximum of writes on 5 of 1100 logged checkpoints
ROUTER_RANGE = (0.0397, 0.0901)  # section E, d768-l4
ROUTER_AT_END = 0.0421  # section E
COLUMNS_SHARE = (97.94, 99.67)  # Table E.3, per cent of parameters
COMPACT_PARAMETERS = 8_520_244  # section F
VOCABULARY = 50_257  # recovered from the counts, see docs/open-points.md


def baselines() -> list[Row]:
    return [row for row in ROWS if not row.is_trc2]


def variants() -> list[Row]:
    """TRC² at its five sizes."""
    return [row for row in ROWS if row.is_trc2]


def lead(field: str, better: str = "lower") -> str:
    """What the paper prints: TRC² from its smallest to its largest number, and the best baseline."""
    ours, theirs = [getattr(row, field) for row in variants()], [getattr(row, field) for row in baselines()]
    best = min(theirs) if better == "lower" else max(theirs)
    return f"{_short(min(ours))}–{_short(max(ours))}, best baseline {_short(best)}"


def lowest(field: str) -> tuple[float, float]:
    """A column's smallest number among the baselines, and among TRC²'s sizes."""
    theirs, ours = (min(getattr(row, field) for row in rows) for rows in (baselines(), variants()))
    return theirs, ours


def lead_in_nats(task: str) -> float:
    """Log-perplexity of the best baseline minus that of the best TRC²."""
    theirs, ours = lowest(task)
    return math.log(theirs / ours)


def ratio(field: str, family: str) -> float:
    """TRC² d768-L4 over the baseline of the same width, of one printed column."""
    ours = next(row for row in variants() if (row.d_model, row.depth) == (768, 4))
    theirs = next(row for row in baselines() if (row.family, row.d_model) == (family, 768))
    return float(getattr(ours, field) / getattr(theirs, field))


def ablation_ratio(field: str, first: str, second: str) -> float:
    """One row of Table 1 over another, of one printed column."""
    return float(getattr(ABLATIONS[first], field) / getattr(ABLATIONS[second], field))


def primary_of(row: Scores) -> float:
    """Mean log-perplexity of the three tasks at 22k."""
    return (math.log(row.c4) + math.log(row.wikitext) + math.log(row.gsm8k)) / 3


def ablation_values(field: str) -> str:
    """One column of Table 1 in words."""
    return ", ".join(f"{name} {_short(getattr(row, field))}" for name, row in ABLATIONS.items())


def as_data() -> dict[str, Any]:
    """For claims.json: where each kind of number comes from."""
    return {
        "title": "Efficient Continual Learning in Language Models via Thalamically Routed Cortical Columns",
        "boundaries": BOUNDARY_TABLE,
        "areas": AREA_TABLE,
        "ablation": ABLATION_TABLE,
    }


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
