"""Where a training pass spends its time: every subsystem run alone on the inputs it had inside the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trc2.backbones.blocks import BlockTrunk
from trc2.backbones.hf import HFTrunk
from trc2.backbones.shell import Backbone
from trc2.costs.benchmarks import Run, tokens_of
from trc2.model.cortex import Cortex
from trc2.nn.trunk import Trunk


def subsystem_runs(net: Backbone, rows: int, length: int) -> dict[str, Run]:
    """Forward and backward of each subsystem; together they are a pass but for norms, residual sums and packing."""
    trunk = net.trunk
    groups = _groups(trunk)
    calls = _capture([module for modules in groups.values() for module in modules], net, rows, length)
    runs = {
        name: _again([(module, call) for module in modules for call in calls.get(id(module), [])])
        for name, modules in groups.items()
    }
    memory = trunk.hippocampus if isinstance(trunk, Cortex) else None
    hidden = torch.randn(rows * length, net.config.d_model)
    if memory is not None:
        if memory.has_readout:
            runs["memory read"] = _again([(memory.recall, (hidden,))])
        runs["memory proposal"] = lambda: memory.propose(hidden.view(rows, length, -1), None)
    _, targets = tokens_of(net.config, rows, length)
    head = trunk.head
    runs["head and loss"] = _again([(lambda h: head.loss_sum(h, targets.reshape(-1)), (hidden,))])
    runs["flush"] = _flush(net, rows, length)
    runs["slow heads"] = net.after_step
    return runs


def _groups(trunk: Trunk) -> dict[str, list[nn.Module]]:
    """The modules whose calls are timed together."""
    if isinstance(trunk, Cortex):
        groups: dict[str, list[nn.Module]] = {
            "attention": [column.attention for column in trunk.columns],
            "experts": [column.experts for column in trunk.columns],
        }
        if trunk.thalamus is not None:
            reports = [column.layer5 for column in trunk.columns[:-1] if column.layer5 is not None]
            groups["thalamus"] = [trunk.thalamus, *reports]
        if trunk.feedback is not None:
            groups["memory gate"] = [trunk.feedback]
        return groups
    if isinstance(trunk, HFTrunk):
        return {}
    if not isinstance(trunk, BlockTrunk):
        raise TypeError(f"{type(trunk).__name__} has no parts to time")
    return {
        "mixers": [block.get_submodule("mixer") for block in trunk.blocks],
        "feed-forward": [block.get_submodule("feed_forward") for block in trunk.blocks],
    }


def _flush(net: Backbone, rows: int, length: int) -> Run:
    """The end of a step: what one micro-batch queued and staged is committed, over and over."""
    x, y = tokens_of(net.config, rows, length)
    net(x, y, return_logits=False)
    queued = list(net.pending)
    net.discard()

    def run() -> None:
        net.pending.extend(queued)
        if net.replay is not None:
            net.replay.stage(x)
        net.commit()

    return run


def _capture(modules: Iterable[nn.Module], net: Backbone, rows: int, length: int) -> dict[int, list[tuple[Any, ...]]]:
    """The arguments of every call of the modules within one learning pass."""
    calls: dict[int, list[tuple[Any, ...]]] = {}

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        calls.setdefault(id(module), []).append(args)

    handles = [module.register_forward_pre_hook(note) for module in {id(m): m for m in modules}.values()]
    x, y = tokens_of(net.config, rows, length)
    net(x, y, return_logits=False)
    net.discard()
    for handle in handles:
        handle.remove()
    return calls


def _again(calls: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> Run:
    """Run the calls forward and backward, on inputs of their own."""
    fixed = [(function, tuple(_leaf(arg) for arg in args)) for function, args in calls]

    def run() -> None:
        for function, args in fixed:
            out = function(*args)
            out = out[0] if isinstance(out, tuple) else out
            out.backward(torch.ones_like(out))

    return run


def _leaf(argument: Any) -> Any:
    if isinstance(argument, Tensor) and argument.is_floating_point():
        return argument.detach().clone().requires_grad_()
    return argument
