"""Where a training pass spends its time: every subsystem run alone on the inputs it had inside the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trc2.backbones.shell import Backbone
from trc2.costs.benchmarks import Run, tokens_of
from trc2.nn.trunk import Trunk

# Attributes of a trunk and of its columns or blocks whose calls are timed, and the name of their group.
TIMED = {
    "attention": "attention",
    "experts": "experts",
    "thalamus": "thalamus",
    "layer5": "thalamus",
    "feedback": "memory gate",
    "mixer": "mixers",
    "feed_forward": "feed-forward",
}


def subsystem_runs(net: Backbone, rows: int, length: int) -> dict[str, Run]:
    """Forward and backward of each subsystem. Together they are a pass without norms, residual sums and packing."""
    trunk = net.trunk
    groups = _groups(trunk)
    calls = _capture([module for modules in groups.values() for module in modules], net, rows, length)
    runs = {
        name: _again([(module, call) for module in modules for call in calls.get(id(module), [])])
        for name, modules in groups.items()
    }
    memory = getattr(trunk, "hippocampus", None)
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
    """The modules whose calls are timed together. Those of a Hugging Face model lie deeper and are not timed."""
    groups: dict[str, list[nn.Module]] = {}
    for path, module in trunk.named_modules(remove_duplicate=False):
        group = TIMED.get(path.rpartition(".")[2])
        if group is not None and path.count(".") in (0, 2):  # `thalamus`, or `columns.0.attention`
            groups.setdefault(group, []).append(module)
    return groups


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
