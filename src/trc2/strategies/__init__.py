"""What can be added to any backbone: each strategy is a few tensors and a correction of the gradient.

`trc2.strategies.NAME` serves the strategy called NAME: nothing else to register. Those of other packages are found by
their entry point, see `trc2.system.plugins`. Replay is no strategy: its stores are
part of every backbone's shell (`model.replay`), its strength is the trainer's (`control.mode`).
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Protocol, cast

from pydantic import create_model

from trc2.backbones.shell import Backbone
from trc2.config import StrategyConfig, strategy_names
from trc2.config.section import shown
from trc2.config.strategy import SHORTHANDS
from trc2.errors import UserError
from trc2.strategies.base import Strategy
from trc2.system.plugins import find, load, missing_hint, register


class StrategyModule(Protocol):
    """What the file of a strategy offers."""

    Settings: type[StrategyConfig]

    def build(self, model: Backbone, settings: StrategyConfig) -> Strategy:
        """The strategy at the beginning of a run: its class."""
        ...


def build_strategy(settings: StrategyConfig, model: Backbone) -> Strategy:
    """The strategy a config names, ours or an installed plug-in's."""
    if settings.name in strategy_names():
        return cast(StrategyModule, import_module(f"trc2.strategies.{settings.name}")).build(model, settings)
    plugin = find("strategy", settings.name)
    if plugin is None:
        raise UserError(f"There is no strategy '{settings.name}' any more. {missing_hint('strategy')}")
    strategy = cast(StrategyModule, load(plugin)).build(model, settings)
    if not isinstance(strategy, Strategy):
        raise plugin.broken(f"its build returns {type(strategy).__name__}, which is no Strategy")
    return strategy


def register_strategy(
    strategy: type[Strategy], settings: type[StrategyConfig] | None = None, *, name: str = ""
) -> None:
    """Make a strategy known in this process without a package, by the `name` of its settings; docs/plugins.md.

    One without settings of its own needs a `name` only. A run resumes in a process that has registered it again.
    """
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise UserError(f"{shown(strategy)} is no strategy: give a subclass of trc2.Strategy.")
    if settings is None:
        settings = create_model("Settings", __base__=StrategyConfig, name=(str, name))
    called = settings.model_fields["name"].default
    if called in (*strategy_names(), *SHORTHANDS):
        raise UserError(f"'{called}' is a strategy of trc2 itself: choose another name.")
    register("strategy", called, SimpleNamespace(Settings=settings, build=strategy))


__all__ = ["Strategy", "build_strategy", "register_strategy"]
