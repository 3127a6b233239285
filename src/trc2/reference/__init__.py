"""The paper in slow, obvious code: one loop per sum, names from the equations. Fast code is compared with it.

Weights come as a mapping from the fast modules' parameter names, so that both sides share one set of tensors and
gradients can be compared name by name. Nothing here is used outside tests.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

Weights = Mapping[str, Tensor]


def under(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The weights of one submodule, with its prefix taken off."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
