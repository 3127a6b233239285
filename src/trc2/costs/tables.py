"""Budget tables for the terminal, and the same numbers for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from trc2.backbones.registry import step_cost
from trc2.config import RunConfig, TRC2Config, family_names, load_recipe
from trc2.costs.devices import SPREAD, Device, Need
from trc2.costs.parameters import (
    GIB,
    PAPER_COLUMNS,
    PAPER_ROWS,
    active_parameters,
    num_parameters,
    paper_accounting,
    percentages,
    static_budget,
    unreachable,
)
from trc2.nn.cost import Cost
from trc2.system.console import table_of
from trc2.system.numbers import quantity


def budget_json(name: str, run: RunConfig, slots: int) -> dict[str, Any]:
    """Parameters, static memory and FLOPs per token of every subsystem."""
    train = run.train
    costs = step_cost(run.model, train.batch_size, train.sequence_length, slots=slots, with_replay=True)
    tokens = train.batch_size * train.sequence_length
    parts = static_budget(run.model)
    return {
        "schema": 1,
        "recipe": name,
        "slots": slots,
        "parameters": sum(part.total for part in parts.values()),
        "removed_by_switches": unreachable(run.model),
        "subsystems": {
            key: {"trainable": part.trainable, "frozen": part.frozen, "bytes": part.bytes}
            for key, part in parts.items()
        },
        "flops_per_token": {
            key: {"forward": cost.forward / tokens, "training": cost.training / tokens} for key, cost in costs.items()
        },
    }


def budget_table(budget: dict[str, Any], run: RunConfig) -> Table:
    """The numbers of `budget_json` as a table."""
    train, parts, costs = run.train, budget["subsystems"], budget["flops_per_token"]
    batch = f"{train.batch_size} × {train.sequence_length} tokens"
    table = table_of(
        ("subsystem", "trainable", "frozen", "static MiB", "forward FLOPs", "training FLOPs"),
        align="wrrrrr",
        title=f"{budget['recipe']}: {batch}, {budget['slots']} filled slots",
        caption="FLOPs per token of the batch, matrix products only, attention as full T×T",
    )

    def add(title: str, part_names: Iterable[str], cost_names: Iterable[str]) -> None:
        owned = [parts[name] for name in part_names if name in parts]
        spent = [costs[name] for name in cost_names if name in costs]
        sizes = [sum(part[key] for part in owned) for key in ("trainable", "frozen", "bytes")]
        cells = [f"{sizes[0]:,}", f"{sizes[1]:,}", f"{sizes[2] / 2**20:.2f}"] if owned else ["–"] * 3
        flops = [quantity(sum(cost[key] for cost in spent)) for key in ("forward", "training")]
        table.add_row(title, *cells, *flops)

    for name in dict.fromkeys([*parts, *costs]):
        add(name, [name], [name])
    table.add_section()
    add("total", parts, [name for name in costs if name != "replay"])
    if "replay" in costs:
        add("total with replay", [], costs)
    return table


def counts_line(budget: dict[str, Any]) -> str:
    """Both parameter counts: of this model, and of what its switches removed."""
    total, removed = budget["parameters"], budget["removed_by_switches"]
    if not removed:
        return f"{total:,} parameters."
    return f"{total:,} parameters; its switches removed {removed:,} of the complete model's {total + removed:,}."


FAMILY_COLUMNS = ("params", "active", "body", "forward", "training", "with replay")


def family_rows(family: str) -> list[dict[str, Any]]:
    """Parameters and FLOPs per token of a family's recipes, each with its own batch and a full memory."""
    return [{"recipe": name, **budget_numbers(load_recipe(name))} for name in family_names(family)]


def budget_numbers(run: RunConfig) -> dict[str, float]:
    """One row of it, by column."""
    model, train = run.model, run.train
    tokens = train.batch_size * train.sequence_length
    costs = step_cost(
        model.replace(replay=True), train.batch_size, train.sequence_length, slots=model.read_slots, with_replay=True
    )
    replay = costs.pop("replay")
    plain = sum(costs.values(), Cost())
    active, body = active_parameters(model)
    numbers = (num_parameters(model), active, body, plain.forward / tokens, plain.training / tokens)
    return dict(zip(FAMILY_COLUMNS, (*numbers, (plain + replay).training / tokens), strict=True))


def family_table(family: str, rows: list[dict[str, Any]]) -> Table:
    caption = (
        "active: met by a token; body: of these, neither embedding nor positions; then FLOPs per token of the batch, "
        "in training also with replay of its default size"
    )
    cells = [[row["recipe"], *(quantity(row[column]) for column in FAMILY_COLUMNS)] for row in rows]
    return table_of(("recipe", *FAMILY_COLUMNS), cells, "wrrrrrr", title=f"The {family} family", caption=caption)


