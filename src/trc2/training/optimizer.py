"""AdamW with decay on matrices only, in float32 or with averages of eight bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trc2.backbones.shell import Backbone
from trc2.config import TrainConfig
from trc2.distributed.sharded import is_divided
from trc2.errors import UserError
from trc2.system.precision import import_bitsandbytes


def build_optimizer(model: Backbone, config: TrainConfig) -> torch.optim.Optimizer:
    """Weight decay on tensors of two or more dimensions, the embedding included, but not on those that the model
    names in `tensors_without_decay`.

    Tensors that no loss can reach (`unused_parameters`) get no gradient. They are left out, so that decay cannot
    move them either.
    """
    idle, spared = set(model.unused_parameters()), set(model.tensors_without_decay())
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad and name not in idle]
    decayed = [p for name, p in trainable if p.ndim >= 2 and name not in spared]
    others = [p for name, p in trainable if p.ndim < 2 or name in spared]
    groups = [*_groups(decayed, config.weight_decay, first=0), *_groups(others, 0.0, first=len(decayed))]
    if config.optimizer == "adamw_8bit":
        if any(is_divided(p) for _, p in trainable):
            raise UserError("train.optimizer=adamw_8bit does not suit output.parallel=fsdp: use adamw, or ddp.")
        adam = import_bitsandbytes("train.optimizer=adamw_8bit").optim.AdamW8bit
        return adam(groups, lr=config.learning_rate, betas=config.betas)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def _groups(parameters: list[nn.Parameter], weight_decay: float, first: int) -> list[dict[str, Any]]:
    """One group, or two if some tensors are divided over ranks: torch cannot update both kinds together.

    `numbers` are the indices of the tensors when nothing is divided. Checkpoints name the tensors by them.
    """
    numbered = list(enumerate(parameters, start=first))
    whole = [(number, p) for number, p in numbered if not is_divided(p)]
    divided = [(number, p) for number, p in numbered if is_divided(p)]
    return [
        {"params": [p for _, p in pairs], "weight_decay": weight_decay, "numbers": [number for number, _ in pairs]}
        for pairs in ([whole, divided] if divided else [whole])
    ]


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
