"""Short causal convolutions with one kernel per channel, over rows that may contain padding."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def depthwise(
    x: Float[Tensor, "B S I"], weight: Float[Tensor, "I W"], bias: Float[Tensor, " I"] | None = None
) -> Float[Tensor, "B T I"]:
    """y_t = bias + Σ_k w_k ⊙ x_{t+k}: of the S = T + W − 1 tokens, the first W − 1 have no output.

    Computed as an image of height one with channels last: torch has a fast kernel for that, but not for its
    one-dimensional convolution.
    """
    image = x.transpose(1, 2).unsqueeze(2)
    return F.conv2d(image, weight[:, None, None], bias, groups=x.shape[2]).squeeze(2).transpose(1, 2)


def real_first(valid: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The order that moves a row's padding behind its real tokens, where no causal map reads it."""
    return (~valid).to(torch.uint8).argsort(dim=1, stable=True)


def in_order(x: Float[Tensor, "B T I"], order: Int[Tensor, "B S"]) -> Float[Tensor, "B S I"]:
    """The tokens of every row in another order."""
    return torch.take_along_dim(x, order.unsqueeze(-1), dim=1)


def last_real(seen: Float[Tensor, "B S I"], window: int, valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B W I"]:
    """The last `window` real tokens, where S = window + T and padding comes last."""
    if valid is None:
        return seen[:, seen.shape[1] - window :]
    first = valid.sum(dim=1, keepdim=True)
    return in_order(seen, first + torch.arange(window, device=seen.device))
