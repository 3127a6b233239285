"""Checks of what comes into a network from outside. Each refusal is a UserError of one sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from trc2.config import BackboneConfig
from trc2.errors import UserError
from trc2.ops.head_loss import IGNORE_INDEX


def check_input(
    config: BackboneConfig, x: Tensor, targets: Tensor | None = None, valid: Tensor | None = None, *, earlier: int = 0
) -> None:
    """Token ids (B, T), targets and mask of the same shape. `earlier` tokens of the rows were run before."""
    if x.ndim != 2 or x.dtype != torch.int64:
        raise UserError(f"x has shape {tuple(x.shape)} and type {x.dtype}: give token ids as int64 of shape (B, T).")
    if targets is not None and targets.dtype != torch.int64:
        raise UserError(f"targets has type {targets.dtype}: give token ids as int64.")
    if x.numel() == 0:
        raise UserError(f"x has shape {tuple(x.shape)}, an empty batch: give at least one sequence of one token.")
    if earlier + x.shape[1] > config.max_positions:
        raise UserError(
            f"x has {earlier + x.shape[1]} tokens per sequence, more than max_positions={config.max_positions}: "
            "shorten the sequences or build the model with more positions."
        )
    _check_ids("x", x, config.vocab_size)
    for name, other in (("targets", targets), ("valid", valid)):
        if other is not None and other.shape != x.shape:
            raise UserError(f"{name} has shape {tuple(other.shape)}: it must be {tuple(x.shape)}, like x.")
    if targets is not None:
        _check_ids("targets", targets, config.vocab_size, ignored=IGNORE_INDEX)


def check_chunk_fits(config: BackboneConfig, length: int) -> None:
    """A replay chunk longer than the sequences would never be stored."""
    if config.replay and config.replay_chunk_length > length:
        raise UserError(
            f"replay_chunk_length={config.replay_chunk_length} is longer than the {length} tokens of a "
            f"sequence, so no chunk could be stored: choose at most {length}, or replay=False."
        )


def _check_ids(name: str, ids: Tensor, vocab_size: int, ignored: int | None = None) -> None:
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return  # looking would wait for the device in every step, or break the graph
    low, high = int(ids.min()), int(ids.max())
    if ignored is not None and low == ignored:
        low = int(ids.masked_fill(ids == ignored, 0).min())
    if low < 0 or high >= vocab_size:
        wrong = high if high >= vocab_size else low
        raise UserError(
            f"{name} contains token id {wrong}, but vocab_size={vocab_size}: ids must be 0 … {vocab_size - 1}, "
            "so use the tokenizer the model was built for."
        )
