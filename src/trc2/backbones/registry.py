"""Every backbone by name: the module `trc2.backbones.NAME` builds the config whose `name` is NAME.

Backbones of other packages are looked up by their entry point, see `trc2.system.plugins`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

from trc2.backbones.shell import Backbone
from trc2.config import MODELS, BackboneConfig
from trc2.errors import UserError
from trc2.model.thalamus import ThalamicRouter
from trc2.nn.attention import CausalAttention
from trc2.nn.cost import Activations, Cost
from trc2.nn.norm import RMSNorm
from trc2.system.plugins import find, load


def module_of(config: BackboneConfig) -> Any:
    """The file of a backbone, ours or a plug-in's, with `build` and `cost`.

    `build(config, generator)` returns the network. All random numbers come from the generator.
    `cost(config, rows, length, slots=…, is_replay=…)` returns the FLOPs of one pass over rows × length tokens by
    subsystem. `slots` are filled memory slots.
    """
    if config.name in MODELS:
        return import_module(f"trc2.backbones.{config.name}")
    plugin = find("backbone", config.name)
    if plugin is None:
        raise UserError(f"There is no backbone '{config.name}' any more: install the package that brought it.")
    return load(plugin)


def build_model(config: BackboneConfig, generator: torch.Generator | None = None) -> Backbone:
    """The network a config describes, freshly initialised."""
    return module_of(config).build(config, generator)


def compile_parts(net: nn.Module) -> int:
    """Compile attention, router and norms in place and return their number. Names and states stay.

    Experts get another number of tokens in every step, and the loss is chunked by hand, so both stay as they are.
    """
    modules = [module for module in net.modules() if isinstance(module, CausalAttention | ThalamicRouter | RMSNorm)]
    for module in modules:
        module.compile()
    return len(modules)


def step_cost(config: BackboneConfig, rows: int, length: int, *, slots: int = 0, with_replay: bool) -> dict[str, Cost]:
    """FLOPs of one micro-batch by subsystem, replay being one of them. `slots` are filled memory slots."""
    cost = module_of(config).cost
    costs = cost(config, rows, length, slots=slots)
    if with_replay and config.replay:
        chunks, tokens, times = config.replay_batch_size, config.replay_chunk_length - 1, 1.0
        if config.replay_share is not None:
            chunks, times = 1, replayed_chunks(config, rows * length)
        costs["replay"] = sum(cost(config, chunks, tokens, slots=slots, is_replay=True).values(), Cost()) * times
    return costs


def replayed_chunks(config: BackboneConfig, tokens: int) -> float:
    """The average number of chunks replayed beside this many new tokens."""
    if config.replay_share is None:
        return float(config.replay_batch_size)
    return config.replay_share / (1.0 - config.replay_share) * tokens / (config.replay_chunk_length - 1)


def activations_of(config: BackboneConfig, length: int, *, on_cpu: bool) -> Activations:
    """Floats that a pass over rows of this length keeps for its backward pass. Optional in the file of a backbone."""
    count = getattr(module_of(config), "activations", None)
    if count is None:
        raise UserError(f"model={config.name} does not define its activations: plan one of our backbones.")
    return count(config, length, on_cpu=on_cpu)
