"""Settings of strategies against forgetting, and of the budget by which two runs are made equal."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from trc2.config.backbone import BackboneConfig
from trc2.config.model import TRC2Config
from trc2.config.models import backbone_class
from trc2.config.section import Section, SettingError, check_names, shown
from trc2.config.train import TrainConfig
from trc2.errors import brief, did_you_mean
from trc2.system.plugins import find, installed_names, load_settings, missing_hint

# Names that stand for settings of replay, see `expand_shorthands`.
SHORTHANDS = ("replay", "replay_controlled")


class StrategyConfig(Section):
    """Settings of any strategy. `name` says which one. `trc2.strategies.NAME` holds its own as `Settings`."""

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
    def has_evaluation_weights(self) -> bool:
        """Whether the model is evaluated and exported with other weights than those that are trained."""
        return False


@cache
def strategy_names() -> tuple[str, ...]:
    """Every strategy of ours: the files of `trc2.strategies`, except for shared ones."""
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
        choices = (*strategy_names(), *installed_names("strategy"), *SHORTHANDS)
        hint = f"{did_you_mean(str(name), choices)} {missing_hint('strategy')}"
        raise SettingError(f"There is no strategy {shown(name)}: {hint}", "name")
    return load_settings(plugin, "Settings", StrategyConfig, ["build"])


def strategy_config(values: Mapping[str, Any]) -> StrategyConfig:
    """The settings of the strategy called `name`, which is none by default."""
    check_names(values)
    return strategy_class(values.get("name", "none"))(**values)


class BudgetConfig(Section):
    """The budget that runs share: a task's `steps` are those of the reference, and are rescaled for this run."""

    match: Literal["steps", "tokens", "flops"] = Field(
        "steps",
        description="quantity by which runs are matched. steps counts optimizer steps. tokens counts all tokens, "
        "including replayed ones. flops counts training FLOPs, including replay.",
    )
    reference: str | None = Field(None, description="the recipe whose model sets the budget, for match=flops")


def switch_strategy(values: Mapping[str, Any], name: object) -> dict[str, Any]:
    """Settings of another strategy, at their defaults. Those of the same strategy are kept."""
    return {**values, "name": name} if values.get("name", name) == name else {"name": name}


def expand_shorthands(values: Mapping[str, Any]) -> dict[str, Any]:
    """Unchecked settings of a run with strategy names that stand for settings of replay written out.

    - `strategy=replay` means strategy=none model.replay=true control.mode=fixed.
    - `strategy=replay_controlled` means the same with control.mode=closed_loop.
    - `strategy=agem` on a model without replay needs its stores, filled but not replayed: model.replay=true
      control.mode=off.

    Another control.mode is refused. A value that is not a section is left for its own check to refuse.
    """
    result = dict(values)
    for section in ("model", "control", "strategy"):
        given = result.get(section)
        if isinstance(given, dict | Section):
            result[section] = given.model_dump() if isinstance(given, Section) else dict(given)
    model, control, strategy = (result.get(section, {}) for section in ("model", "control", "strategy"))
    if not (isinstance(model, dict) and isinstance(control, dict) and isinstance(strategy, dict)):
        return result
    name = strategy.get("name", "none")
    mode = _mode_meant_by(name, model)
    if mode is not None:
        if control.get("mode") not in (None, mode):
            raise SettingError(
                f"strategy={name} means control.mode={mode}, but control.mode={brief(control['mode'], 80)} is set: "
                "leave one of them out."
            )
        strategy["name"] = "agem" if name == "agem" else "none"
        result |= {"model": {**model, "replay": True}, "control": {**control, "mode": mode}}
    return result


def _mode_meant_by(strategy: Any, model: Mapping[str, Any]) -> str | None:
    """The control.mode that comes with a name, if replay does."""
    if strategy == "agem":
        return None if _has_replay(model) else "off"
    return {"replay": "fixed", "replay_controlled": "closed_loop"}.get(strategy) if isinstance(strategy, str) else None


def _has_replay(model: Mapping[str, Any]) -> bool:
    """Whether unchecked settings of a model ask for replay. Their own check refuses a value that is not a boolean."""
    config = backbone_class(model.get("name", "trc2")) or TRC2Config
    try:
        return TypeAdapter(bool).validate_python(model.get("replay", config.model_fields["replay"].default))
    except ValidationError:
        return False
