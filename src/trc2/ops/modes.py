"""What torch's modes ask of an operator: a gradient or none, and the number format of mixed precision.

Only this file reads the gradient mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def with_gradient(ours: Callable[..., T], plain: Callable[..., T], *args: Any) -> T:
    """`ours(*args)` while torch records gradients, `plain(*args)` under `torch.no_grad()`.

    `ours` is usually the `apply` of a `torch.autograd.Function`. Such a function prepares its backward pass: it saves
    tensors, or already computes gradients. It cannot know that no backward pass will follow, because torch reports an
    input with `requires_grad` as in need of a gradient even under `torch.no_grad()`. The plain version saves nothing.
    """
    return ours(*args) if torch.is_grad_enabled() else plain(*args)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half types are widened to float32. Float32 and float64 stay what they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The type a matrix product of this tensor is computed in: autocast's, where that is on.

    float64 is never narrowed by autocast.
    """
    device = tensor.device.type
    casts = torch.is_autocast_enabled(device) and tensor.dtype != torch.float64
    return torch.get_autocast_dtype(device) if casts else tensor.dtype