def paper_rows() -> list[dict[str, Any]]:
    """Our component budget and the paper's, by recipe."""
    rows = []
    for row in PAPER_ROWS:
        config = load_recipe(row.recipe).model
        assert isinstance(config, TRC2Config)
        parts = paper_accounting(config)
        trainable, memory = ([parts[name][which] for name in PAPER_COLUMNS] for which in (0, 1))
        ours = {
            "parameters": num_parameters(config),
            "parameters_percent": percentages(trainable),
            "memory_percent": percentages(memory),
            "memory_bytes": memory,
        }
        paper = {
            "millions": row.millions,
            "parameters_percent": list(row.parameters),
            "memory_percent": list(row.memory),
        }
        rows.append({"recipe": row.recipe, "parts": PAPER_COLUMNS, "ours": ours, "paper": paper})
    return rows


def paper_differences(rows: list[dict[str, Any]]) -> int:
    """How many of the paper's printed numbers differ from ours."""
    different = 0
    for row in rows:
        ours, paper = row["ours"], row["paper"]
        different += round(ours["parameters"] / 1e6) != paper["millions"]
        for key in ("parameters_percent", "memory_percent"):
            different += sum(a != b for a, b in zip(ours[key], paper[key], strict=True))
    return different


def paper_table(rows: list[dict[str, Any]]) -> Table:
    """Our component shares, with the paper's beside those that differ."""
    table = table_of(
        ("variant", "parameters", "paper", "parameters %", "memory %", "memory GiB"),
        title="Component budget: ours, and the paper's where it differs",
        align="wrrrrr",
        caption="Share of columns, hippocampus and thalamus in percent. Memory in the paper's accounting.",
    )
    for row in rows:
        ours, paper = row["ours"], row["paper"]
        shares = [
            " ".join(f"{a:.2f}" if a == b else f"{a:.2f}≠{b:.2f}" for a, b in zip(ours[key], paper[key], strict=True))
            for key in ("parameters_percent", "memory_percent")
        ]
        gib = " ".join(f"{size / GIB:.3g}" for size in ours["memory_bytes"])
        variant = row["recipe"].removeprefix("paper_")
        table.add_row(variant, f"{ours['parameters']:,}", f"{paper['millions']}M", *shares, gib)
    return table


# ------------------------------------------------------------------------------------------------------ on many devices


def needs_tables(name: str, run: RunConfig, rows: list[Need]) -> list[Table]:
    """What every device holds and sends, and how long a run takes."""
    memory = table_of(
        ("devices", "needs", "params", "grads", "Adam", "activ.", "memory", "total"),
        align="rwrrrrrr",
        title=f"{name}: {run.train.tokens_per_step:,} tokens a step",
        caption="GB of one device",
    )
    time = table_of(
        ("devices", "sent", "seconds a step", "tokens/s", "hours"),
        align="wrrrr",
        caption="GB a device sends in a step; * needs more micro-batches a step than the recipe has",
    )
    for row in rows:
        style, devices = None if row.fits else "red", f"{row.devices:,}{'*' if row.with_more_micro_batches else ''}"
        ways = ([row.parallel] if row.devices > 1 else []) + (["recompute"] if row.recompute else [])
        gigabytes = [f"{value / 1e9:.2f}" for value in (*row.parts.values(), row.total)]
        memory.add_row(devices, " + ".join(ways) or "–", *gigabytes, style=style)
        times = [f"{row.seconds_per_step:.3g}", f"{row.tokens_per_second:,.0f}", f"{row.hours:,.1f}"]
        time.add_row(devices, f"{row.bytes_sent_per_step / 1e9:.2f}", *times, style=style)
    return [memory, time]


def needs_notes(run: RunConfig, device: Device, rows: list[Need], *, is_guess: bool) -> list[str]:
    """The assumptions behind the tables, in sentences."""
    assumed = f"Times are those of {device.utilisation:.1%} of {device.flops / 1e12:,.4g} TFLOP/s"
    if is_guess:
        assumed += (
            f", what the paper's rows suggest for a width of {run.model.d_model}, within a factor of {SPREAD:.0f}"
        )
    notes = [f"{assumed}, with communication that does not overlap computation."]
    if small := [row.devices for row in rows if not row.fits]:
        limit = device.memory / 1e9
        notes.append(f"{', '.join(map(str, small))} devices of {limit:,.4g} GB are too few, whatever is divided.")
    if rows[0].host_bytes:
        host = rows[0].host_bytes / 1e6
        notes.append(f"Every process also keeps {host:,.1f} MB of replay chunks in the host's memory.")
    return notes
