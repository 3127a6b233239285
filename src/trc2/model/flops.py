"""Floating-point operations of TRC²'s matrix products, by formula. A test holds them to torch's own counter."""

from __future__ import annotations

from trc2.config import TRC2Config
from trc2.nn.cost import Cost, frozen, input_fixed, learned


def pass_cost(
    config: TRC2Config, rows: int, length: int, *, slots: int, is_batch: bool, modulated: bool = True
) -> dict[str, Cost]:
    """Cost of running rows × length tokens through the network with `slots` filled memory slots.

    `is_batch` is True for the training batch, whose states are appraised, and False for replayed tokens.
    `modulated` is False for replay through the cortex alone.
    """
    d, heads, groups, width = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
    tokens = rows * length
    square = 2.0 * tokens * d * d
    reads = config.has_readout and slots > 0 and modulated
    columns = Cost()
    for index in range(config.num_columns):
        is_shifted = (
            config.has_query_shift(index)
            and modulated
            and ((config.has_router and index > 0) or (reads and index >= config.num_early_columns))
        )
        experts = config.num_active_experts + config.num_shared_experts
        columns += learned(2.0 * tokens * d * (heads + 2 * groups) * width)
        columns += learned(square) * (1 + is_shifted)
        columns += learned(4.0 * rows * length * length * d)
        columns += learned(2.0 * tokens * d * config.num_experts)
        columns += learned(6.0 * tokens * d * config.expert_dim) * experts
        if config.has_router and index + 1 < config.num_columns and modulated:
            columns += learned(square)  # L5

    thalamus = Cost()
    if config.has_router and modulated:
        r = config.rank
        thalamus = learned(2.0 * tokens * (2 * d * r + 3 * r * r + r)) * (config.num_columns - 1)

    hippocampus = Cost()
    if reads:
        window = min(slots, config.read_slots)
        hippocampus += learned(2.0 * tokens * d * config.memory_key_dim)
        hippocampus += frozen(2.0 * tokens * window * config.memory_key_dim)
        hippocampus += learned(square)  # output map
        hippocampus += input_fixed(square) + learned(square) * 2  # gate (2d × d, H is fixed) and map to the thalamus
    if config.memory and is_batch:
        transitions = rows * (length - 1)
        pair = 2.0 * transitions * d * d
        hippocampus += input_fixed(pair) + learned(pair)  # fast predictor
        hippocampus += frozen(pair) * 2  # slow predictor
        hippocampus += input_fixed(2.0 * tokens * d) + frozen(2.0 * tokens * d)  # value heads
    return {
        "embedding and head": learned(2.0 * tokens * d * config.vocab_size),
        "columns": columns,
        "thalamus": thalamus,
        "hippocampus": hippocampus,
    }
