"""What a run learnt and forgot, as Markdown and pictures; and several runs side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trc2.report.figures import draw_comparison, draw_hippocampus, draw_summary
from trc2.report.runs import FinishedRun, check_comparable, read_run


def write_summary(folder: Path) -> list[Path]:
    """summary.md, summary.png and, with a memory, hippocampus.png; returns what was written."""
    run = read_run(folder)
    written = [folder / "summary.md", folder / "summary.png"]
    draw_summary(run, written[1])
    if run.series("train", "hippocampus/threshold")[0]:
        written.append(folder / "hippocampus.png")
        draw_hippocampus(run, written[2])
    written[0].write_text(summary_text(run, [path.name for path in written[1:]]), encoding="utf-8")
    return written


def summary_text(run: FinishedRun, pictures: list[str]) -> str:
    """The run in Markdown."""
    lines = [f"# {run.name}", "", _state_line(run), ""]
    lines += ["Validation perplexity per token at task boundaries (bold: just after its own training):", ""]
    lines += [boundary_table(run), ""]
    lines += ["Forgetting at the end (log-perplexity; for BLEU and accuracy divided by the task's gain):", ""]
    lines += [forgetting_table(run), "", *_cost_lines(run), *[f"![{name}]({name})" for name in pictures], ""]
    return "\n".join(lines)


def boundary_table(run: FinishedRun) -> str:
    """The score matrix: every task's perplexity at every boundary, as Markdown."""
    table = run.tables["perplexity"]
    ends = [0, *[stretch.end for stretch in run.stretches]]
    lines = ["| task | " + " | ".join(f"step {end}" for end in ends) + " | bits/byte at the end |"]
    lines += ["|---|" + "---:|" * (len(ends) + 1)]
    for stretch in run.stretches:
        cells = []
        for end in ends:
            text = f"{table.scores[end][stretch.task]:.4g}" if table.has(end, stretch.task) else "–"
            cells.append(f"**{text}**" if end == stretch.end else text)
        bits = run.final("eval").get(f"eval/{stretch.task}/bits_per_byte")
        cells.append("–" if bits is None else f"{bits:.3f}")
        lines.append(f"| {stretch.task} | " + " | ".join(cells) + " |")
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
    order = " → ".join(f"{stretch.task} ({stretch.end - stretch.start} steps)" for stretch in run.stretches)
    state = "finished" if run.is_finished else f"unfinished, at step {run.last_step} of {run.stretches[-1].end}"
    return f"{order}; seed {run.config.train.seed}; {run.config.train.tokens_per_step} tokens a step; {state}."


def _cost_lines(run: FinishedRun) -> list[str]:
    cost = run.final("end")
    if not cost:
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
    """Three digits, or the whole number."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


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
        assert self.runs[0].config.stream is not None
        return [task.name for task in self.runs[0].config.stream.tasks]

    def rows(self) -> list[list[str]]:
        """Perplexity of each task just after its training and at the end, and what was forgotten."""
        rows = []
        for run in self.runs:
            cells = [self._learnt_and_kept(run, task) for task in self.tasks]
            values = run.summary("perplexity")
            for name in ("forgetting", "aufc"):
                value = values.get(f"cl/perplexity/{name}")
                cells.append("–" if value is None else f"{value:.3f}")
            rows.append([run.name, *cells, f"{run.final('end')['efficiency/tokens_per_second']:,.0f}"])
        return rows

    @staticmethod
    def _learnt_and_kept(run: FinishedRun, task: str) -> str:
        """Perplexity just after the task's training → at the end; in brackets where the run never trained it."""
        last = run.stretches[-1].end
        at_end = short(run.score("perplexity", task, last))
        trained = next((stretch for stretch in run.stretches if stretch.task == task), None)
        if trained is None:
            return f"({at_end})"
        return at_end if trained.end == last else f"{short(run.score('perplexity', task, trained.end))}→{at_end}"

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
        least, most = min(areas, key=lambda name: areas[name]), max(areas, key=lambda name: areas[name])
        best = min(ends, key=lambda name: ends[name])
        sentences = [f"{least} forgot least: its forgetting area is {areas[least]:.3f}."]
        if areas[least] > 0 and least != most:
            sentences.append(f"{most} forgot most, {areas[most] / areas[least]:.1f} times as much ({areas[most]:.3f}).")
        sentences.append(f"{best} learnt the last task ({task}) best: perplexity {ends[best]:.3g}.")
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
        lines += ["| " + " | ".join(row) + " |" for row in self.rows()]
        text = [
            "# Side by side",
            "",
            CAPTION,
            "",
            *lines,
            "",
            *self.reading(),
            "",
            "![comparison.png](comparison.png)",
            "",
        ]
        written[0].write_text("\n".join(text), encoding="utf-8")
        draw_comparison(self.runs, written[1])
        return written
