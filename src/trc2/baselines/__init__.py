"""Every backbone by name: TRC² and the seven the paper compares with, one file each, in one shell."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trc2.config import BackboneConfig

if TYPE_CHECKING:
    import torch

    from trc2.model.backbone import Backbone
    from trc2.model.flops import Cost

# Each module has build(config, generator) and cost(config, rows, length); imported when first asked for.
MODULES = {
    "transformer": "trc2.baselines.transformer",
    "moe": "trc2.baselines.moe",
    "mamba": "trc2.baselines.mamba",
    "deepseek_moe": "trc2.baselines.deepseek_moe",
    "blk_attn_res": "trc2.baselines.blk_attn_res",
    "falcon": "trc2.baselines.falcon",
    "lora_drs": "trc2.baselines.lora_drs",
}


def build_model(config: Any, generator: torch.Generator | None = None) -> Backbone:
    """The network a config describes, freshly initialised."""
    if config.name == "trc2":
        from trc2.model.net import CortexNet

        return CortexNet(config, generator)
    net: Backbone = import_module(MODULES[config.name]).build(config, generator)
    return net


def step_cost(config: BackboneConfig, rows: int, length: int, *, slots: int = 0, with_replay: bool) -> dict[str, Cost]:
    """FLOPs of one micro-batch by subsystem; replay, if it runs, is one of its own. `slots` are filled memory slots."""
    from trc2.model import flops

    if config.name == "trc2":
        return flops.step_cost(config, rows, length, slots=slots, with_replay=with_replay)  # type: ignore[arg-type]
    module = import_module(MODULES[config.name])
    costs: dict[str, Cost] = module.cost(config, rows, length)
    if with_replay and config.replay:
        again = module.cost(config, config.replay_batch_size, config.replay_chunk_length - 1)
        costs["replay"] = sum(again.values(), flops.Cost())
    return costs
