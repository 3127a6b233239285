"""The float32 islands of mixed precision."""

from __future__ import annotations

import torch
from torch import Tensor


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
