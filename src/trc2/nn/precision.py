"""The float32 islands of mixed precision."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half types are widened to float32; float32 and float64 stay what they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
