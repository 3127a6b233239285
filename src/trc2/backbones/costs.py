"""Costs of the parts that backbones share: matrix products, and floats kept for the backward pass.

A test compares the floats with those that torch keeps, for every backbone.
"""

from __future__ import annotations

from trc2.backbones.blocks import BaselineConfig
from trc2.config import TRC2Config
from trc2.nn.cost import Activations, Cost, Kept, learned
from trc2.ops.staircase import LONGEST, SHORTEST, STEPS


def attention_cost(config: BaselineConfig, rows: int, length: int) -> Cost:
    """Four square maps and the full T×T of scores and mixing."""
    d = config.d_model
    return learned(8.0 * rows * length * d * d + 4.0 * rows * length * length * d)


def swiglu_cost(d_model: int, d_ff: int, tokens: int) -> Cost:
    return learned(6.0 * tokens * d_model * d_ff)


def baseline_cost(config: BaselineConfig, rows: int, length: int, block: Cost) -> dict[str, Cost]:
    """The cost of a whole pass, from the cost of one block."""
    head = learned(2.0 * rows * length * config.d_model * config.vocab_size)
    return {"embedding and head": head, "blocks": block * config.num_layers}


def baseline_kept(config: BaselineConfig, mixer: Kept, feed_forward: Kept, once: Kept | None = None) -> Activations:
    """The floats a baseline keeps, from those of the two parts of a block. `once` is added to final norm and head."""
    d = config.d_model
    unit = norms_kept(d) + mixer + feed_forward
    return Activations(unit, config.num_layers, Kept(stream=d), Kept(stream=d, inner=d) + (once or Kept()))


def dense_activations(config: BaselineConfig, length: int, *, on_cpu: bool) -> Activations:
    """What a pass over rows of this length keeps where every block is attention and one SwiGLU."""
    return baseline_kept(config, attention_kept(config, length, on_cpu), swiglu_kept(config.ff_dim))


def norms_kept(d_model: int) -> Kept:
    """Two norms keep their inputs, and the products after them keep their outputs."""
    return Kept(stream=2 * d_model, inner=2 * d_model)


def attention_kept(config: BaselineConfig | TRC2Config, length: int, on_cpu: bool) -> Kept:
    """Queries, keys and values and the input of the output map. Short rows on a CPU also keep their weights."""
    num_kv_heads = config.num_kv_heads if isinstance(config, TRC2Config) else config.num_heads
    d_model, kv, heads = config.d_model, num_kv_heads * config.head_dim, config.num_heads
    if on_cpu and SHORTEST <= length <= LONGEST:
        return Kept(inner=2 * d_model + 2 * kv + heads * length * (STEPS + 1) / (2 * STEPS))
    return Kept(inner=3 * d_model + 2 * kv + heads)


def swiglu_kept(d_ff: int) -> Kept:
    """Both halves of the first map, the gate's sigmoid and SiLU, and the product."""
    return Kept(inner=5.0 * d_ff)


def experts_kept(d_model: int, d_ff: int, active: int, total: int) -> Kept:
    """Copies of the token for its experts, their outputs before weighting, and the softmax of the gate."""
    return swiglu_kept(d_ff) * active + Kept(inner=active * (2 * d_model + 6) + 4 * total)
