"""Matrix products of the parts that baselines share, counted like `trc2.model.flops` counts TRC²'s."""

from __future__ import annotations

from trc2.config.baselines import BaselineConfig
from trc2.nn.cost import Cost, learned


def attention_cost(config: BaselineConfig, rows: int, length: int) -> Cost:
    """Four square maps and the full T×T of scores and mixing."""
    d = config.d_model
    return learned(8.0 * rows * length * d * d + 4.0 * rows * length * length * d)


def swiglu_cost(d_model: int, d_ff: int, tokens: int) -> Cost:
    return learned(6.0 * tokens * d_model * d_ff)


def baseline_cost(config: BaselineConfig, rows: int, length: int, block: Cost) -> dict[str, Cost]:
    """A whole pass, from the cost of one block."""
    head = learned(2.0 * rows * length * config.d_model * config.vocab_size)
    return {"embedding and head": head, "blocks": block * config.num_layers}
