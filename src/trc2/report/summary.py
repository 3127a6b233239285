"""What a run learnt and forgot, as Markdown and pictures; and several runs side by side."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from trc2.files import make_folder, reading, write_atomically
from trc2.metrics.exam import ROOT
from trc2.report.finished import FinishedRun, check_comparable, read_run, scores_in
from trc2.report.lineage import own_part
from trc2.report.markdown import markdown
from trc2.report.old_figures import draw_comparison, draw_hippocampus, draw_summary
from trc2.runs.ancestry import Ancestry
from trc2.runs.folder import RunFolder


def write_summary(folder: Path, place: Path | None = None) -> list[Path]:
    """summary.md, summary.png and, with a memory, hippocampus.png, by default in the run; returns what was written."""
    run, ancestry = read_run(folder), RunFolder(folder).ancestry()
    drawn = run if ancestry is None else own_part(run, ancestry)
    place = folder if place is None else place
    make_folder(place)
    written = [place / "summary.md", place / "summary.png"]
    draw_summary(drawn, written[1])
    if drawn.series("train", "hippocampus/threshold")[0]:
        written.append(place / "hippocampus.png")
        draw_hippocampus(drawn, written[2])
    pictures = [path.name for path in written[1:]]
    text = summary_text(run, pictures) if ancestry is None else child_text(run, ancestry, pictures)
    write_atomically(written[0], text.encode())
    return written


def summary_text(run: FinishedRun, pictures: list[str]) -> str:
    """The run in Markdown."""
    lines = [f"# {markdown(run.name)}", "", _state_line(run), "", *_in_words(run), *_overlap_lines(run)]
    lines += ["Validation perplexity per token at task boundaries (bold: just after its own training):", ""]
    lines += [boundary_table(run), ""]
    lines += [forgetting_caption(run), ""]
    lines += [
        forgetting_table(run),
        "",
        *_lm_lines(run),
        *_test_lines(run),
        *_cost_lines(run),
        *[f"![{name}]({name})" for name in pictures],
        "",
    ]
    return "\n".join(lines)


def child_text(run: FinishedRun, ancestry: Ancestry, pictures: list[str]) -> str:
    """A run that goes on from another one, or from a model: its own steps, with the parent beside it."""
    own = own_part(run, ancestry)
    kind = "the run" if ancestry.is_run else "the saved model"
    at = f" at its step {ancestry.step}" if ancestry.is_run else ""
    lines = [
        f"# {markdown(run.name)}",
        "",
        f"Goes on from {kind} {markdown(ancestry.parent)}{at}. {_state_line(own)}",
        "",
    ]
    lines += [*_in_words(own), *_overlap_lines(run)]
    lines += [
        "Validation perplexity per token, of the parent and after each new task (bold: just after its own training):",
        "", boundary_table(own, first="parent"), "",
    ]  # fmt: skip
    if any(stretch.end == 0 for stretch in own.stretches):
        caption = f"Forgetting against the parent, {_when(own)} (perplexity in nats):"
        lines += [caption, "", forgetting_table(own), ""]
    else:
        lines += ["A saved model does not say what it learnt: what was forgotten of it is unknown.", ""]
    if ancestry.is_run:
        lines += [f"Over the parent and this run together. {forgetting_caption(run)}", "", forgetting_table(run), ""]
    lines += [*gate_lines(run), *_lm_lines(run), *_test_lines(run), *_cost_lines(run)]
    lines += [*[f"![{name}]({name})" for name in pictures], ""]
    return "\n".join(lines)


def _in_words(run: FinishedRun) -> list[str]:
    """What happened to each past task, in a sentence: its perplexity after its own training, and now."""
    table = run.tables["perplexity"]
    last = table.steps[-1]
    sentences = []
    for stretch in run.stretches:
        if stretch.end >= last or not (table.has(stretch.end, stretch.task) and table.has(last, stretch.task)):
            continue
        before, learnt, now = (run.score("perplexity", stretch.task, step) for step in (0, stretch.end, last))
        numbers = f"(perplexity {short(learnt)} → {short(now)})"
        if stretch.end > 0 and before <= learnt:
            sentences.append(f"{stretch.task} was not learnt, so it could not be forgotten {numbers}.")
        elif math.isfinite(now / learnt):
            change = now / learnt - 1.0
            kept = f"lost {_share(change)}" if change > 0 else f"improved by {_share(-change)}"
            sentences.append(f"{stretch.task} {kept} {numbers}.")
    return [" ".join(map(markdown, sentences)), ""] if sentences else []


def _share(value: float) -> str:
    percent = 100.0 * value
    return f"{percent:,.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


MIN_OVERLAP = 0.05  # of evaluation text that is also train text; less is common phrases
MAX_OVERLAPS = 5


def _overlap_lines(run: FinishedRun) -> list[str]:
    """Where evaluation text was also trained on, which makes its scores too good."""
    shares = [
        (share, where, task)
        for where, found in dict(run.data.get("overlap") or {}).items()
        for task, share in found.items()
        if share >= MIN_OVERLAP
    ]
    named = [
        f"{_share(share)} of {markdown(where)} is in the train text of {markdown(task)}"
        for share, where, task in sorted(shares, key=lambda found: -found[0])
    ]
    more = f"; and {len(named) - MAX_OVERLAPS} more" if len(named) > MAX_OVERLAPS else ""
    if not named:
        return []
    return [
        f"Overlap (equal runs of 13 tokens): {'; '.join(named[:MAX_OVERLAPS])}{more}. Such scores are too good.",
        "",
    ]


def gate_lines(run: FinishedRun) -> list[str]:
    """What the acceptance check said of every task the parent knew, if it was asked."""
    path = run.folder / "gate.json"
    if not path.is_file():
        return []
    with reading(path):
        gate = json.loads(path.read_text(encoding="utf-8"))
        limit = "no limit" if gate["limit"] is None else f"limit {gate['limit']:.1%}"
        rows = [
            f"| {markdown(task)} | {markdown(', '.join(filter(None, (found['split'], _documents(found)))))} "
            f"| {_percent(found['rise'])} | {_percent(found['low'])} … {_percent(found['high'])} "
            f"| {markdown(found['verdict'])} |"
            for task, found in gate["tasks"].items()
        ]
    if not rows:
        return []
    header = ["| task | held-out text | worse by | 95 % | verdict |", "|---|---|---:|---:|---|"]
    return [f"Against the parent on held-out text ({limit}):", "", *header, *rows, ""]


def _documents(found: dict[str, object]) -> str:
    """How many, and what was measured on them where it was not the perplexity."""
    measure, excluded = found.get("measure", "perplexity"), int(str(found.get("excluded", 0)))
    if excluded:
        return f"{int(str(found['documents']))} documents, {excluded} left out as trained on"
    return f"{int(str(found['documents']))} documents" + ("" if measure == "perplexity" else f": {measure}")


def _percent(value: object) -> str:
    """JSON has no NaN or infinity: they are words there."""
    return f"{float(str(value)):+.1%}"


def _when(run: FinishedRun) -> str:
    """Which step the newest numbers are of."""
    return "at the end" if run.is_finished else f"at step {run.tables['perplexity'].steps[-1]}"


def forgetting_caption(run: FinishedRun) -> str:
    metrics = scores_in([run])
    in_logs = _joined([f"log-{name}" for name, metric in metrics.items() if metric.is_log])
    by_gain = _joined([name for name, metric in metrics.items() if metric.min_gain is not None])
    divided = f"; for {by_gain} divided by the task's gain where it has one" if by_gain else ""
    return f"Forgetting {_when(run)} ({in_logs}{divided}):"


def boundary_table(run: FinishedRun, first: str = "step 0") -> str:
    """The score matrix: every task's perplexity at every boundary, as Markdown; `first` is what step 0 is called."""
    table = run.tables["perplexity"]
    ends = [0, *[stretch.end for stretch in run.stretches if stretch.end > 0]]
    lines = [f"| task | {first}" + "".join(f" | step {end}" for end in ends[1:]) + f" | bits/byte {_when(run)} |"]
    lines += ["|---|" + "---:|" * (len(ends) + 1)]
    for stretch in run.stretches:
        cells = []
        for end in ends:
            text = f"{table.scores[end][stretch.task]:.4g}" if table.has(end, stretch.task) else "–"
            cells.append(f"**{text}**" if end == stretch.end > 0 and text != "–" else text)
        bits = run.final("eval").get(f"eval/{stretch.task}/bits_per_byte")
        cells.append("–" if bits is None else f"{bits:.3f}")
        lines.append(f"| {markdown(stretch.task)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def forgetting_table(run: FinishedRun) -> str:
    """Forgetting, its areas and transfer by metric, as Markdown."""
    lines = ["| metric | forgetting | AUFC | AUFC per task | BWT | FWT |", "|---|---:|---:|---:|---:|---:|"]
    for metric in run.tables:
        values = run.summary(metric)
        names = ("forgetting", "aufc", "aufc_task", "bwt", "fwt")
        cells = [f"{values[f'cl/{metric}/{name}']:.3f}" if f"cl/{metric}/{name}" in values else "–" for name in names]
        lines.append(f"| {metric} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _state_line(run: FinishedRun) -> str:
    order = " → ".join(
        f"{markdown(stretch.task)} ({stretch.end - stretch.start} steps)" for stretch in run.stretches if stretch.end
    )
    state = "finished" if run.is_finished else f"unfinished, at step {run.last_step} of {run.stretches[-1].end}"
    return f"{order}; seed {run.config.train.seed}; {run.config.train.tokens_per_step} tokens a step; {state}."


def _test_lines(run: FinishedRun) -> list[str]:
    """The scores on test text, which is read once, at the end."""
    found = run.final("test")
    scores = {task: found.get(f"test/{task}/perplexity") for task in run.tasks}
    cells = [f"{markdown(task)} {score:.4g}" for task, score in scores.items() if score is not None]
    return [f"Test perplexity, read once at the end: {', '.join(cells)}.", ""] if cells else []


def _lm_lines(run: FinishedRun) -> list[str]:
    """Tasks of the lm-evaluation-harness at the last boundary, and how far they are behind their best earlier one."""
    found = run.final("eval")
    rows = []
    for path, value in found.items():
        root, _, name = path.partition("/")
        if root == ROOT:
            lost = found.get(f"cl/{path}/forgetting")
            rows.append(f"| {markdown(name)} | {value:.4g} | {'–' if lost is None else f'{lost:.4g}'} |")
    head = ["| lm-evaluation-harness | value | forgetting |", "|---|---:|---:|"]
    return [*head, *rows, ""] if rows else []


COSTS = (
    "tokens_per_second", "peak_memory_gb", "gb_hours", "training_flops_per_token", "utilisation", "evaluation_share",
)  # fmt: skip


def _cost_lines(run: FinishedRun) -> list[str]:
    cost = run.final("end")
    if not cost.keys() >= {f"efficiency/{name}" for name in COSTS}:
        return []
    return [
        f"{cost['efficiency/tokens_per_second']:,.0f} tokens/s in training, "
        f"{cost['efficiency/peak_memory_gb']:.2f} GB at most, {cost['efficiency/gb_hours']:.3f} GB·h, "
        f"{cost['efficiency/training_flops_per_token'] / 1e6:.1f} MFLOP per token, "
        f"utilisation {cost['efficiency/utilisation']:.2f}, "
        f"{cost['efficiency/evaluation_share']:.0%} of the time spent on evaluation.",
        "",
    ]


# ------------------------------------------------------------------------------------------------------- side by side


CAPTION = (
    "Validation perplexity of each task just after its training → at the end; mean forgetting of past tasks and its "
    "area over the stream, both in log-perplexity."
)


def short(value: float) -> str:
    """Three digits, or the whole number; nan and inf as they are."""
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}"


@dataclass(frozen=True)
class Comparison:
    """Runs of one stream beside each other."""

    runs: list[FinishedRun]

    @classmethod
    def of(cls, folders: list[Path]) -> Comparison:
        runs = [read_run(folder) for folder in folders]
        check_comparable(runs)
        if len({run.name for run in runs}) < len(runs):
            runs = [replace(run, name=str(run.folder)) for run in runs]
        return cls(runs)

    def header(self) -> list[str]:
        return ["run", *self.tasks, "forgotten", "AUFC", "tok/s"]

    @property
    def tasks(self) -> list[str]:
        """Every task of the stream, trained or only measured."""
        return self.runs[0].tasks

    def rows(self) -> list[list[str]]:
        """Perplexity of each task just after its training and at the end, and what was forgotten."""
        rows = []
        for run in self.runs:
            cells = [self._learnt_and_kept(run, task) for task in self.tasks]
            values = run.summary("perplexity")
            for name in ("forgetting", "aufc"):
                value = values.get(f"cl/perplexity/{name}")
                cells.append("–" if value is None else f"{value:.3f}")
            speed = run.final("end").get("efficiency/tokens_per_second")
            rows.append([run.name, *cells, "–" if speed is None else f"{speed:,.0f}"])
        return rows

    @staticmethod
    def _learnt_and_kept(run: FinishedRun, task: str) -> str:
        """Perplexity just after the task's training → at the end; in brackets where the run never trained it."""

        def score(step: int) -> str:
            return short(run.score("perplexity", task, step)) if run.tables["perplexity"].has(step, task) else "–"

        last = run.stretches[-1].end
        trained = next((stretch for stretch in run.stretches if stretch.task == task), None)
        if trained is None:
            return f"({score(last)})"
        return score(last) if trained.end == last else f"{score(trained.end)}→{score(last)}"

    def reading(self) -> list[str]:
        """Sentences that the numbers, and nothing else, decide."""
        task = self.tasks[-1]
        summaries = {run.name: run.summary("perplexity") for run in self.runs}
        areas = {name: s["cl/perplexity/aufc"] for name, s in summaries.items() if "cl/perplexity/aufc" in s}
        if not areas:
            return [f"No run here trained one task after another up to {task}: there was nothing to forget."]
        ends = {
            run.name: run.score("perplexity", task, run.stretches[-1].end)
            for run in self.runs
            if task in [stretch.task for stretch in run.stretches]
        }
        sentences = [
            *_not_finite(areas, "forgetting area"),
            *_who_forgot(_finite(areas)),
            *_not_finite(ends, f"perplexity on the last task ({task})"),
            *_who_learnt(_finite(ends), task),
        ]
        seeds = {run.config.train.seed for run in self.runs}
        if len(seeds) == 1:
            sentences.append("One seed each: differences of a few percent mean nothing.")
        return sentences

    def write(self, folder: Path) -> list[Path]:
        """comparison.md and comparison.png."""
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / "comparison.md", folder / "comparison.png"]
        header = self.header()
        lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
        lines += ["| " + " | ".join([markdown(name), *cells]) + " |" for name, *cells in self.rows()]
        text = [
            "# Side by side",
            "",
            CAPTION,
            "",
            *lines,
            "",
            *[markdown(sentence) for sentence in self.reading()],
            "",
            "![comparison.png](comparison.png)",
            "",
        ]
        draw_comparison(self.runs, written[1])
        write_atomically(written[0], "\n".join(text).encode())
        return written


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _not_finite(values: dict[str, float], what: str) -> list[str]:
    odd = [name for name, value in values.items() if not math.isfinite(value)]
    return [f"The {what} of {_joined(odd)} is not finite: nothing can be said of it."] if odd else []


