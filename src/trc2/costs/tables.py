"""Budget tables for the terminal."""

from __future__ import annotations

from functools import cache

from rich.table import Table

from trc2.backbones.registry import step_cost
from trc2.config import RunConfig, TRC2Config, load_recipe
from trc2.costs.devices import SPREAD, Device, Need
from trc2.costs.parameters import (
    GIB,
    PAPER_COLUMNS,
    PAPER_ROWS,
    PaperRow,
    active_parameters,
    paper_accounting,
    percentages,
    static_budget,
    unreachable,
)
from trc2.nn.cost import Cost


def quantity(value: float) -> str:
    """1234567 → 1.23M"""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.0f}"


def budget_table(name: str, run: RunConfig, slots: int) -> Table:
    """Parameters, static memory and FLOPs per token of every subsystem."""
    config, train = run.model, run.train
    parts = static_budget(config)
    tokens = train.batch_size * train.sequence_length
    costs = step_cost(config, train.batch_size, train.sequence_length, slots=slots, with_replay=True)
    table = Table(
        title=f"{name}: {train.batch_size} × {train.sequence_length} tokens, {slots} filled slots",
        caption="FLOPs per token of the batch, matrix products only, attention as full T×T",
    )
    table.add_column("subsystem")
    for column in ("trainable", "frozen", "static MiB", "forward FLOPs", "training FLOPs"):
        table.add_column(column, justify="right")
    for part_name in [*parts, *(key for key in costs if key not in parts)]:
        part, cost = parts.get(part_name), costs.get(part_name, Cost()) / tokens
        owned = (
            ("–", "–", "–")
            if part is None
            else (f"{part.trainable:,}", f"{part.frozen:,}", f"{part.bytes / 2**20:.2f}")
        )
        table.add_row(part_name, *owned, quantity(cost.forward), quantity(cost.training))
    table.add_section()
    plain = sum((cost for key, cost in costs.items() if key != "replay"), Cost()) / tokens
    total = sum(costs.values(), Cost()) / tokens
    owned = (
        f"{sum(part.trainable for part in parts.values()):,}",
        f"{sum(part.frozen for part in parts.values()):,}",
        f"{sum(part.bytes for part in parts.values()) / 2**20:.2f}",
    )
    table.add_row("total", *owned, quantity(plain.forward), quantity(plain.training))
    if "replay" in costs:
        table.add_row("total with replay", "", "", "", quantity(total.forward), quantity(total.training))
    return table


def budget_json(name: str, run: RunConfig, slots: int) -> dict[str, object]:
    """The same numbers for programs."""
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


FAMILY_COLUMNS = ("params", "active", "body", "forward", "training", "with replay")


def family_rows(names: list[str]) -> list[dict[str, float | str]]:
    """Parameters and FLOPs per token of several recipes, each with its own batch and a full memory."""
    return [{"recipe": name, **budget_numbers(load_recipe(name))} for name in names]


def budget_numbers(run: RunConfig) -> dict[str, float]:
    """One row of it, by column."""
    model, train = run.model, run.train
    tokens = train.batch_size * train.sequence_length
    costs = step_cost(
        model.replace(replay=True), train.batch_size, train.sequence_length, slots=model.read_slots, with_replay=True
    )
    replay = costs.pop("replay")
    plain = sum(costs.values(), Cost())
    active, besides = active_parameters(model)
    total = sum(part.total for part in static_budget(model).values())
    numbers = (total, active, besides, plain.forward / tokens, plain.training / tokens)
    return dict(zip(FAMILY_COLUMNS, (*numbers, (plain + replay).training / tokens), strict=True))


def family_table(title: str, rows: list[dict[str, float | str]]) -> Table:
    table = Table(title=title, caption=(
        "active: met by a token; body: of these, neither embedding nor positions; then FLOPs per token of the batch, "
        "in training also with replay of its default size"
    ))  # fmt: skip
    table.add_column("recipe", no_wrap=True)
    for column in FAMILY_COLUMNS:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(str(row["recipe"]), *[quantity(float(row[column])) for column in FAMILY_COLUMNS])
    return table


def counts_line(run: RunConfig) -> str:
    """Both parameter counts: what this model has, and what its switches removed."""
    total = sum(part.total for part in static_budget(run.model).values())
    removed = unreachable(run.model)
    if not removed:
        return f"{total:,} parameters."
    return f"{total:,} parameters; its switches removed {removed:,} of the complete model's {total + removed:,}."


