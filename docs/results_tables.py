"""Rows of numbers in README.md and on the pages of results, computed from the committed runs.

python -m docs.results_tables    # after new runs were added to results/: rewrites the rows

The first cell of a row says what it is about: a configuration, "A − B" for differences on equal seeds, "A → task" for
a switch of tasks, or one of these with ", six orders" or ", both orders". Every configuration has one name.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trc2.report.run import read_run
from trc2.runs.identity import variant_settings
from trc2.stats.intervals import mean_interval

ROOT = Path(__file__).parents[1]
RUNS = ("results/*_methods", "results/lab")
BACKBONE, CONTROLLED, REVERSED = "TRC² backbone", "controlled replay", "gsm8k-wikitext-c4"
BASELINES = {
    "Transformer": "lab_transformer",
    "MoE": "lab_moe",
    "Mamba": "lab_mamba",
    "DeepSeekMoE": "lab_deepseek_moe",
    "BlkAttnRes": "lab_blk_attn_res",
    "FALCON": "lab_falcon",
    "LoRA-DRS": "lab_lora_drs",
}
LAB = {  # the name of a configuration on the pages: its run folders, without the seed
    "TRC²": "lab_trc2+full",
    "TRC² without thalamus": "lab_trc2+no_thalamus",
    "TRC² without memory": "lab_trc2+no_memory",
    "TRC² without replay": "lab_trc2+no_replay",
    "TRC² without thalamus and replay": "lab_trc2+no_thalamus_replay",
    "TRC² without memory and replay": "lab_trc2+no_memory_replay",
    "TRC² (44 % replay)": "lab_trc2+trc2_best",
    "TRC² (constant replay, weak)": "lab_trc2+fixed_weak",
    "TRC² (constant replay, middle)": "lab_trc2+fixed_mean",
    "TRC² (constant replay, strong)": "lab_trc2+fixed_strong",
    f"{BACKBONE} only": "lab_trc2+plain",
    f"{BACKBONE} + {CONTROLLED}": "lab_trc2+no_thalamus_memory",
    f"{BACKBONE} + {CONTROLLED}, reversed": f"lab_trc2+no_thalamus_memory+{REVERSED}",
    f"{BACKBONE} + constant replay": "lab_trc2+constant",
    f"{BACKBONE} + 25 % replay": "lab_trc2+share25",
    f"{BACKBONE} + 25 % replay by feedback": "lab_trc2+steered_jump",
    f"{BACKBONE} + 44 % replay": "lab_best+c4-wikitext-gsm8k",
    f"{BACKBONE} + 44 % replay, reversed": f"lab_best+{REVERSED}",
    f"{BACKBONE} + 44 % replay, one cosine": "lab_best+one_cosine",
    f"{BACKBONE} + 44 % replay, constant rate": "lab_best+wsd",
    f"{BACKBONE} + 44 % replay, lower constant rate": "lab_best+infinite",
    f"{BACKBONE}, all tasks mixed": "lab_trc2+joint",
    f"{BACKBONE}, all tasks in equal parts": "lab_trc2+joint_even",
    "Transformer, all tasks mixed": "lab_joint",
    "Transformer + L2": "lab_transformer+l2",
    "Transformer + EWC": "lab_transformer+ewc",
    "Transformer + A-GEM": "lab_transformer+agem",
    **BASELINES,
    **{f"{name} + {CONTROLLED}": f"{folder}+replay_controlled" for name, folder in BASELINES.items()},
}
DEMO = {
    f"{BACKBONE} only": "demo+plain",
    f"{BACKBONE} + {CONTROLLED}": "demo+paper",
    f"{BACKBONE} + constant replay": "demo+constant",
    **{f"{BACKBONE} + {share} % replay": f"demo+share{share}_short" for share in (22, 33, 44, 56)},
    f"{BACKBONE} + 44 % replay, constant rate": "demo+held44_short",
    f"{BACKBONE} + 22 % replay, controlled": "demo+steered_short",
    f"{BACKBONE} + 33 % replay, jump": "demo+jump_short",
    f"{BACKBONE} + 22 % replay, controlled, jump": "demo+steered_jump_short",
    "22 % long chunks": "demo+share22",
    "33 % long chunks": "demo+share33",
    "44 % long chunks": "demo+share44",
    "22 % long chunks, jump": "demo+jump",
    "33 % long chunks, averaged teacher": "demo+teacher",
    "33 % long chunks, average is evaluated": "demo+served",
    "33 % long chunks, pulled to the average": "demo+pulled",
    "33 % long chunks, hard text is kept": "demo+hard",
    "33 % long chunks, balanced store": "demo+balanced",
    "33 % long chunks, constant rate": "demo+held_rate",
    "33 % long chunks, one cosine": "demo+one_cosine",
    f"{BACKBONE} + 44 % replay of the last steps": "demo+repeat44",
    "TRC²": "demo+trc2_paper",
    "TRC² (44 % replay)": "demo+trc2_share44_short",
    f"{BACKBONE}, all tasks mixed": "demo+joint",
}
PAGES = {  # page: the names that its rows use
    "README.md": LAB,
    "docs/results.md": LAB,
    "docs/results-lab.md": LAB,
    "docs/results-baselines.md": LAB,
    "docs/results-demo.md": DEMO,
}
SIGNALS = ("train/loss_lm", "hippocampus/surprise_mean")
PARTS = ("thalamus", "memory", "replay")
EFFECT = rf"^\| ({'|'.join(PARTS)}) +\|(.*)\|$"


@dataclass(frozen=True)
class End:
    """A run after its last step."""

    perplexities: list[float]
    area: float

    @property
    def log(self) -> float:
        return sum(map(math.log, self.perplexities)) / len(self.perplexities)

    @property
    def newest(self) -> float:
        return math.log(self.perplexities[-1])


@cache
def ends(variant: str) -> dict[int, End]:
    """The committed runs of a variant, by seed. Tasks are in the order in which they were trained."""
    found, settings = {}, {}
    for folder in (path for place in RUNS for path in ROOT.glob(f"{place}/{variant}+s*")):
        run = read_run(folder)
        assert run.is_finished
        settings.setdefault(folder.name, variant_settings(run.config))
        assert settings[folder.name] == variant_settings(run.config), f"two experiments are called {folder.name}"
        metrics = run.final("eval")
        order = list(dict.fromkeys([*(span.task for span in run.spans), *run.tasks]))
        area = metrics.get("cl/perplexity/aufc", math.nan)
        found[run.config.train.seed] = End([metrics[f"eval/{task}/perplexity"] for task in order], area)
    assert found, variant
    return dict(sorted(found.items()))


def spread(values: Iterable[float], digits: int = 3) -> str:
    """A mean over seeds and half of its 95 % interval, as the page writes it."""
    known = mean_interval(list(values))
    if math.isnan(known.mean):
        return "–"
    half = "" if math.isnan(known.high) else f" ± {known.high - known.mean:.{digits}f}"
    return f"{known.mean:.{digits}f}{half}".replace("-", "−")


def variant_row(variant: str) -> list[str]:
    """n, every task's perplexity, final loss, AUFC. On the demo's stream the part of the way to joint training."""
    runs = ends(variant)
    tasks = zip(*(end.perplexities for end in runs.values()), strict=True)
    cells = [str(len(runs)), *(f"{sum(task) / len(task):,.1f}" for task in tasks)]
    cells += [spread(end.log for end in runs.values()), spread(end.area for end in runs.values())]
    if variant.startswith("demo+"):
        nothing, joint = ends("demo+plain"), ends("demo+joint")
        way = [(nothing[s].log - end.log) / (nothing[s].log - joint[s].log) for s, end in runs.items()]
        cells.append(spread(way, 2))
    return cells


def pair_row(ours: list[str], theirs: list[str]) -> list[str]:
    """n, difference of the final losses, ratio of the AUFCs, difference of the newest task's loss.

    Several orders of the tasks are averaged within a seed first.
    """
    seeds = sorted(set.intersection(*(set(ends(variant)) for variant in [*ours, *theirs])))

    def of(variants: list[str], number: Callable[[End], float]) -> list[float]:
        return [sum(number(ends(variant)[seed]) for variant in variants) / len(variants) for seed in seeds]

    log, newest = (
        spread(a - b for a, b in zip(of(ours, number), of(theirs, number), strict=True))
        for number in (lambda end: end.log, lambda end: end.newest)
    )
    logs = [
        math.log(a / b)
        for a, b in zip(*(of(variants, lambda end: end.area) for variants in (ours, theirs)), strict=True)
    ]
    ratio = mean_interval(logs)
    bounds = "" if math.isnan(ratio.high) else f" ({math.exp(ratio.low):.2f} … {math.exp(ratio.high):.2f})"
    return [str(len(seeds)), log, "–" if math.isnan(ratio.mean) else f"{math.exp(ratio.mean):.2f}{bounds}", newest]


@cache
def in_six_orders(variant: str) -> list[End]:
    """Seed 0 of a variant in the listed order and in the five others."""
    others = ["-".join(order) for order in itertools.permutations(("c4", "wikitext", "gsm8k"))][1:]
    return [ends(name)[0] for name in (variant, *(f"{variant}+{order}" for order in others))]


def orders_row(ours: str, theirs: str | None) -> list[str]:
    """Final loss and AUFC over the orders with the smallest and the largest, or how two configurations differ."""
    if theirs is None:
        known = in_six_orders(ours)
        return [_ranged([end.log for end in known]), _ranged([end.area for end in known])]
    pairs = list(zip(in_six_orders(ours), in_six_orders(theirs), strict=True))
    ratios = [math.log(a.area / b.area) for a, b in pairs]
    middle = math.exp(sum(ratios) / len(ratios))
    span = f"{math.exp(min(ratios)):.2f} … {math.exp(max(ratios)):.2f}"
    return [_ranged([a.log - b.log for a, b in pairs]), f"{middle:.2f} ({span})"]


def _ranged(values: list[float]) -> str:
    text = f"{sum(values) / len(values):.3f} ({min(values):.3f} … {max(values):.3f})"
    return text.replace("-", "−")


def switch_row(variant: str, task: str) -> list[str]:
    """Loss and mean surprise before and after seed 0 switched to a task."""
    (folder,) = ROOT.glob(f"results/*_methods/{variant}+s0")
    run = read_run(folder)
    start = next(span.start for span in run.spans if span.task == task)
    series = [list(zip(*run.series("train", path), strict=True)) for path in SIGNALS]
    return [f"{before:.2f} → {after:.2f}" for before, after in (around_switch(points, start) for points in series)]


def around_switch(points: list[tuple[int, float]], start: int) -> tuple[float, float]:
    """The mean over the last 20 steps of the old task, and over the first 5 of the new one.

    Logs count steps from 1, so step `start` is the last one of the old task.
    """
    before = [value for step, value in points if start - 20 < step <= start]
    after = [value for step, value in points if start < step <= start + 5]
    return sum(before) / len(before), sum(after) / len(after)


def effect_row(part: str) -> list[str]:
    """The row of a part in the study's table of effects: n, effect on the final loss, effect on forgetting."""
    table = (ROOT / "results" / "lab" / "paper" / "tables" / "effects.md").read_text(encoding="utf-8")
    (row,) = (match[2] for match in re.finditer(EFFECT, table, flags=re.MULTILINE) if match[1] == part)
    return [cell.strip() for cell in row.split("|")]


