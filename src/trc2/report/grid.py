"""One table written three ways: Markdown to read, CSV to compute with, LaTeX to print."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trc2.errors import plain
from trc2.files import write_atomically
from trc2.report.markdown import markdown

NOTHING = "–"  # in a cell: was not measured, or is not defined
ARROWS = {"lower": "↓", "higher": "↑"}


@dataclass(frozen=True)
class Number:
    """A mean over n repetitions, with the half width of its interval; NaN where there is none."""

    value: float
    half: float = math.nan
    n: int = 1

    def __str__(self) -> str:
        """As many digits as the interval supports, or about four."""
        if not math.isfinite(self.value):
            return {math.inf: "∞", -math.inf: "−∞"}.get(self.value, "NaN")
        text = _digits(self.value, self.decimals)
        if not math.isfinite(self.half):
            return text
        return f"{text} ± {_digits(self.half, self.decimals) if self.half else 0}"

    @property
    def decimals(self) -> int:
        if self.half > 0 and math.isfinite(self.half) and abs(self.value) < 1000:
            return min(4, max(0, 1 - math.floor(math.log10(self.half))))
        return 3 if self.value == 0 else min(3, max(0, 3 - math.floor(math.log10(abs(self.value)))))

    def reads_like(self, other: Number) -> bool:
        """Whether both are the same number in the digits of the one that has fewer."""
        places = min(self.decimals, other.decimals)
        return _digits(self.value, places) == _digits(other.value, places)


def _digits(value: float, places: int) -> str:
    text = f"{value:,.{places}f}" if abs(value) < 1e9 else f"{value:.3e}"
    if value != 0 and not text.strip("-0.,"):
        text = f"{value:.1g}"  # small is not nothing
    return text.replace("-", "−")


Cell = Number | int | str | None


@dataclass(frozen=True)
class Column:
    """What stands above a column. Heads are words, left, and repeated in every panel."""

    title: str
    group: str = ""
    panel: str = ""
    better: Literal["lower", "higher"] | None = None
    is_head: bool = False

    @property
    def full(self) -> str:
        """On one line."""
        return f"{self.group} {self.title}".strip()

    @property
    def arrow(self) -> str:
        return f" {ARROWS[self.better]}" if self.better else ""


@dataclass(frozen=True)
class Row:
    """Cells in the order of the columns; a bound does not compete for the best value."""

    cells: tuple[Cell, ...]
    is_bound: bool = False


@dataclass(frozen=True)
class Table:
    """Rows and columns with a caption; panels break a wide one into parts below each other, with the same rows."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        assert all(len(row.cells) == len(self.columns) for row in self.rows), self.name

    # -------------------------------------------------------------------------------------------------- its parts

    def panels(self) -> dict[str, list[int]]:
        """The columns of every panel, its heads first."""
        heads = [index for index, column in enumerate(self.columns) if column.is_head]
        found: dict[str, list[int]] = {}
        for index, column in enumerate(self.columns):
            if not column.is_head:
                found.setdefault(column.panel, list(heads)).append(index)
        return found or {"": heads}

    def best(self, index: int) -> Number | None:
        """The best number of a column among those that compete; None if there is nothing to win."""
        better = self.columns[index].better
        cells = [row.cells[index] for row in self.rows if not row.is_bound]
        numbers = [cell for cell in cells if isinstance(cell, Number) and math.isfinite(cell.value)]
        if better is None or len(numbers) < 2:
            return None
        winner = min(numbers, key=lambda cell: cell.value if better == "lower" else -cell.value)
        return None if all(cell.reads_like(winner) for cell in numbers) else winner

    def is_best(self, row: Row, index: int) -> bool:
        cell, best = row.cells[index], self.best(index)
        if not isinstance(cell, Number) or best is None or row.is_bound or not math.isfinite(cell.value):
            return False
        return cell.reads_like(best)

    # -------------------------------------------------------------------------------------------------- three ways

    def to_markdown(self) -> str:
        """Panels below each other, the best in bold."""
        blocks = []
        for panel, indices in self.panels().items():
            columns = [self.columns[index] for index in indices]
            lines = [] if not panel else [f"**{markdown(panel)}**", ""]
            lines.append("| " + " | ".join(markdown(column.full) + column.arrow for column in columns) + " |")
            lines.append("|" + "|".join("---" if column.is_head else "---:" for column in columns) + "|")
            for row in self.rows:
                cells = [self._markdown_cell(row, index) for index in indices]
                lines.append("| " + " | ".join(cells) + " |")
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)

    def _markdown_cell(self, row: Row, index: int) -> str:
        cell = row.cells[index]
        if isinstance(cell, Number):
            return f"**{cell}**" if self.is_best(row, index) else str(cell)
        return NOTHING if cell is None else f"{cell:,}" if isinstance(cell, int) else markdown(cell)

    def to_csv(self) -> str:
        """All panels beside each other, numbers in full; beside a column with intervals, their half width.

        A cell that would be a formula in a spreadsheet begins with an apostrophe.
        """
        spread = [
            any(isinstance(row.cells[index], Number) and _is_repeated(row.cells[index]) for row in self.rows)
            for index in range(len(self.columns))
        ]
        header: list[str] = []
        for column, has_spread in zip(self.columns, spread, strict=True):
            name = f"{column.panel}: {column.full}" if column.panel else column.full
            header += [name, f"{name} ± 95 %"] if has_spread else [name]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([_inert(name) for name in header])
        for row in self.rows:
            cells: list[str] = []
            for cell, has_spread in zip(row.cells, spread, strict=True):
                if isinstance(cell, Number):
                    cells.append(repr(float(cell.value)))
                    cells += ([repr(float(cell.half))] if math.isfinite(cell.half) else [""]) if has_spread else []
                else:
                    text = "" if cell is None else str(cell) if isinstance(cell, int) else _inert(cell)
                    cells += [text, ""] if has_spread else [text]
            writer.writerow(cells)
        return out.getvalue()

    def to_latex(self) -> str:
        r"""A table* for \input, which needs booktabs and nothing else."""
        panels = self.panels()
        width = max(len(indices) for indices in panels.values())
        heads = sum(column.is_head for column in self.columns)
        lines = [r"\begin{table*}[t]", r"  \centering", r"  \scriptsize", rf"  \caption{{{latex(self.caption)}}}"]
        lines += [rf"  \label{{tab:{self.name}}}", rf"  \begin{{tabular}}{{{'l' * heads}{'r' * (width - heads)}}}"]
        lines.append(r"    \toprule")
        for number, (panel, indices) in enumerate(panels.items()):
            if number:
                lines.append(r"    \midrule")
            if panel:
                lines.append(rf"    \multicolumn{{{width}}}{{c}}{{\textbf{{{latex(panel)}}}}} \\")
                lines.append(r"    \midrule")
            lines += [f"    {line}" for line in self._latex_header(indices)]
            lines.append(r"    \midrule")
            for row in self.rows:
                lines.append("    " + " & ".join(self._latex_cell(row, index) for index in indices) + r" \\")
        lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table*}", ""]
        return "\n".join(lines)

    def _latex_header(self, indices: Sequence[int]) -> list[str]:
        """Groups with a rule below them where there are any, then titles."""
        columns = [self.columns[index] for index in indices]
        lines: list[str] = []
        if any(column.group for column in columns):
            cells, rules, place = [], [], 0
            while place < len(columns):
                group = columns[place].group
                size = 1
                while group and place + size < len(columns) and columns[place + size].group == group:
                    size += 1
                if group:
                    cells.append(rf"\multicolumn{{{size}}}{{c}}{{{latex(group + columns[place].arrow)}}}")
                    rules.append(rf"\cmidrule(lr){{{place + 1}-{place + size}}}")
                else:
                    cells.append("")
                place += size
            lines += [" & ".join(cells) + r" \\", " ".join(rules)]
        lines.append(
            " & ".join(latex(column.title + ("" if column.group else column.arrow)) for column in columns) + r" \\"
        )
        return lines

    def _latex_cell(self, row: Row, index: int) -> str:
        cell = row.cells[index]
        if isinstance(cell, Number):
            text = latex(str(cell))
            return rf"\textbf{{{text}}}" if self.is_best(row, index) else text
        return "--" if cell is None else f"{cell:,}" if isinstance(cell, int) else latex(cell)

    def write(self, folder: Path) -> list[Path]:
        """NAME.md, NAME.csv and NAME.tex."""
        texts = {
            "md": f"# {markdown(self.title)}\n\n{self.to_markdown()}\n\n{markdown(self.caption)}\n",
            "csv": self.to_csv(),
            "tex": self.to_latex(),
        }
        written = [folder / f"{self.name}.{suffix}" for suffix in texts]
        for path, text in zip(written, texts.values(), strict=True):
            write_atomically(path, text.encode())
        return written


def _is_repeated(cell: Cell) -> bool:
    return isinstance(cell, Number) and math.isfinite(cell.half)


def _inert(text: str) -> str:
    text = " ".join(plain(text).split())
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


# ----------------------------------------------------------------------------------------------------------- LaTeX


SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "²": r"\textsuperscript{2}", "−": "$-$", "±": r"$\pm$",
    "×": r"$\times$", "·": r"$\cdot$", "→": r"$\rightarrow$", "↓": r"$\downarrow$", "↑": r"$\uparrow$", "–": "--",
    "—": "---", "…": r"\ldots{}", "∞": r"$\infty$", "≥": r"$\geq$", "≤": r"$\leq$", "τ": r"$\tau$", "λ": r"$\lambda$",
    "Δ": r"$\Delta$", "✓": r"$+$", "✗": r"$-$", "†": r"$\dagger$", "\N{REPLACEMENT CHARACTER}": "?",
}  # fmt: skip


def latex(text: str) -> str:
    """Text that LaTeX prints as it is, on one line; letters of other scripts are left to its input encoding."""
    return "".join(SPECIAL.get(sign, sign) for sign in " ".join(plain(text).split()))
