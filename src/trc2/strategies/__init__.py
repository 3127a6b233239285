"""Continual-learning strategies for any backbone: each is a few tensors and a correction of the gradient.

The module `trc2.strategies.NAME` is the strategy NAME. Other packages register theirs by an entry point, see
`trc2.system.plugins`. Replay is not a strategy: see `model.replay` and `control.mode`.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

from pydantic import create_model

from trc2.backbones.shell import Backbone
from trc2.config import StrategyConfig, strategy_names
from trc2.config.section import shown
from trc2.config.strategy import SHORTHANDS
from trc2.errors import UserError
from trc2.strategies.base import Strategy
from trc2.system.plugins import find, load, missing_hint, register


def build_strategy(settings: StrategyConfig, model: Backbone) -> Strategy:
    """The strategy that a config names, ours or that of a plug-in."""
    if settings.name in strategy_names():
        return import_module(f"trc2.strategies.{settings.name}").build(model, settings)
    plugin = find("strategy", settings.name)
    if plugin is None:
        raise UserError(f"There is no strategy '{settings.name}' any more. {missing_hint('strategy')}")
    strategy = load(plugin).build(model, settings)
    if not isinstance(strategy, Strategy):
        raise plugin.broken(f"its build returns {type(strategy).__name__}, which is not a Strategy")
    return strategy


def register_strategy(
    strategy: type[Strategy], settings: type[StrategyConfig] | None = None, *, name: str = ""
) -> None:
    """Register a strategy in this process, by the `name` of its settings or without settings. See docs/plugins.md.

    A resumed run needs the strategy to be registered again.
    """
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise UserError(f"{shown(strategy)} is not a strategy: give a subclass of trc2.Strategy.")
    if settings is None:
        settings = create_model("Settings", __base__=StrategyConfig, name=(str, name))
    called = settings.model_fields["name"].default
    if called in (*strategy_names(), *SHORTHANDS):
        raise UserError(f"'{called}' is a strategy of trc2 itself: choose another name.")
    register("strategy", called, SimpleNamespace(Settings=settings, build=strategy))


__all__ = ["Strategy", "build_strategy", "register_strategy"]