def _who_forgot(areas: dict[str, float]) -> list[str]:
    """Who forgot least and who most; areas that are printed alike are a tie."""
    if not areas:
        return []
    shown = {name: f"{area:.3f}" for name, area in areas.items()}
    least, most = min(areas, key=lambda name: areas[name]), max(areas, key=lambda name: areas[name])
    if len(areas) == 1:
        return [f"{least} has a forgetting area of {shown[least]}."]
    tied = [name for name in areas if shown[name] == shown[least]]
    if len(tied) == len(areas):
        return [f"{_joined(tied)} tie: the forgetting area of each is {shown[least]}."]
    if len(tied) > 1:
        sentences = [f"{_joined(tied)} forgot least, and tie: the forgetting area of each is {shown[least]}."]
    else:
        sentences = [f"{least} forgot least: its forgetting area is {shown[least]}."]
    if float(shown[least]) > 0:
        sentences.append(f"{most} forgot most, {areas[most] / areas[least]:.1f} times as much ({shown[most]}).")
    else:
        sentences.append(f"{most} forgot most: {shown[most]}.")
    return sentences


def _who_learnt(ends: dict[str, float], task: str) -> list[str]:
    if not ends:
        return []
    best = min(ends, key=lambda name: ends[name])
    tied = [name for name in ends if short(ends[name]) == short(ends[best])]
    if len(tied) > 1:
        return [f"{_joined(tied)} tie on the last task ({task}): perplexity {short(ends[best])}."]
    return [f"{best} learnt the last task ({task}) best: perplexity {short(ends[best])}."]


def _joined(names: list[str]) -> str:
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"
