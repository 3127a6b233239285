"""One HTML file with the report's charts, filters and tables. It holds all it needs and makes no requests."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from trc2.report.figures import VERDICT_COLOURS, data_caption, drawn_variants, log_perplexities, mean_changes
from trc2.report.figures import variant_curve as curve_of
from trc2.report.run import FORGETTING
from trc2.report.runs import RunTable
from trc2.report.tables import NotWritten, final_table, paired_forgetting_table, paired_loss_table
from trc2.system.files import write_atomically
from trc2.system.plot_style import COLOURS

TEMPLATE = Path(__file__).with_name("page.html")
MORE_COLOURS = ("#7F3F00", "#666666", "#8F6FC2", "#3B8F8A", "#B5446E", "#5A7D2B")


@cache
def _charting_library() -> str:
    """Vega's JavaScript as one text.

    The package that holds it runs V8, which ends the process where address space is limited (`ulimit -v`). So it runs
    in a process of its own, once for all pages that this process writes.
    """
    code = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    if done.returncode:
        reason = (
            "pip install '.[report]'" if b"ModuleNotFoundError" in done.stderr else "more address space (ulimit -v)"
        )
        raise NotWritten(f"vl-convert did not run: it needs {reason}")
    return done.stdout.decode()


def write_page(table: RunTable, findings: Sequence[str], path: Path) -> Path:
    """Write the page. It opens with at most six variants, and a list of check boxes chooses others."""
    try:
        import altair as alt
    except ImportError:
        raise NotWritten("needs Altair: pip install '.[report]'") from None
    library = _charting_library().replace("</script", "<\\/script")
    drawn = list(drawn_variants(table))
    rest = [variant for variant in table.variants.index if variant not in drawn]
    settings = {
        "charts": {name: chart.to_dict() for name, chart in charts(table, drawn, alt).items()},
        "variants": [*drawn, *rest],
        "opened": drawn,
        "tasks": [{"name": task, "title": table.task_titles[task]} for task in table.all_tasks],
    }
    template = jinja2.Environment(autoescape=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    page, script = template.module.page, str(template.module.script())  # type: ignore[attr-defined]
    data = f"const settings = {_inert_json(settings)};\n"
    scripts = [library, data + script]
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    content = page(
        title=next(iter(set(table.runs.matrix_title) - {""}), "Report"),
        findings=findings,
        data=data_caption(table, list(table.variants.index)),
        unfinished=table.unfinished,
        tables=_html_tables(table),
        scripts=[Markup(text) for text in scripts],
        allowed=Markup(allowed),
    )
    write_atomically(path, str(content).encode())
    return path


def _inert_json(value: Any) -> str:
    """JSON inside a script: a name such as </script> must not end it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _html_tables(table: RunTable) -> list[dict[str, Any]]:
    """Final scores, differences and verdicts, those that can be filled."""
    tables = []
    for make in (final_table, paired_loss_table, paired_forgetting_table):
        try:
            made = make(table)
        except NotWritten:
            continue
        frame = made.shown(lambda text: text, str, str).reset_index()
        html = Markup(frame.to_html(index=False, border=0))
        tables.append({"title": made.title, "html": html, "caption": made.caption})
    return tables


# ------------------------------------------------------------------------------------------------------ the charts


