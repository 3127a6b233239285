"""Dimensionless ratios of a recipe: what a small run must share with the paper's to be a scale model of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table

from trc2.config import RunConfig, TRC2Config, load_recipe
from trc2.errors import UserError

PAPER = "paper_d768_l4"
TOLERANCE = 0.2
"""A ratio within this much of the paper's counts as the paper's."""


@dataclass(frozen=True)
class Ratio:
    """One quantity of a run that does not depend on its size; `None` where the run has no such part."""

    name: str
    meaning: str
    of: Callable[[RunConfig], float | None]


def _steps(config: RunConfig) -> int:
    assert config.stream is not None
    return sum(task.steps for task in config.stream.trained)


def _tokens(config: RunConfig) -> int:
    return _steps(config) * config.train.tokens_per_step


def _memory(config: RunConfig) -> TRC2Config | None:
    return config.model if isinstance(config.model, TRC2Config) and config.model.memory else None


def _slow_heads(config: RunConfig) -> float | None:
    model = _memory(config)
    return None if model is None else 1 / (1 - model.slow_heads_decay) / _steps(config)


def _threshold(config: RunConfig) -> float | None:
    model = _memory(config)
    return None if model is None else 1 / (1 - model.write_threshold_decay) / _steps(config)


def _reach(config: RunConfig) -> float | None:
    model = _memory(config)
    if model is None:
        return None
    sequences = config.train.batch_size * config.train.micro_batches
    return min(model.memory_slots, model.memory_read_window) / (model.target_writes_per_sequence * sequences)


def _keep_target(config: RunConfig) -> float | None:
    model = _memory(config)
    return None if model is None else model.target_writes_per_sequence / model.writes_per_sequence


def _candidates(config: RunConfig) -> float | None:
    model = _memory(config)
    return None if model is None else model.writes_per_sequence / config.train.sequence_length


def _warmup(config: RunConfig) -> float:
    assert config.stream is not None
    spans = [task.steps for task in config.stream.trained] if config.train.schedule == "per_task" else [_steps(config)]
    return config.train.warmup_of(max(spans)) / max(spans)


def _stored(chunks: Callable[[RunConfig], int]) -> Callable[[RunConfig], float | None]:
    def share(config: RunConfig) -> float | None:
        return chunks(config) * config.model.replay_chunk_length / _tokens(config) if config.model.replay else None

    return share


def _replayed(config: RunConfig) -> float | None:
    model, new = config.model, config.train.batch_size * config.train.sequence_length
    if not model.replay:
        return None
    if model.replay_share is not None:
        return model.replay_share / (1 - model.replay_share)
    return model.replay_batch_size * model.replay_chunk_length / new


def _evaluations(config: RunConfig) -> float:
    assert config.stream is not None
    return config.stream.trained[0].steps / config.eval.every_steps


RATIOS = (
    Ratio("slow heads", "horizon of the slow heads ÷ steps of the stream", _slow_heads),
    Ratio("write threshold", "horizon of the write threshold ÷ steps of the stream", _threshold),
    Ratio("controller", "steps between two looks ÷ steps of the stream", lambda c: c.control.period / _steps(c)),
    Ratio("warm-up", "steps of warm-up ÷ steps of its schedule", _warmup),
    Ratio("reservoir", "tokens in the reservoir ÷ tokens of the stream", _stored(lambda c: c.model.replay_long_chunks)),
    Ratio(
        "recency buffer", "tokens in the recency buffer ÷ tokens of the stream",
        _stored(lambda c: c.model.replay_recent_chunks),
    ),
    Ratio(
        "chunk", "tokens of a stored chunk ÷ tokens of a sequence",
        lambda c: c.model.replay_chunk_length / c.train.sequence_length if c.model.replay else None,
    ),
    Ratio("replayed", "replayed tokens ÷ new tokens, before the controller acts", _replayed),
    Ratio("memory reach", "steps until a written event can no longer be read, at the target rate", _reach),
    Ratio("keep target", "writes aimed at ÷ candidates", _keep_target),
    Ratio("candidates", "candidates of a sequence ÷ its tokens", _candidates),
    Ratio("evaluations", "evaluations of the first task during its training", _evaluations),
)  # fmt: skip

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
    """Every ratio of a run by its name."""
    if config.stream is None:
        raise UserError("Ratios need a stream of tasks, and this recipe has only a model: name a recipe with tasks.")
    return {ratio.name: ratio.of(config) for ratio in RATIOS}


def is_close(ours: float | None, model_files: float | None) -> bool:
    """Whether a ratio is the paper's; a part that is switched off has nothing to compare."""
    return ours is None or model_files is None or abs(ours / model_files - 1) <= TOLERANCE


def ratio_rows(target: str, config: RunConfig) -> list[dict[str, object]]:
    """Each ratio of a run beside the paper's."""
    model_files, reasons = ratios(load_recipe(PAPER)), REASONS.get(target, {})
    return [
        {
            "ratio": ratio.name, "meaning": ratio.meaning, "value": value, "paper": model_files[ratio.name],
            "close": is_close(value, model_files[ratio.name]), "reason": reasons.get(ratio.name),
        }
        for ratio, value in zip(RATIOS, ratios(config).values(), strict=True)
    ]  # fmt: skip


def ratio_table(target: str, config: RunConfig) -> Table:
    """The ratios as a table; a dash means that the run has no such part."""
    table = Table("ratio", target, "paper", "note", title=f"{target} as a scale model of {PAPER}")
    for row in ratio_rows(target, config):
        note = "" if row["close"] else f"differs: {row['reason'] or 'no reason is given'}"
        table.add_row(str(row["meaning"]), _number(row["value"]), _number(row["paper"]), note)
    return table


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "–"
