"""Causal grouped-query attention whose queries can be shifted by a modulatory signal."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from trc2.nn.decoding import KeyValues
from trc2.nn.init import ResidualBranch
from trc2.nn.segments import Segment, Step, rejoin
from trc2.ops.add_leading import add_to_leading
from trc2.ops.rotate import Rotation, rotate
from trc2.ops.staircase import staircase_attention, suits
from trc2.ops.zero_gradient import anchor


class CausalAttention(ResidualBranch):
    """Q = U W_Q + Z W_Q^thal, K = U W_K, V = U W_V; rotary; softmax(QKᵀ/√K + causal) V; output map.

    The shift Z changes queries only, before rotation, and may cover only the leading tokens.
    W_Q, W_K and W_V are rows of one matrix: one product.
    """

    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int, *, has_query_shift: bool) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = d_model // num_heads
        self.qkv = nn.Linear(d_model, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=False)
        self.query_shift = nn.Linear(d_model, d_model, bias=False) if has_query_shift else None
        self.output = nn.Linear(d_model, d_model, bias=False)

    def forward(
        self,
        u: Float[Tensor, "P D"],
        shift: Float[Tensor, "Q D"] | None,
        rotation: Rotation | None,
        segments: tuple[Segment, ...],
        past: KeyValues | None = None,
    ) -> Float[Tensor, "P D"]:
        """`past` holds the keys and values of tokens run before, while decoding."""
        qkv = self.qkv(u)
        if self.query_shift is not None:
            weight = self.query_shift.weight
            qkv = anchor(qkv, weight) if shift is None else add_to_leading(qkv, self.query_shift(shift))
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        qk, v = heads.split((self.num_heads + self.num_kv_heads, self.num_kv_heads), dim=1)
        if rotation is not None:
            qk = rotate(qk, rotation)  # queries and keys together: they turn by the same angles
        q, k = qk.split((self.num_heads, self.num_kv_heads), dim=1)
        mixed = [mix(segment.of(q), segment.of(k), segment.of(v), segment, past) for segment in segments]
        return self.output(rejoin(mixed).flatten(-2))

    def residual_outputs(self) -> tuple[nn.Linear]:
        return (self.output,)


def mix(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T G K"],
    segment: Segment,
    past: KeyValues | None = None,
) -> Float[Tensor, "B T H K"]:
    """Attention of a segment to itself and, while decoding, to the tokens before it."""
    if past is not None:
        k, v = past.append(k, v)
    if isinstance(segment, Step):
        return attend_one(q, k, v, segment.seen)
    return attend(q, k, v, segment.valid_so_far())


def attend(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B S G K"],
    v: Float[Tensor, "B S G K"],
    valid: Bool[Tensor, "B S"] | None,
) -> Float[Tensor, "B T H K"]:
    """Causal attention of the last T of S tokens of each row. Padding is never attended to."""
    if valid is None and suits(q, k):
        return staircase_attention(q, k, v)
    queries, keys = q.shape[1], k.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    is_triangle = valid is None and queries == keys  # torch's own causal mask fits only this shape
    sees_all = valid is None and queries == 1
    if valid is None and not is_triangle and not sees_all:
        valid = torch.ones(q.shape[0], keys, dtype=torch.bool, device=q.device)
    mask = None if valid is None else causal_mask(valid, queries)
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_triangle and not sees_all, enable_gqa=q.shape[1] != k.shape[1]
    )
    return mixed.transpose(1, 2)


def attend_one(
    q: Float[Tensor, "B 1 H K"], k: Float[Tensor, "B S G K"], v: Float[Tensor, "B S G K"], seen: Bool[Tensor, "B S"]
) -> Float[Tensor, "B 1 H K"]:
    """The same for one token of every row and caches that are not full, in operations that a compiler joins."""
    rows, _, heads, width = q.shape
    by_group = q.reshape(rows, k.shape[2], -1, width) * width**-0.5
    scores = by_group @ k.permute(0, 2, 3, 1)
    weights = scores.masked_fill(~seen[:, None, None, :], -torch.inf).softmax(dim=-1)
    return (weights @ v.transpose(1, 2)).reshape(rows, 1, heads, width)


def causal_mask(valid: Bool[Tensor, "B S"], queries: int) -> Bool[Tensor, "B 1 T S"]:
    """True where one of the last `queries` tokens may look: at itself and at earlier real tokens.

    A padded query looks at itself so that its softmax is finite. Its output is not used.
    """
    keys = valid.shape[1]
    past = torch.ones(queries, keys, dtype=torch.bool, device=valid.device).tril(keys - queries)
    self_only = past.triu(keys - queries)
    return ((past & valid[:, None, :]) | self_only).unsqueeze(1)
