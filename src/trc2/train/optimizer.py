"""AdamW with decay on matrices only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trc2.config import TrainConfig


def build_optimizer(model: nn.Module, config: TrainConfig, without_reader: Iterable[str] = ()) -> torch.optim.AdamW:
    """Weight decay on tensors of two or more dimensions, the embedding included, unless they say `no_decay`.

    Tensors that no loss can reach (`without_reader`) get no gradient; they are left out, so that decay cannot
    move them either.
    """
    idle = set(without_reader)
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad and name not in idle]
    decayed = [p for _, p in trainable if p.ndim >= 2 and not getattr(p, "no_decay", False)]
    others = [p for _, p in trainable if p.ndim < 2 or getattr(p, "no_decay", False)]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
