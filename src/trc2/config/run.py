"""One run as a whole, read from a YAML recipe with dotted overrides."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from trc2.config.backbone import BackboneConfig
from trc2.config.baselines import LoraDRSConfig
from trc2.config.earlier import forget_earlier_words, in_todays_words, switch_strategy
from trc2.config.models import MODELS, model_config, switch_backbone
from trc2.config.pretrained import HFConfig
from trc2.config.reader import MAX_DEPTH, NotReadable, parse, parse_settings, read_settings
from trc2.config.section import Section, SettingError, shown
from trc2.config.strategy import BudgetConfig, StrategyConfig, strategy_config
from trc2.config.stream import StreamConfig
from trc2.config.train import EvalConfig, OutputConfig, ReplayControlConfig, TrainConfig
from trc2.errors import UserError, brief, did_you_mean, sentence_of

NAMED_SECTIONS = ("model", "strategy")
MAX_BASES = 16


class RunConfig(Section):
    """What is trained, on which stream, and how. A recipe for a model alone has no stream."""

    model: SerializeAsAny[BackboneConfig]
    stream: StreamConfig | None = None
    train: TrainConfig = TrainConfig()
    control: ReplayControlConfig = ReplayControlConfig()
    strategy: SerializeAsAny[StrategyConfig] = Field(default_factory=lambda: strategy_config({}))
    budget: BudgetConfig = BudgetConfig()
    eval: EvalConfig = EvalConfig()
    output: OutputConfig = OutputConfig()

    @model_validator(mode="before")
    @classmethod
    def _in_todays_words(cls, values: Any) -> Any:
        """Earlier versions' settings are understood; a run folder is written with today's names only."""
        return in_todays_words(values)

    @field_validator("model", mode="before")
    @classmethod
    def _which_backbone(cls, values: Any) -> Any:
        return model_config(values) if isinstance(values, dict) else values

    @field_validator("strategy", mode="before")
    @classmethod
    def _which_strategy(cls, values: Any) -> Any:
        return strategy_config(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _one_seed_for_all(self) -> RunConfig:
        """A seed is a seed of everything: replay draws follow it unless they have their own."""
        if self.stream is not None and self.model.replay_seed is None:
            object.__setattr__(self, "model", self.model.replace(replay_seed=self.train.seed))
        return self

    @model_validator(mode="after")
    def _text_in_the_models_own_words(self) -> RunConfig:
        """A model that knows words already is trained with the tokenizer that lies beside its weights."""
        if isinstance(self.model, HFConfig) and self.stream is not None and self.stream.tokenizer.path is None:
            tokenizer = {**self.stream.tokenizer.model_dump(), "path": self.model.pretrained, "begin_of_text": True}
            object.__setattr__(self, "stream", self.stream.replace(tokenizer=tokenizer))
        return self

    @model_validator(mode="after")
    def _replay_starts_in_range(self) -> RunConfig:
        """Only a closed loop obeys the ranges: a fixed strength may lie anywhere, and so may one nobody trains with."""
        model, control = self.model, self.control
        if self.stream is not None and model.replay and control.mode == "closed_loop":
            if model.replay_share is not None:
                _check_within("share", model.replay_share, "share_range", control.share_range)
                return self
            _check_within("coefficient", model.replay_coefficient, "coefficient_range", control.coefficient_range)
            _check_within("batch_size", model.replay_batch_size, "batch_range", control.batch_range)
        return self

    @model_validator(mode="after")
    def _seeds_have_a_place(self) -> RunConfig:
        if self.stream is not None and self.stream.replay_seed_files and not self.model.replay:
            raise ValueError(
                "stream.replay_seed_files fills replay stores, but model.replay is false: set it to true, or leave "
                "the files out."
            )
        return self

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


def _check_within(name: str, value: float, range_name: str, limits: tuple[float, float]) -> None:
    low, high = limits
    if not low <= value <= high:
        raise ValueError(
            f"model.replay_{name}={value} is outside control.{range_name}=[{low}, {high}]: choose a value "
            "within it, widen it, or set control.mode=fixed."
        )


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


def _read_recipe(name: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """A recipe's settings laid over those of the one it names as `base`; `above` are those that led here."""
    chain = (*above, name)
    if above and _identity(name) == _identity(above[-1]):
        raise UserError(f"base: {brief(name, 80)} names itself: name another recipe, or leave the base out.")
    if _identity(name) in map(_identity, above):
        raise UserError(f"base: {brief(' → '.join(chain))} comes back to where it began: leave one base out.")
    if len(above) > MAX_BASES:
        raise UserError(f"base: {brief(' → '.join(chain))} is a chain of more than {MAX_BASES}: shorten it.")
    values = _read_one(name)
    if isinstance(values.get("strategy"), str):
        values["strategy"] = {"name": values["strategy"]}
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise UserError(f"{name} has base={shown(base)}, which is no name: name a recipe or its file.")
    below, strategy = _read_recipe(base, chain), values.get("strategy")
    forget_earlier_words(below, values)
    if isinstance(below.get("strategy"), dict) and isinstance(strategy, dict) and "name" in strategy:
        below["strategy"] = switch_strategy(below["strategy"], strategy["name"])
    return _merge(below, values)


def _identity(name: str) -> str:
    """What two names of one recipe have in common."""
    return name if _is_packaged(name) else os.path.abspath(name)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Sections are merged field by field; everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _is_packaged(name: str) -> bool:
    return any(entry.name == f"{name}.yaml" for entry in (resources.files("trc2") / "recipes").iterdir())


def _read_one(name: str) -> dict[str, Any]:
    """The settings in one recipe, of the package or in a file, without those of its base."""
    if _is_packaged(name):
        return parse_settings((resources.files("trc2") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8"), name)
    try:
        os.stat(name)
    except PermissionError as error:
        raise UserError(sentence_of(error)) from None
    except (OSError, ValueError):  # a name may also be too long for a file, or hold what no name may
        raise UserError(
            f"There is no recipe or file '{name and brief(name, 80)}': {did_you_mean(name, recipe_names())}"
        ) from None
    return read_settings(Path(name), remedy="correct the file")


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Settings with `section.field=value` changes laid over them; values are read as YAML."""
    result = copy.deepcopy(dict(values))
    for override in overrides:
        shown = brief(override, 80)
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise UserError(f"The override '{shown}' has no value: write it as section.field=value.")
        *sections, field = parts = path.split(".")
        if not all(parts) or len(parts) > MAX_DEPTH:
            raise UserError(f"The override '{shown}' leads to no setting: write it as section.field=value.")
        target = result
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise UserError(f"The override '{shown}' goes into '{section}', which is a value: shorten the path.")
        try:
            value = parse(text)
        except NotReadable as problem:
            raise UserError(
                f"The override '{shown}' has no readable value ({problem}): correct it, or quote it."
            ) from None
        forget_earlier_words(result, _nested(parts, value))
        if path in NAMED_SECTIONS and isinstance(value, str):  # model=transformer, strategy=ewc
            value = _renamed(path, target.get(field, {}), value)
        target[field] = value
    return result


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    *sections, field = path
    nested = {field: value}
    for section in reversed(sections):
        nested = {section: nested}
    return nested


def _renamed(section: str, values: Any, name: str) -> dict[str, Any]:
    kept = values if isinstance(values, dict) else {}
    if section == "strategy":
        return switch_strategy(kept, name)
    try:
        return switch_backbone(kept, name)
    except SettingError as problem:
        raise problem.within(section) from None
