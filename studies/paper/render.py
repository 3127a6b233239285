"""The table of claims as Markdown, through one template, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from studies.paper import numbers
from studies.paper.ledger import AREA_MARGIN, LOSS_MARGIN, Claim, Ledger, Ruling, Scope, number
from trc2.report.markdown import markdown
from trc2.system.numbers import quantity

TEMPLATE = Path(__file__).with_name("claims.md.j2")
SCOPES = {
    Scope.fair: "The paper's claims, tested with equal replay on both sides",
    Scope.one_sided: "The paper's claims as the paper tests them: replay on one side only",
    Scope.ours: "Our own questions",
}
ABOUT = {
    Scope.fair: "Both sides replay in the same way, or the claim concerns one model.",
    Scope.one_sided: "TRC² replays and the other side does not, as in the paper. A verdict here mostly shows what "
    "replay does.",
    Scope.ours: "The paper does not make these statements. They separate replay from the other parts.",
}
VERBS = {  # of one claim, and of several
    Ruling.holds: ("holds", "hold"),
    Ruling.fails: ("does not hold", "do not hold"),
    Ruling.same: ("shows no relevant difference", "show no relevant difference"),
    Ruling.undecided: ("is undecided", "are undecided"),
    Ruling.untestable: ("cannot be tested", "cannot be tested"),
}


def as_markdown(ledger: Ledger, counts: dict[str, dict[str, float]] | None = None) -> str:
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["md"] = inline
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    table = ledger.roles.table
    parts = [
        {
            "title": SCOPES[scope],
            "about": ABOUT[scope],
            "counts": count_sentence(ledger, scope),
            "groups": groups(claims),
        }
        for scope in Scope
        if (claims := ledger.in_scope(scope))
    ]
    return template.render(
        scale=scale_words(ledger), counts=count_words(ledger, counts), parts=parts, claims=ledger.claims,
        remarks=ledger.remarks, loss_margin=LOSS_MARGIN, area_margin=AREA_MARGIN,
        unlearned={v: table.variants.unlearned[v] for v in table.competitors if table.variants.unlearned[v]},
        cells=finding_cells, compact=numbers.COMPACT_PARAMETERS, columns=numbers.COLUMNS_SHARE,
    )  # fmt: skip


def as_json(ledger: Ledger) -> str:
    table = ledger.roles.table
    data = {
        "schema": 2, "paper": numbers.as_data(), "runs": len(table.runs), "unfinished": table.unfinished,
        "tasks": table.tasks, "margins": {"loss": LOSS_MARGIN, "aufc": AREA_MARGIN},
        "configurations": [
            {"title": v, "seeds": int(row.n), "repeats": int(row.repeats), "unlearned": row.unlearned}
            for v, row in table.variants.iterrows()
        ],
        "claims": [claim.data() for claim in ledger.claims],
        "arithmetic": [asdict(remark) for remark in ledger.remarks],
    }  # fmt: skip
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite becomes null."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def inline(text: object) -> str:
    """Markdown for a cell or the middle of a line, where a leading number or sign needs no escape."""
    return markdown(f"x {text}")[2:].strip()


def scale_words(ledger: Ledger) -> str:
    """What the verdicts are about: runs, seeds, sizes, steps, and the datasets in their order."""
    table, roles = ledger.roles.table, ledger.roles
    order = " → ".join(table.task_titles.get(task, task) for task in table.order.split(" → "))
    rows = table.runs[~table.runs.is_reference]
    seeds = sorted({int(seed) for seed in rows.seed})
    shown = roles.trc2 or table.competitors[0]
    size = quantity(float(table.variants.parameters[shown]))
    return (
        f"{len(table.runs)} runs, seeds {', '.join(map(str, seeds))}, models of about {size} parameters, "
        f"{max(rows.steps):,} steps of {min(rows.tokens_per_step):,} new tokens or more, {order}"
    )


def count_sentence(ledger: Ledger, scope: Scope) -> str:
    """How many claims of one scope have which verdict, in a sentence that names the scope."""
    claims = ledger.in_scope(scope)
    found = [(VERBS[ruling], sum(claim.ruling is ruling for claim in claims)) for ruling in Ruling]
    verdicts = ", ".join(f"{count} {verbs[count > 1]}" for verbs, count in found if count)
    return f"Of {len(claims)} {scope.value}, in these small runs {verdicts}."


def count_words(ledger: Ledger, counts: dict[str, dict[str, float]] | None) -> str:
    """TRC² right after each task's training beside a table of counts on the same text."""
    roles = ledger.roles
    if not counts or roles.trc2 is None:
        return ""
    from trc2.report.run import Measure, own_score

    parts = []
    for task in roles.table.tasks:
        known = roles.seeds(Measure("own", "own", own_score(task)), roles.trc2)
        orders = [
            f"{name} {counts[task][name]:,.0f}"
            for name in ("unigram", "bigram", "trigram")
            if name in counts.get(task, {})
        ]
        if known and orders:
            parts.append(f"{task}: TRC² {math.fsum(known.values()) / len(known):,.0f}, {', '.join(orders)}")
    if not parts:
        return ""
    return f"Perplexity right after a task's own training, beside counts of word sequences: {'; '.join(parts)}."


def groups(claims: Sequence[Claim]) -> list[tuple[str, list[Claim]]]:
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        found.setdefault(claim.row.group, []).append(claim)
    return list(found.items())


def finding_cells(finding: Any) -> list[str]:
    """One comparison as a row of the details."""
    known, comparison = finding.difference, finding.comparison
    first, second = (number(mean, known.interval) for mean in finding.means)
    p = "–" if math.isnan(known.p_holm) or not comparison.counts else f"{known.p_holm:.2g}"
    sign = "+" if known.mean > 0 else ""
    return [
        comparison.about, f"{comparison.first} {first}",
        second if comparison.is_bound else f"{comparison.second} {second}",
        f"{sign}{number(known.mean, known.interval)}", finding.interval_text.removeprefix("95 % CI "), finding.n_text,
        p, finding.outcome.value if comparison.counts else "not counted", finding.effect_text, comparison.remark,
    ]  # fmt: skip
