"""The number of steps with which a run costs as much as its reference."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trc2.backbones.registry import replayed_chunks, step_cost
from trc2.config import RunConfig, load_recipe
from trc2.config.train import TrainConfig
from trc2.errors import UserError
from trc2.nn.cost import Cost


@dataclass(frozen=True)
class Budget:
    """The quantity by which runs are matched, and the factor by which the steps of the recipe are scaled."""

    match: str
    reference: str | None
    scale: float
    tokens_per_step: int
    replayed_tokens_per_step: int
    training_flops_per_step: float

    def describe(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}


def budget_of(config: RunConfig) -> Budget:
    """The run's budget, with the initial replay settings and a full memory."""
    train = config.train
    replays = config.model.replay and config.control.mode != "off"
    chunks = replayed_chunks(config.model, train.batch_size * train.sequence_length) if replays else 0.0
    replayed = round(chunks * (config.model.replay_chunk_length - 1) * train.micro_batches)
    replayed += config.strategy.replayed_tokens(config.model, train)
    flops = _flops_of_step(config, train)
    scale = 1.0
    if config.budget.match == "tokens":
        scale = train.tokens_per_step / (train.tokens_per_step + replayed)
    elif config.budget.match == "flops":
        if config.budget.reference is None:
            raise UserError("budget.match=flops needs a budget.reference: name the recipe whose FLOPs are the budget.")
        scale = _flops_of_step(load_recipe(config.budget.reference), train) / flops
    return Budget(config.budget.match, config.budget.reference, scale, train.tokens_per_step, replayed, flops)


TOLERANCE = 1.05


def equal_budgets(a: Budget, b: Budget) -> bool:
    """Whether the steps of two runs are the same amount of work, by one of three measures.

    The measures are new tokens, all tokens with replayed ones (within 5 %), and FLOPs with a teacher's passes (within
    5 %). The first does not charge for replayed tokens. The other two do.
    """
    tokens = [budget.tokens_per_step + budget.replayed_tokens_per_step for budget in (a, b)]
    flops = [budget.training_flops_per_step for budget in (a, b)]
    return a.tokens_per_step == b.tokens_per_step or any(max(pair) <= TOLERANCE * min(pair) for pair in (tokens, flops))


def training_flops(config: RunConfig, train: TrainConfig, slots: int) -> float:
    """FLOPs of a micro-batch of this run with the batches of `train`. `slots` are filled memory slots.

    They include replay and a strategy's own passes: a teacher's, or passes over old text that it draws itself.
    """
    model, rows, length = config.model, train.batch_size, train.sequence_length
    tokens, replays = rows * length, model.replay and config.control.mode != "off"
    replayed = replayed_chunks(model, tokens) * (model.replay_chunk_length - 1) if replays else 0.0
    alone = sum(step_cost(model, rows, length, slots=model.read_slots, with_replay=False).values(), Cost())
    drawn = config.strategy.replayed_tokens(model, train) / train.micro_batches
    own = (config.strategy.forward_tokens(tokens, replayed) * alone.forward + drawn * alone.training) / tokens
    return sum(step_cost(model, rows, length, slots=slots, with_replay=replays).values(), Cost()).training + own


def _flops_of_step(config: RunConfig, train: TrainConfig) -> float:
    return training_flops(config, train, config.model.read_slots) * train.micro_batches