def charts(table: RunTable, drawn: Sequence[str], alt: Any) -> dict[str, Any]:
    """Vega-Lite charts by the id of their place on the page."""
    variants = [*drawn, *(variant for variant in table.variants.index if variant not in drawn)]
    tones = [*COLOURS, *MORE_COLOURS]
    colours = [tones[place % len(tones)] for place in range(len(variants))]
    shown = alt.param(name="shown", value=list(drawn))
    task = alt.param(name="task", value=table.all_tasks[0])
    legend = alt.Legend(orient="bottom", columns=2, labelLimit=420, values=alt.ExprRef("shown"))
    colour = alt.Color("variant:N", scale=alt.Scale(domain=variants, range=colours), title=None, legend=legend)
    is_shown = "indexof(shown, datum.variant) >= 0"
    rows = _curve_rows(table, variants)

    def lines(data: pd.DataFrame, condition: str, y: Any, bands: Any) -> Any:
        base = alt.Chart(data).transform_filter(condition)
        tips = ["variant:N", "step:Q", alt.Tooltip("mean:Q", format=".4s"), "seeds:Q"]
        x = alt.X("step:Q", title="optimizer step")
        band = base.mark_area(opacity=0.15).encode(x=x, y=bands, y2="high:Q", color=colour)
        line = base.mark_line(point={"size": 18}).encode(x=x, y=y, color=colour, tooltip=tips)
        return (band + line).add_params(shown, task).properties(width="container", height=300)

    log = {"scale": alt.Scale(type="log", zero=False), "title": "validation perplexity"}
    rise = {"title": "rise of log-perplexity since its own training (nats)"}
    perplexity, risen = rows[rows.kind == "perplexity"], rows[rows.kind == "rise"]
    charts_by_id = {
        "perplexity": lines(
            perplexity, f"{is_shown} && datum.task == task", alt.Y("mean:Q", **log), alt.Y("low:Q", **log)
        )
    }
    if len(risen):
        charts_by_id["forgetting"] = lines(risen, is_shown, alt.Y("mean:Q", **rise), alt.Y("low:Q", **rise))
    points = _points(table)
    if len(points) > 1:
        x, y = alt.X("final_loss:Q", title="final loss (nats), lower is better"), alt.Y("forgetting:Q")
        charts_by_id["scatter"] = (
            alt.Chart(points)
            .transform_filter(is_shown)
            .mark_point(filled=True, size=90)
            .encode(
                x=x.scale(zero=False),
                y=y.title("forgetting at the end (nats), lower is better"),
                color=colour,
                tooltip=["variant:N", "final_loss:Q", "forgetting:Q", "seeds:Q"],
            )
            .add_params(shown, task)
            .properties(width="container", height=300)
        )
    verdicts = _verdicts(table)
    if len(verdicts):
        title = f"{table.reference} − other variant, final loss (nats)"
        tone = alt.Color("verdict:N", title=f"{table.reference} is", scale=alt.Scale(
            domain=list(VERDICT_COLOURS), range=list(VERDICT_COLOURS.values())))  # fmt: skip
        y = alt.Y("variant:N", sort=list(verdicts.variant), title=None, axis=alt.Axis(labelLimit=320))
        base = alt.Chart(verdicts)
        tips = ["variant:N", alt.Tooltip("mean:Q", format=".3f"), "verdict:N", alt.Tooltip("p:Q", format=".3f"), "n:Q"]
        span = base.mark_rule(opacity=0.5, strokeWidth=3).encode(
            x=alt.X("low:Q", title=title), x2="high:Q", y=y, color=tone
        )
        dots = base.mark_point(filled=True, size=60).encode(x="mean:Q", y=y, color=tone, tooltip=tips)
        zero = alt.Chart(pd.DataFrame({"x": [0]})).mark_rule(strokeDash=[3, 3]).encode(x="x:Q")
        charts_by_id["differences"] = (zero + span + dots).add_params(shown, task).properties(
            width="container", height=alt.Step(18)
        )  # fmt: skip
    return charts_by_id


def _curve_rows(table: RunTable, variants: Sequence[str]) -> pd.DataFrame:
    """Mean curves over seeds: perplexity of every task, and the rise of past tasks."""
    rows = []
    for variant in variants:
        seeds = int(table.variants.n[variant])
        for task in table.all_tasks:
            curve = curve_of(table, variant, log_perplexities(task)).dropna()
            for step, row in curve.iterrows():
                if row.high < 700:
                    ends = [_rounded(math.exp(row[end])) for end in ("mean", "low", "high")]
                    rows.append(("perplexity", variant, task, step, *ends, seeds))
        for step, row in curve_of(table, variant, mean_changes).dropna().iterrows():
            rows.append(("rise", variant, "", step, *(_rounded(row[end]) for end in ("mean", "low", "high")), seeds))
    return pd.DataFrame(rows, columns=["kind", "variant", "task", "step", "mean", "low", "high", "seeds"])


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _points(table: RunTable) -> pd.DataFrame:
    means = {"final_loss": table.means(table.final_loss)["mean"], "forgetting": table.means(FORGETTING)["mean"]}
    frame = pd.DataFrame(means).dropna().map(_rounded)
    frame = frame[frame.index.isin(table.learned)].rename_axis("variant").reset_index()
    return frame.assign(seeds=[int(table.variants.n[variant]) for variant in frame.variant])


def _verdicts(table: RunTable) -> pd.DataFrame:
    frame = table.differences(table.final_loss)
    frame = frame[frame.index.isin(table.learned)].sort_values("mean").rename_axis("variant").reset_index()
    numbers = ["mean", "low", "high", "p"]
    frame[numbers] = frame[numbers].astype(float).round(4)
    return frame.replace([math.inf, -math.inf], math.nan)
