"""Tiny baselines, and the comparison of one with its slow reference."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import tokens
from trc2.backbones.blocks import BaselineConfig
from trc2.backbones.shell import Backbone
from trc2.nn.segments import pack
from trc2.reference.baselines import Forward, objective


def tiny_baseline(kind: type[BaselineConfig], **changes: object) -> Any:
    """A baseline small enough for loops over tokens."""
    settings: dict[str, object] = {
        "vocab_size": 29,
        "d_model": 16,
        "num_layers": 2,
        "num_heads": 4,
        "d_ff": 12,
        "max_positions": 64,
        "replay_recent_chunks": 4,
        "replay_long_chunks": 6,
        "replay_chunk_length": 5,
        "replay_batch_size": 3,
    }
    return kind(**{**settings, **changes})


def excited(net: Backbone, seed: int = 0) -> Backbone:
    """Give every parameter a size at which all nonlinearities matter. Fresh weights of 0.02 hide most mistakes."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0.0, 0.4, generator=rng)
    return net


def compare_with_reference(net: Backbone, forward: Forward, rows: int = 2, length: int = 5) -> None:
    """Logits, balance, total loss and the gradient of every parameter in float64, with replay if the config has it."""
    config = net.config
    net = excited(net).double().train()
    x, y = tokens(config, rows, length), tokens(config, rows, length, seed=1)
    y[0, 0] = -100 if rows * length > 1 else y[0, 0]
    if net.replay is not None:
        net.replay.commit(tokens(config, 7, config.replay_chunk_length, seed=2).int())
    replayed = None if net.replay is None else net.replay.sample(0, 0)
    weights = dict(net.trunk.named_parameters())

    logits, aux = net(x, targets=y)
    expected = forward(x, weights)
    total = objective(forward, x, y, replayed, weights, config)
    torch.testing.assert_close(logits, expected.logits, atol=1e-11, rtol=1e-9)
    balance = config.lambda_load_balance * expected.balance
    torch.testing.assert_close(aux["loss_load_balance"], balance, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(aux["loss"], total, atol=1e-12, rtol=1e-10)

    names, parameters = list(weights), list(weights.values())
    fast = torch.autograd.grad(aux["loss"], parameters)
    slow = torch.autograd.grad(total, parameters, allow_unused=True)  # the slow code never touches an idle expert
    for name, ours, theirs in zip(names, fast, slow, strict=True):
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-8, msg=lambda m, n=name: f"{n}: {m}")


def compare_segments_with_passes_of_their_own(net: Backbone, *, is_padded: bool) -> None:
    """Replayed chunks and the batch do not see each other."""
    x, replayed = tokens(net.config, 2, 11), tokens(net.config, 3, 5, seed=2)
    valid = torch.ones(2, 11, dtype=torch.bool)
    valid[1, :4] = False
    mask = valid if is_padded else None
    alone, again = net.trunk(pack([x], mask)), net.trunk(pack([replayed]))
    joined = net.trunk(pack([x, replayed], mask))
    torch.testing.assert_close(joined.hidden, torch.cat((alone.hidden, again.hidden)), atol=1e-11, rtol=1e-10)
    for ours, expected in zip(joined.losses, alone.losses, strict=True):
        torch.testing.assert_close(ours.value, expected.value, atol=1e-12, rtol=1e-10)


def counted_flops(net: Backbone, rows: int, length: int) -> tuple[int, int]:
    """Torch's own count of a forward pass, and of it with its backward pass."""
    x, y = tokens(net.config, rows, length), tokens(net.config, rows, length, seed=1)
    mapping = {torch.ops.aten.convolution_backward: _grouped_backward}
    # The fused attention kernel is invisible to the counter. The plain one does the same products.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        _, aux = net(x, targets=y)
        forward = counter.get_total_flops()
        aux["loss"].backward()
    return forward, counter.get_total_flops()


def _grouped_backward(
    grad: list[int], x: list[int], weight: list[int], *_: object, out_shape: object = None, **__: object
) -> int:
    """torch's own formula forgets the groups: a depthwise kernel costs its forward product once per gradient."""
    per_gradient = 2 * grad[0] * grad[1] * grad[2] * grad[3] * weight[1] * weight[2] * weight[3]
    return 2 * per_gradient
