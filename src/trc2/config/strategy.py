"""What is added to a backbone so that it forgets less, and by what two runs are made equal."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal

from pydantic import Field

from trc2.config.backbone import BackboneConfig
from trc2.config.section import Section, SettingError, check_names, shown
from trc2.config.train import TrainConfig
from trc2.errors import did_you_mean
from trc2.plugins import find, installed_names, load_settings, missing_hint

SHORTHANDS = ("replay", "replay_controlled")  # no strategies, see config/earlier.py


class StrategyConfig(Section):
    """Settings of any strategy; `name` says which one. `trc2.strategies.NAME` holds its own as `Settings`."""

    name: str = Field(description="which strategy")

    def check_run(self, model: BackboneConfig, train: TrainConfig) -> None:
        """Raise a ValueError if the strategy can do nothing for such a run."""

    def forward_tokens(self, tokens: int, replayed: float) -> float:
        """Tokens a micro-batch runs forward, without learning them, besides its own and the replayed ones."""
        return 0.0

    def replayed_tokens(self, model: BackboneConfig, train: TrainConfig) -> int:
        """Tokens of old text whose gradients a step takes, besides those of the backbone's own replay."""
        return 0

    @property
    def serves_other_weights(self) -> bool:
        """Whether the model is evaluated and exported with other weights than those that are trained."""
        return False


@cache
def strategy_names() -> tuple[str, ...]:
    """Every strategy of ours: the files of `trc2.strategies`, but for what they share."""
    files = iter_modules(import_module("trc2.strategies").__path__)
    return tuple(sorted(file.name for file in files if file.name != "base" and not file.name.startswith("_")))


def strategy_class(name: object) -> type[StrategyConfig]:
    """The settings class of the strategy of this name."""
    settings: type[StrategyConfig]
    if isinstance(name, str) and name in strategy_names():
        settings = import_module(f"trc2.strategies.{name}").Settings
        return settings
    plugin = find("strategy", name) if isinstance(name, str) else None
    if plugin is None:
        known = (*strategy_names(), *installed_names("strategy"), *SHORTHANDS)
        hint = f"{did_you_mean(str(name), known)} {missing_hint('strategy')}"
        raise SettingError(f"There is no strategy {shown(name)}: {hint}", "name")
    return load_settings(plugin, "Settings", StrategyConfig, ["build"])


def strategy_config(values: Mapping[str, Any]) -> StrategyConfig:
    """The settings of the strategy called `name`, which is none by default."""
    check_names(values)
    return strategy_class(values.get("name", "none"))(**values)


class BudgetConfig(Section):
    """What runs have in common: a task's `steps` are those of the reference, and are rescaled for this run."""

    match: Literal["steps", "tokens", "flops"] = Field(
        "steps",
        description="steps: as many optimizer steps; tokens: as many tokens, replayed ones included; "
        "flops: as many training FLOPs as the reference, replay included",
    )
    reference: str | None = Field(None, description="for flops: the recipe whose model sets the budget")
