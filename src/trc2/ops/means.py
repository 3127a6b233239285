"""The mean over the earlier tokens of a row, at every token."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from trc2.ops.modes import with_gradient


class PastSums(NamedTuple):
    """Of every token: the sum over strictly earlier real tokens of its row, and how many these are."""

    sums: Float[Tensor, "B T R"]
    counts: Float[Tensor, "#B T 1"]
    total: Float[Tensor, "B R"]  # the sum over all real tokens of the row


def mean_of_earlier(z: Float[Tensor, "B T R"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B T R"]:
    """μ_t = Σ_{s<t} z_s / max(1, how many these are), over the real tokens of each row. `valid` None: all are real."""
    # The short form below counts all tokens and needs cumsum, of which torch has no deterministic version on CUDA.
    if valid is not None or z.is_cuda:
        return plain_mean_of_earlier(z, valid)
    return with_gradient(_WholeRows.apply, _without_gradient, z)


def plain_mean_of_earlier(
    z: Float[Tensor, "B T R"], valid: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, "B T R"]:
    """The same in torch operations: sums divided by counts."""
    earlier = sums_of_earlier(z, valid)
    return earlier.sums / earlier.counts.clamp_min(1.0)


def sums_of_earlier(z: Float[Tensor, "B T R"], valid: Bool[Tensor, "B T"] | None = None) -> PastSums:
    """Sums and counts of the mean. While decoding, those of the tokens before these are added to them."""
    if valid is None:
        counts = torch.arange(z.shape[1], device=z.device, dtype=z.dtype)[None, :, None]
    else:
        z = z * valid.unsqueeze(-1)
        counts = (valid.cumsum(1) - valid.long()).unsqueeze(-1).to(z.dtype)
    sums = _running_sum(z)
    return PastSums(sums - z, counts, sums[:, -1])


class _WholeRows(torch.autograd.Function):
    """For rows without padding: fewer small operations than the general form, forward and backward."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        reciprocal = _one_over_earlier(z)
        ctx.save_for_backward(reciprocal)
        return _mean_of_sums(z, reciprocal)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """∂z_s = Σ_{t>s} ∂μ_t / max(1, t − 1): the sum over the row less the part up to s."""
        (reciprocal,) = ctx.saved_tensors
        running = (grad * reciprocal).cumsum(dim=1)
        return running[:, -1:] - running


def _without_gradient(z: Float[Tensor, "B T R"]) -> Float[Tensor, "B T R"]:
    return _mean_of_sums(z, _one_over_earlier(z))


def _mean_of_sums(z: Float[Tensor, "B T R"], reciprocal: Float[Tensor, "T 1"]) -> Float[Tensor, "B T R"]:
    return z.cumsum(dim=1).sub_(z).mul_(reciprocal)


def _one_over_earlier(z: Float[Tensor, "B T R"]) -> Float[Tensor, "T 1"]:
    """1 / max(1, t − 1): the weight of an earlier token in the mean at token t."""
    return torch.arange(z.shape[1], dtype=z.dtype, device=z.device).clamp_min_(1.0).reciprocal_().view(-1, 1)


def _running_sum(z: Float[Tensor, "B T R"]) -> Float[Tensor, "B T R"]:
    """cumsum over tokens. As a product with a triangle where torch has no deterministic cumsum."""
    if z.is_cuda and torch.are_deterministic_algorithms_enabled():
        length = z.shape[1]
        return torch.ones(length, length, dtype=z.dtype, device=z.device).tril() @ z
    return z.cumsum(dim=1)
