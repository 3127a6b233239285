"""What can be added to any backbone: each strategy is a few tensors and a correction of the gradient.

The two replay strategies are not here: stores are part of every backbone's shell, see `StrategyConfig.settings`.
"""

from __future__ import annotations

from trc2.backbones.shell import Backbone
from trc2.config import StrategyConfig
from trc2.strategies.agem import AveragedGradientMemory
from trc2.strategies.anchors import ElasticWeights, PullToBoundary
from trc2.strategies.base import Strategy


def build_strategy(config: StrategyConfig, model: Backbone) -> Strategy:
    """The strategy a config names; one that does nothing for `none` and for replay."""
    if config.name == "ewc":
        return ElasticWeights(model, config.ewc_strength, config.ewc_decay, config.fisher_sequences)
    if config.name == "l2":
        return PullToBoundary(model, config.l2_strength)
    if config.name == "agem":
        return AveragedGradientMemory(model, config.agem_chunks)
    return Strategy(model)


__all__ = ["AveragedGradientMemory", "ElasticWeights", "PullToBoundary", "Strategy", "build_strategy"]