def paper_table() -> tuple[Table, int]:
    """Our component shares beside the paper's, and how many of the printed numbers differ."""
    table = Table(title="Component budget: ours, and the paper's where it differs", caption=(
        "Share of the three subsystems in percent: columns, hippocampus, thalamus. Memory in the paper's accounting."
    ))  # fmt: skip
    for column in ("variant", "parameters", "paper", "parameters %", "memory %", "memory GiB"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    different = 0
    for row in PAPER_ROWS:
        cells, wrong = _paper_cells(row)
        table.add_row(*cells)
        different += wrong
    return table, different


def paper_rows() -> list[dict[str, object]]:
    """Our numbers and the paper's, by recipe."""
    rows: list[dict[str, object]] = []
    for row in PAPER_ROWS:
        total, parts = _counted(row.recipe)
        trainable, memory = (percentages([parts[name][which] for name in PAPER_COLUMNS]) for which in (0, 1))
        ours = {"parameters": total, "parameters_percent": trainable, "memory_percent": memory}
        paper = {"millions": row.millions, "parameters_percent": row.parameters, "memory_percent": row.memory}
        rows.append({"recipe": row.recipe, "parts": PAPER_COLUMNS, "ours": ours, "paper": paper})
    return rows


@cache  # laying out all five takes seconds, and their table is printed beside their rows
def _counted(recipe: str) -> tuple[int, dict[str, tuple[int, int]]]:
    """All parameters of one of the paper's networks, and the paper's accounting of it."""
    config = load_recipe(recipe).model
    assert isinstance(config, TRC2Config)
    return sum(part.total for part in static_budget(config).values()), paper_accounting(config)


def _paper_cells(row: PaperRow) -> tuple[list[str], int]:
    total, parts = _counted(row.recipe)
    trainable = percentages([parts[name][0] for name in PAPER_COLUMNS])
    memory = percentages([parts[name][1] for name in PAPER_COLUMNS])
    wrong = int(round(total / 1e6) != row.millions)
    shares = []
    for ours, theirs in ((trainable, row.parameters), (memory, row.memory)):
        wrong += sum(a != b for a, b in zip(ours, theirs, strict=True))
        shares.append(" ".join(f"{a:.2f}" if a == b else f"{a:.2f}≠{b:.2f}" for a, b in zip(ours, theirs, strict=True)))
    gib = " ".join(f"{parts[name][1] / GIB:.3g}" for name in PAPER_COLUMNS)
    return [row.recipe.removeprefix("paper_"), f"{total:,}", f"{row.millions}M", *shares, gib], wrong


# ------------------------------------------------------------------------------------------------------ on many devices


def needs_tables(name: str, run: RunConfig, rows: list[Need]) -> list[Table]:
    """What every device holds; then what it sends, and how long a run takes."""
    memory = Table(title=f"{name}: {run.train.tokens_per_step:,} tokens a step", caption="GB of one device")
    time = Table(caption="GB a device sends in a step; * needs more micro-batches a step than the recipe has")
    memory.add_column("devices", justify="right")
    memory.add_column("needs", no_wrap=True)
    for column in ("params", "grads", "Adam", "activ.", "memory", "total"):
        memory.add_column(column, justify="right")
    for column in ("devices", "sent", "seconds a step", "tokens/s", "hours"):
        time.add_column(column, justify="right")
    for row in rows:
        style, devices = None if row.fits else "red", f"{row.devices:,}{'*' if row.is_stretched else ''}"
        ways = ([row.parallel] if row.devices > 1 else []) + (["recompute"] if row.recompute else [])
        gigabytes = [f"{value / 1e9:.2f}" for value in (*row.parts.values(), row.total)]
        memory.add_row(devices, " + ".join(ways) or "–", *gigabytes, style=style)
        times = [f"{row.seconds:.3g}", f"{row.tokens_per_second:,.0f}", f"{row.hours:,.1f}"]
        time.add_row(devices, f"{row.messages / 1e9:.2f}", *times, style=style)
    return [memory, time]


def needs_notes(run: RunConfig, device: Device, rows: list[Need], *, is_guess: bool) -> list[str]:
    """What the table leaves open, in sentences."""
    told = f"Times are those of {device.utilisation:.1%} of {device.flops / 1e12:,.4g} TFLOP/s"
    if is_guess:
        told += f", what the paper's rows suggest for a width of {run.model.d_model}, within a factor of {SPREAD:.0f}"
    notes = [f"{told}; messages are not hidden behind them."]
    if small := [row.devices for row in rows if not row.fits]:
        limit = device.memory / 1e9
        notes.append(f"{', '.join(map(str, small))} devices of {limit:,.4g} GB are too few, whatever is divided.")
    if rows[0].host:
        notes.append(f"Every process also keeps {rows[0].host / 1e6:,.1f} MB of replay chunks in the host's memory.")
    return notes
