"""What the parts that backbones share cost: matrix products, and floats kept for the backward pass.

A test compares the floats with what torch is given to keep, for every backbone.
"""

from __future__ import annotations

from trc2.backbones.blocks import BaselineConfig
from trc2.nn.cost import Activations, Cost, Kept, learned
from trc2.ops.staircase import LONGEST, SHORTEST, STEPS


def attention_cost(config: BaselineConfig, rows: int, length: int) -> Cost:
    """Four square maps and the full T×T of scores and mixing."""
    d = config.d_model
    return learned(8.0 * rows * length * d * d + 4.0 * rows * length * length * d)


def swiglu_cost(d_model: int, d_ff: int, tokens: int) -> Cost:
    return learned(6.0 * tokens * d_model * d_ff)


def baseline_cost(config: BaselineConfig, rows: int, length: int, block: Cost) -> dict[str, Cost]:
    """A whole pass, from the cost of one block."""
    head = learned(2.0 * rows * length * config.d_model * config.vocab_size)
    return {"embedding and head": head, "blocks": block * config.num_layers}


def baseline_kept(config: BaselineConfig, mixer: Kept, feed_forward: Kept, once: Kept | None = None) -> Activations:
    """What a baseline keeps, from what the two parts of a block keep; `once` is beside final norm and head."""
    d = config.d_model
    unit = norms_kept(d) + mixer + feed_forward
    return Activations(unit, config.num_layers, Kept(stream=d), Kept(stream=d, inner=d) + (once or Kept()))


def norms_kept(d_model: int) -> Kept:
    """Two norms keep what they read, and the products after them what they wrote."""
    return Kept(stream=2 * d_model, inner=2 * d_model)


def attention_kept(d_model: int, kv: int, heads: int, length: int, on_cpu: bool) -> Kept:
    """Queries, keys and values and what the output map reads; short rows on a CPU also keep their weights."""
    if on_cpu and SHORTEST <= length <= LONGEST:
        return Kept(inner=2 * d_model + 2 * kv + heads * length * (STEPS + 1) / (2 * STEPS))
    return Kept(inner=3 * d_model + 2 * kv + heads)


def swiglu_kept(d_ff: int) -> Kept:
    """Both halves of the first map, the gate's sigmoid and SiLU, and the product."""
    return Kept(inner=5.0 * d_ff)


def experts_kept(d_model: int, d_ff: int, active: int, total: int) -> Kept:
    """Every token is copied to its experts, and their outputs are kept to weigh them; the gate keeps its softmax."""
    return swiglu_kept(d_ff) * active + Kept(inner=active * (2 * d_model + 6) + 4 * total)
