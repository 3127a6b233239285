"""Hidden states and embeddings of a network, read and replaced from outside, without code in the backbones.

Transformers asks for the state that enters every layer, and lets callers bring embeddings of their own. Both are
hooks on the modules that `Trunk.layers` and `Trunk.embedding` name. They are gone when the forward pass is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trc2.backbones.shell import Backbone
from trc2.errors import UserError
from trc2.nn.segments import Packed, rejoin
from trc2.nn.trunk import TrunkOutput


@contextlib.contextmanager
def record_hidden_states(net: Backbone, is_wanted: bool) -> Iterator[list[Tensor]]:
    """The states of the batch, each (B, T, D): what enters every layer, and last what the head gets.

    They are links of the computation, not copies beside it: a gradient that is retained on one arrives there.
    """
    states: list[Tensor] = []
    if not is_wanted:
        yield states
        return
    layers = net.trunk.layers()
    if not layers:
        raise UserError(f"{type(net.trunk).__name__} names no layers: leave output_hidden_states out.")
    packed: list[Packed] = []

    def keep(hidden: Tensor) -> Tensor:
        main = packed[0].segments[0]
        states.append(main.of(hidden[: main.stop]))
        replayed = hidden[main.stop :]
        return rejoin([states[-1]]) if not len(replayed) else torch.cat((rejoin([states[-1]]), replayed))

    def before_trunk(_module: nn.Module, args: tuple[Packed, ...]) -> None:
        packed.append(args[0])

    def before_layer(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return keep(args[0]), *args[1:]

    def after_trunk(_module: nn.Module, _args: tuple[Packed, ...], out: TrunkOutput) -> TrunkOutput:
        return replace(out, hidden=keep(out.hidden))

    handles = [net.trunk.register_forward_pre_hook(before_trunk), net.trunk.register_forward_hook(after_trunk)]
    handles += [layer.register_forward_pre_hook(before_layer) for layer in layers]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def replace_embeddings(net: Backbone, embeddings: Tensor | None) -> Iterator[None]:
    """Run with these embeddings (B, T, D) in place of those of the token ids."""
    if embeddings is None:
        yield
        return
    handle = net.get_input_embeddings().register_forward_hook(lambda _module, _args, _out: embeddings.flatten(0, 1))
    try:
        yield
    finally:
        handle.remove()


def placeholder_ids(net: Backbone, embeddings: Tensor) -> Tensor:
    """Token ids of the shape (B, T) of embeddings. Their values are not read."""
    if embeddings.ndim != 3 or embeddings.shape[-1] != net.config.d_model:
        raise UserError(
            f"inputs_embeds has shape {tuple(embeddings.shape)}: give (rows, tokens, {net.config.d_model})."
        )
    return torch.zeros(embeddings.shape[:2], dtype=torch.int64, device=embeddings.device)
