"""One run as a whole, read from a YAML recipe with dotted overrides."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import SerializeAsAny, field_validator, model_validator

from trc2.config.backbone import BackboneConfig
from trc2.config.baselines import LoraDRSConfig
from trc2.config.model import TRC2Config
from trc2.config.models import MODELS, model_config, switch_backbone
from trc2.config.section import Section, SettingError
from trc2.config.strategy import BudgetConfig, StrategyConfig
from trc2.config.stream import StreamConfig
from trc2.config.train import EvalConfig, OutputConfig, ReplayControlConfig, TrainConfig
from trc2.errors import UserError, did_you_mean

NAMED_SECTIONS = ("model", "strategy")


def _as_dict(section: Any) -> dict[str, Any]:
    return section.model_dump() if isinstance(section, Section) else dict(section)


class RunConfig(Section):
    """What is trained, on which stream, and how. A recipe for a model alone has no stream."""

    model: SerializeAsAny[BackboneConfig]
    stream: StreamConfig | None = None
    train: TrainConfig = TrainConfig()
    control: ReplayControlConfig = ReplayControlConfig()
    strategy: StrategyConfig = StrategyConfig()
    budget: BudgetConfig = BudgetConfig()
    eval: EvalConfig = EvalConfig()
    output: OutputConfig = OutputConfig()

    @model_validator(mode="before")
    @classmethod
    def _strategy_is_resolved(cls, values: Any) -> Any:
        """What a strategy sets in other sections is written there, so that a run folder tells all of it."""
        strategy = values.get("strategy")
        if not isinstance(strategy, dict):
            return values
        given = {name: _as_dict(values.get(name, {})) for name in ("model", "control")}
        model = MODELS.get(given["model"].get("name", "trc2"), TRC2Config)
        has_replay = bool(given["model"].get("replay", model.model_fields["replay"].default))
        resolved = StrategyConfig(**strategy).settings(has_replay)
        wanted, mode = resolved.get("control", {}).get("mode"), given["control"].get("mode")
        if wanted is not None and mode not in (None, wanted):
            raise SettingError(
                f"strategy={strategy['name']} means control.mode={wanted}, but control.mode={mode} is set: leave one "
                "of them out."
            )
        return {**values, **{name: {**given[name], **settings} for name, settings in resolved.items()}}

    @field_validator("model", mode="before")
    @classmethod
    def _which_backbone(cls, values: Any) -> Any:
        return model_config(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _adapters_suffice(self) -> RunConfig:
        if isinstance(self.model, LoraDRSConfig) and self.stream is not None and self.stream.mode == "sequential":
            later = len(self.stream.trained) - 1
            if later > self.model.num_adapters:
                raise ValueError(
                    f"model.num_adapters={self.model.num_adapters} is too few for {later} tasks after the first: "
                    f"set model.num_adapters={later}."
                )
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> RunConfig:
        length, model = self.train.sequence_length, self.model
        if length > model.max_positions:
            raise ValueError(
                f"train.sequence_length={length} is longer than model.max_positions={model.max_positions}: "
                "shorten the sequences or raise max_positions."
            )
        if model.replay and model.replay_chunk_length > length:
            raise ValueError(
                f"model.replay_chunk_length={model.replay_chunk_length} is longer than train.sequence_length={length}, "
                f"so no chunk would ever be stored: choose at most {length}, or model.replay=false."
            )
        return self


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    folder = resources.files("trc2") / "recipes"
    names = [entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    return sorted(name for name in names if not name.startswith("_"))  # those are parts that recipes share


def family_names(family: str) -> list[str]:
    """The recipes of one family that differ in their backbone: `lab`, one each, or `paper`, every row of its table."""
    names = recipe_names()
    if family == "lab":
        return [f"lab_{model}" for model in MODELS if f"lab_{model}" in names]
    if family == "paper":
        trc2 = [name for name in names if name.startswith("paper_d")]
        found = trc2 + [name for model in MODELS for name in names if name.startswith(f"paper_{model}_d")]
        return sorted(dict.fromkeys(found), key=lambda name: list(MODELS).index(_backbone_of(name)))
    raise UserError(f"There is no family '{family}': choose lab or paper.")


def _backbone_of(name: str) -> str:
    return next((m for m in MODELS if name.startswith(f"paper_{m}_")), "trc2")


def load_recipe(name_or_path: str, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a recipe by name or path and apply overrides such as `model.d_model=256`."""
    return RunConfig(**apply_overrides(_read_recipe(name_or_path), overrides))


def _read_recipe(name_or_path: str) -> dict[str, Any]:
    """A recipe's settings laid over those of the one it names as `base`."""
    values = _read_yaml(name_or_path)
    base = values.pop("base", None)
    return values if base is None else _merge(_read_recipe(str(base)), values)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Sections are merged field by field; everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _read_yaml(name_or_path: str) -> dict[str, Any]:
    packaged = resources.files("trc2") / "recipes" / f"{name_or_path}.yaml"
    if "/" not in name_or_path and packaged.is_file():
        text = packaged.read_text(encoding="utf-8")
    elif (path := Path(name_or_path)).is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{name_or_path} is not UTF-8 text: save it as UTF-8.") from None
    else:
        raise UserError(f"There is no recipe or file '{name_or_path}': {did_you_mean(name_or_path, recipe_names())}")
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # an impossible date, say, is a ValueError
        raise UserError(f"{name_or_path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{name_or_path} holds {type(values).__name__}, not settings: write `model:` and its fields.")
    odd = [key for key in values if not isinstance(key, str)]
    if odd:
        raise UserError(f"{name_or_path} has a setting named {odd[0]!r}, which is no name: remove it.")
    return values


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Settings with `section.field=value` changes laid over them; values are read as YAML."""
    result = copy.deepcopy(dict(values))
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise UserError(f"The override '{override}' has no value: write it as section.field=value.")
        *sections, field = path.split(".")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise UserError(f"The override '{override}' goes into '{section}', which is a value: shorten the path.")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"The override '{override}' has no readable value: quote it, e.g. {path}='…'.") from None
        if path in NAMED_SECTIONS and isinstance(value, str):  # model=transformer, strategy=ewc
            value = _renamed(path, target.get(field, {}), value)
        target[field] = value
    return result


def _renamed(section: str, values: Any, name: str) -> dict[str, Any]:
    kept = values if isinstance(values, dict) else {}
    return switch_backbone(kept, name) if section == "model" else {**kept, "name": name}
