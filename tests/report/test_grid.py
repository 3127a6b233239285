"""A table is the same in Markdown, CSV and LaTeX, and nothing in a name is obeyed by any of them."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import pytest

from trc2.report.grid import Column, Number, Row, Table, latex

HOSTILE = ["a & b % $c$ #d _e_ {f} ~ ^ \\", "|x| <script>", "=1+1", "日本", "a\nb", "$\\frac{1}{2", "\x1b[31m", "²→±"]


def small(name: str = "first") -> Table:
    columns = (
        Column("arm", is_head=True), Column("C4", "PPL", "Scores", "lower"), Column("GSM", "PPL", "Scores", "lower"),
        Column("end", "AUFC", "Areas", "lower"), Column("n", panel="Areas"),
    )  # fmt: skip
    rows = (
        Row((name, Number(12.345, 0.12, 3), Number(3.0), Number(0.5, 0.0, 3), 3)),
        Row(("second", Number(11.0, 0.5, 3), None, Number(math.nan), 3)),
        Row(("bound", Number(1.0), Number(1.0), Number(0.25), 1), is_bound=True),
    )
    return Table("small", "A table", f"About {name}, 95 % of it.", columns, rows)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(12.345, 0.12, 3), "12.35 ± 0.12"),
        (Number(1234.56, 7.0, 3), "1,235 ± 7"),
        (Number(0.1234567), "0.123"),
        (Number(1.0e-6), "1e−06"),
        (Number(-0.2, 0.011, 2), "−0.200 ± 0.011"),
        (Number(0.25, 0.0, 3), "0.250 ± 0"),
        (Number(math.nan, math.nan, 3), "NaN"),
        (Number(math.inf), "∞"),
    ],
)
def test_a_number_has_the_digits_that_its_interval_supports(number: Number, text: str) -> None:
    assert str(number) == text


def test_the_best_is_bold_and_bounds_do_not_compete() -> None:
    text = small().to_markdown()
    assert "**11.0" not in text.split("**Areas**")[1]
    assert "| **11.00 ± 0.50** |" in text
    assert "**1.0" not in text
    assert "**3.000**" not in text  # alone in its column


def test_a_tie_is_bold_twice_unless_all_tie() -> None:
    def column(*values: float) -> str:
        rows = tuple(Row(("x", Number(value))) for value in values)
        return Table("t", "t", "t", (Column("a", is_head=True), Column("b", better="lower")), rows).to_markdown()

    assert column(1.0, 1.00001, 2.0).count("**1.000**") == 2
    assert "**" not in column(1.0, 1.0)


def test_csv_holds_every_number_in_full() -> None:
    header, *rows = csv.reader(io.StringIO(small().to_csv()))
    assert header == [
        "arm", "Scores: PPL C4", "Scores: PPL C4 ± 95 %", "Scores: PPL GSM", "Areas: AUFC end",
        "Areas: AUFC end ± 95 %", "Areas: n",
    ]  # fmt: skip
    assert rows[0] == ["first", "12.345", "0.12", "3.0", "0.5", "0.0", "3"]
    assert rows[1] == ["second", "11.0", "0.5", "", "nan", "", "3"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_and_never_obeyed(name: str, tmp_path: Path) -> None:
    table = small(name)
    assert_is_latex(table.to_latex())
    lines = table.to_markdown().splitlines()
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")}
    assert widths == {4}  # both panels have three columns
    _, first, *_ = csv.reader(io.StringIO(table.to_csv()))
    assert len(first) == 7
    assert not first[0].startswith("=")
    assert {path.suffix for path in table.write(tmp_path)} == {".md", ".csv", ".tex"}


def test_latex_names_groups_and_panels() -> None:
    text = small().to_latex()
    assert r"\multicolumn{2}{c}{PPL $\downarrow$}" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r"\multicolumn{3}{c}{\textbf{Areas}}" in text
    assert r"95 \% of it" in text


def assert_is_latex(text: str) -> None:
    """Braces and dollars balance, environments close in order, every row has the cells of its header or fewer."""
    bare = re.sub(r"\\[\\{}$&%#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[#%~^]", bare), bare
    depth = 0
    for sign in bare:
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    found = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)
    assert found is not None
    for line in text.splitlines():
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert len(re.findall(r"(?<!\\)&", line)) < len(found.group(1))
    assert all(ord(sign) >= 32 or sign == "\n" for sign in text)


def test_every_special_sign_is_escaped() -> None:
    assert latex(r"50% of $x_1 & {y}^2~\z#") == (
        r"50\% of \$x\_1 \& \{y\}\textasciicircum{}2\textasciitilde{}\textbackslash{}z\#"
    )