def alone_row(task: str) -> list[str]:
    """A task's perplexity after its own training: alone, after what the stream had before it, and with replay too."""
    known = []
    for name in (f"lab_single_{task}", "lab_transformer", "lab_transformer+replay_controlled"):
        run = read_run(ROOT / "results" / "lab" / f"{name}+s0")
        (end,) = (span.end for span in run.spans if span.task == task)
        known.append(f"{run.score('perplexity', task, end):,.1f}")
    return known


def cells_of(subject: str, names: Mapping[str, str]) -> list[str] | None:
    """The numbers of a row by its first cell, or None if the row is not about runs."""
    ours, _, theirs = subject.partition(" − ")
    if subject in PARTS:
        return effect_row(subject)
    if subject.endswith(" alone"):
        return alone_row(subject.removesuffix(" alone"))
    if " → " in subject:
        name, _, task = subject.partition(" → ")
        return switch_row(names[name], task) if name in names else None
    if subject.endswith(", six orders"):
        return orders_row(names[ours.removesuffix(", six orders")], names.get(theirs.removesuffix(", six orders")))
    if theirs:
        return pair_row(_folders(ours, names), _folders(theirs, names))
    return variant_row(names[subject]) if subject in names else None


def _folders(name: str, names: Mapping[str, str]) -> list[str]:
    """The runs of a name, or of the tasks as listed and reversed if it ends with "both orders"."""
    single = name.removesuffix(", both orders")
    return [names[single]] + ([names[f"{single}, reversed"]] if single != name else [])


def subject_of(line: str) -> str | None:
    """The first cell of a row of a table, without stars."""
    match = re.match(r"\| ([^|]+?) \|", line)
    return match[1].replace("*", "") if match else None


def refreshed(page: str, names: Mapping[str, str]) -> str:
    """The page with every row of numbers as the runs have it."""
    lines = []
    for line in page.split("\n"):
        subject = subject_of(line)
        cells = cells_of(subject, names) if subject else None
        lines.append(line if cells is None else f"|{line.split('|')[1]}| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    for page, names in PAGES.items():
        path = ROOT / page
        path.write_text(refreshed(path.read_text(encoding="utf-8"), names), encoding="utf-8")
