"""torch.compile for the parts whose shapes do not depend on data."""

from __future__ import annotations

from torch import nn

from trc2.model.thalamus import ThalamicRouter
from trc2.nn.attention import CausalAttention
from trc2.nn.norm import RMSNorm

# Experts see another number of tokens in every step, and the loss is chunked by hand: both stay as they are.
COMPILED = (CausalAttention, ThalamicRouter, RMSNorm)


def compile_parts(net: nn.Module) -> int:
    """Compile attention, router and norms in place; names and states stay. Returns how many modules that were."""
    modules = [module for module in net.modules() if isinstance(module, COMPILED)]
    for module in modules:
        module.compile()
    return len(modules)
