"""How far one model's predictions are from another's, without a (tokens × vocabulary) tensor that outlives a chunk."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trc2.nn.head import Head
from trc2.ops.dtypes import at_least_float32
from trc2.ops.head_loss import chunk_rows


def divergence_sum(
    head: Head,
    hidden: Float[Tensor, "P D"],
    teacher_head: Head,
    teacher_hidden: Float[Tensor, "P D"],
    temperature: float = 1.0,
) -> Float[Tensor, ""]:
    """Σ over positions of τ² KL(teacher ‖ student), both softened by τ; gradients reach the student only.

    τ² keeps the size of the gradient as τ changes. Each chunk of logits is formed again in the backward pass, unless
    there is only one.
    """

    def of_chunk(states: Tensor, teacher_states: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = F.log_softmax(at_least_float32(teacher_head.logits(teacher_states)) / temperature, dim=-1)
        found = F.log_softmax(at_least_float32(head.logits(states)) / temperature, dim=-1)
        return temperature**2 * F.kl_div(found, wanted, reduction="sum", log_target=True)

    rows = chunk_rows(head.weight)
    if hidden.shape[0] <= rows:
        return of_chunk(hidden, teacher_hidden)
    pairs = zip(hidden.split(rows), teacher_hidden.split(rows), strict=True)
    return torch.stack([checkpoint(of_chunk, *pair, use_reentrant=False) for pair in pairs]).sum()
