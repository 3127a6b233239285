"""AdamW with decay on matrices only."""

from __future__ import annotations

import torch

from trc2.backbones.shell import Backbone
from trc2.config import TrainConfig


def build_optimizer(model: Backbone, config: TrainConfig) -> torch.optim.AdamW:
    """Weight decay on tensors of two or more dimensions, the embedding included, but not on those that the model
    names in `tensors_without_decay`.

    Tensors that no loss can reach (`tensors_without_reader`) get no gradient; they are left out, so that decay cannot
    move them either.
    """
    idle, spared = set(model.tensors_without_reader()), set(model.tensors_without_decay())
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad and name not in idle]
    decayed = [p for name, p in trainable if p.ndim >= 2 and name not in spared]
    others = [p for name, p in trainable if p.ndim < 2 or name in spared]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
