"""The choice between a gradient of our own and the plain formula. Only this file reads the gradient mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def with_gradient(ours: Callable[..., T], plain: Callable[..., T], *args: Any) -> T:
    """`ours(*args)` while torch records gradients, `plain(*args)` under `torch.no_grad()`.

    `ours` is usually the `apply` of a `torch.autograd.Function`. Such a function prepares its backward pass: it saves
    tensors, or already computes gradients. It cannot know that no backward pass will follow, because torch reports an
    input with `requires_grad` as in need of a gradient even under `torch.no_grad()`. The plain version saves nothing.
    """
    return ours(*args) if torch.is_grad_enabled() else plain(*args)
