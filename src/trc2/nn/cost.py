"""The cost of a pass in floating-point operations of matrix products, forward and with its backward.

Counted: 2·m·n·k per product, attention as the full T×T (torch's convention, causal kernels skip about half).
Not counted: element-wise work, sorting, gathering.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """FLOPs of one forward pass, and of forward plus backward."""

    forward: float = 0.0
    training: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forward + other.forward, self.training + other.training)

    def __mul__(self, factor: float) -> Cost:
        return Cost(self.forward * factor, self.training * factor)


def learned(flops: float) -> Cost:
    """A product whose backward needs gradients of both factors."""
    return Cost(flops, 3 * flops)


def input_fixed(flops: float) -> Cost:
    """A product with a detached input: only the weight's gradient is formed."""
    return Cost(flops, 2 * flops)


def frozen(flops: float) -> Cost:
    """A product outside the graph."""
    return Cost(flops, flops)


@dataclass(frozen=True)
class Kept:
    """Floats per token that are kept for the backward pass.

    The residual stream is float32 in every precision. The rest follows the products.
    """

    stream: float = 0.0
    inner: float = 0.0

    def __add__(self, other: Kept) -> Kept:
        return Kept(self.stream + other.stream, self.inner + other.inner)

    def __mul__(self, factor: float) -> Kept:
        return Kept(self.stream * factor, self.inner * factor)

    def bytes(self, width: int) -> float:
        """Bytes per token, where a product's float takes `width` bytes."""
        return 4 * self.stream + width * self.inner


@dataclass(frozen=True)
class Activations:
    """Floats that a learning pass keeps of every token: per column or block (`unit`), and besides them (`once`).

    With recomputation only `inputs` of a unit is kept.
    """

    unit: Kept
    num_units: int
    inputs: Kept
    once: Kept
