"""Dimensionless ratios of a recipe, which a small run must share with the paper's to be a scale model of it.

`python -m studies.paper.ratios RECIPE` prints them beside the paper's.
"""

from __future__ import annotations

import sys

from rich.table import Table

from trc2.config import RunConfig, TRC2Config, load_recipe
from trc2.errors import UserError
from trc2.system.console import PlainConsole

PAPER = "paper_d768_l4"
TOLERANCE = 0.2  # a ratio that differs by less from the paper's counts as close

MEANINGS = {
    "slow heads": "horizon of the slow heads ÷ steps of the stream",
    "write threshold": "horizon of the write threshold ÷ steps of the stream",
    "controller": "steps between two looks ÷ steps of the stream",
    "warm-up": "steps of warm-up ÷ steps of its schedule",
    "reservoir": "tokens in the reservoir ÷ tokens of the stream",
    "recency buffer": "tokens in the recency buffer ÷ tokens of the stream",
    "chunk": "tokens of a stored chunk ÷ tokens of a sequence",
    "replayed": "replayed tokens ÷ new tokens, before the controller acts",
    "memory reach": "steps until a written event can no longer be read, at the target rate",
    "keep target": "writes aimed at ÷ candidates",
    "candidates": "candidates of a sequence ÷ its tokens",
    "evaluations": "evaluations of the first task during its training",
}

SHORT_SEQUENCE = "a sequence of 128 tokens would offer one candidate; eight keep the choice among candidates"
COST = "an evaluation costs a larger part of a short run"
OLD_TEXT_AT_HAND = "the demo shows a user who kept a fourth of the old text"
REASONS = {
    "lab_trc2": {"candidates": SHORT_SEQUENCE, "evaluations": COST},
    "demo": {
        "candidates": SHORT_SEQUENCE,
        "evaluations": COST,
        "controller": "260 steps: a look every 3 steps would cost more than the training between two looks",
        "write threshold": "an average over fewer than 10 steps follows the noise of single batches",
        "reservoir": OLD_TEXT_AT_HAND,
        "recency buffer": OLD_TEXT_AT_HAND,
        "chunk": OLD_TEXT_AT_HAND,
        "replayed": OLD_TEXT_AT_HAND,
    },
}
"""Where a recipe differs from the paper on purpose, and why."""


def ratios(config: RunConfig) -> dict[str, float | None]:
    """Every ratio of a run by its name. None where the run has no such part."""
    if config.stream is None:
        raise UserError("Ratios need a stream of tasks, and this recipe has only a model: name a recipe with tasks.")
    model, train, tasks = config.model, config.train, config.stream.trained
    steps = sum(task.steps for task in tasks)
    scheduled = max(task.steps for task in tasks) if train.schedule == "per_task" else steps
    values: dict[str, float | None] = dict.fromkeys(MEANINGS)
    values["controller"] = config.control.period / steps
    values["warm-up"] = train.warmup_of(scheduled) / scheduled
    values["evaluations"] = tasks[0].steps / config.eval.every_steps
    if model.replay:
        chunk, tokens = model.replay_chunk_length, steps * train.tokens_per_step
        values["reservoir"] = model.replay_long_chunks * chunk / tokens
        values["recency buffer"] = model.replay_recent_chunks * chunk / tokens
        values["chunk"] = chunk / train.sequence_length
        if model.replay_share is not None:
            values["replayed"] = model.replay_share / (1 - model.replay_share)
        else:
            values["replayed"] = model.replay_batch_size * chunk / (train.batch_size * train.sequence_length)
    if isinstance(model, TRC2Config) and model.memory:
        sequences = train.batch_size * train.micro_batches
        values["slow heads"] = 1 / (1 - model.slow_heads_decay) / steps
        values["write threshold"] = 1 / (1 - model.write_threshold_decay) / steps
        values["memory reach"] = model.read_slots / (model.target_writes_per_sequence * sequences)
        values["keep target"] = model.target_writes_per_sequence / model.writes_per_sequence
        values["candidates"] = model.writes_per_sequence / train.sequence_length
    return values


def is_close(ours: float | None, paper: float | None) -> bool:
    """Whether a ratio is the paper's. A part that is switched off has nothing to compare."""
    return ours is None or paper is None or abs(ours / paper - 1) <= TOLERANCE


def ratio_rows(target: str, config: RunConfig) -> list[dict[str, object]]:
    """Each ratio of a run beside the paper's."""
    paper, reasons = ratios(load_recipe(PAPER)), REASONS.get(target, {})
    return [
        {
            "ratio": name, "meaning": MEANINGS[name], "value": value, "paper": paper[name],
            "close": is_close(value, paper[name]), "reason": reasons.get(name),
        }
        for name, value in ratios(config).items()
    ]  # fmt: skip


def ratio_table(target: str, config: RunConfig) -> Table:
    """The ratios as a table. A dash means that the run has no such part."""
    table = Table("ratio", target, "paper", "note", title=f"{target} as a scale model of {PAPER}")
    for row in ratio_rows(target, config):
        note = "" if row["close"] else f"differs: {row['reason'] or 'no reason is given'}"
        numbers = ("–" if value is None else f"{value:.3g}" for value in (row["value"], row["paper"]))
        table.add_row(str(row["meaning"]), *numbers, note)
    return table


if __name__ == "__main__":
    recipe = sys.argv[1] if len(sys.argv) > 1 else "lab_trc2"
    PlainConsole().print(ratio_table(recipe, load_recipe(recipe, sys.argv[2:])))
