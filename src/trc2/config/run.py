"""One run as a whole, read from a YAML recipe with dotted overrides."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from trc2.config.backbone import BackboneConfig
from trc2.config.model import PAPER_STEPS, SHORTEST_HORIZON
from trc2.config.models import backbone_class, model_config, switch_backbone
from trc2.config.reader import MAX_DEPTH, NotReadable, parse
from trc2.config.recipes import merge_layers, recipe_layers
from trc2.config.section import Section, SettingError
from trc2.config.strategy import BudgetConfig, StrategyConfig, expand_shorthands, strategy_config, switch_strategy
from trc2.config.stream import StreamConfig
from trc2.config.train import EvalConfig, OutputConfig, ReplayControlConfig, TrainConfig
from trc2.errors import UserError, brief, did_you_mean

NAMED_SECTIONS = ("model", "strategy")


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
    def _without_shorthands(cls, values: Any) -> Any:
        return expand_shorthands(values)

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
        """Draws of replay use train.seed unless model.replay_seed is set."""
        if self.stream is not None and self.model.replay_seed is None:
            object.__setattr__(self, "model", self.model.replace(replay_seed=self.train.seed))
        return self

    @model_validator(mode="after")
    def _horizons_follow_from_the_steps(self) -> RunConfig:
        """Averages and the controller's period keep the paper's share of a stream, unless they are set."""
        if self.stream is None:
            return self
        steps = sum(task.steps for task in self.stream.trained)
        object.__setattr__(self, "model", self.model.with_horizons(steps))
        if self.control.every_steps is None:
            period = max(SHORTEST_HORIZON, round(steps * 240 / PAPER_STEPS))
            object.__setattr__(self, "control", self.control.replace(every_steps=period))
        return self

    @model_validator(mode="after")
    def _text_in_the_models_own_words(self) -> RunConfig:
        """A pretrained model is trained with the tokenizer in the folder of its weights."""
        path = self.model.pretrained_from
        if path is not None and self.stream is not None and self.stream.tokenizer.path is None:
            tokenizer = {**self.stream.tokenizer.model_dump(), "path": path, "begin_of_text": True}
            object.__setattr__(self, "stream", self.stream.replace(tokenizer=tokenizer))
        return self

    @model_validator(mode="after")
    def _replay_starts_in_range(self) -> RunConfig:
        """Check the ranges of a closed loop. A fixed strength, or one that is not trained with, may have any value."""
        model, control = self.model, self.control
        if self.stream is not None and model.replay and control.mode == "closed_loop":
            if model.replay_share is not None:
                _check_within("share", model.replay_share, "share_range", control.share_range)
                return self
            _check_within("coefficient", model.replay_coefficient, "coefficient_range", control.coefficient_range)
            _check_within("batch_size", model.replay_batch_size, "batch_range", control.batch_range)
        return self

    @model_validator(mode="after")
    def _prefill_files_have_a_store(self) -> RunConfig:
        if self.stream is None or not self.stream.replay_prefill_files:
            return self
        if not self.model.replay:
            raise ValueError(
                "stream.replay_prefill_files fills replay stores, but model.replay is false: set it to true, or leave "
                "the files out."
            )
        if self.model.replay_keep in ("loss", "surprise"):
            raise ValueError(
                f"model.replay_keep={self.model.replay_keep} weighs a chunk by how hard it was in training, and "
                "stream.replay_prefill_files were never learned: choose uniform or balanced, or leave the files out."
            )
        return self

    @model_validator(mode="after")
    def _metrics_have_something_to_read(self) -> RunConfig:
        if self.eval.metrics and not self.eval.text_sequences:
            names = ", ".join(metric.name for metric in self.eval.metrics)
            raise ValueError(
                f"eval.metrics ({names}) are scored on as many sequences as eval.text_sequences=0 says: set it to 16 "
                "or so, or leave them out."
            )
        return self

    @model_validator(mode="after")
    def _tasks_and_strategy_fit(self) -> RunConfig:
        if self.stream is not None and self.stream.mode == "sequential":
            self.model.check_tasks(len(self.stream.trained))
        self.strategy.check_run(self.model, self.train)
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


def load_recipe(name_or_path: str, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a recipe by name or path and apply overrides such as `model.d_model=256`."""
    return RunConfig(**apply_overrides(recipe_settings(name_or_path), overrides))


def recipe_settings(name_or_path: str) -> dict[str, Any]:
    """The settings of a recipe laid over those of its bases, not yet checked."""
    return merge_layers(recipe_layers(name_or_path))


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Settings with `section.field=value` changes laid over them. Values are read as YAML.

    An item of a list is named by its number or, if it has one, by its name: `stream.tasks.0.steps=10`.
    """
    result = copy.deepcopy(dict(values))
    for override in overrides:
        shown = brief(override, 80)
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise UserError(f"The override '{shown}' has no value: write it as section.field=value.")
        *sections, field = parts = path.split(".")
        if not all(parts) or len(parts) > MAX_DEPTH:
            raise UserError(f"The override '{shown}' leads to no setting: write it as section.field=value.")
        target: Any = result
        for depth, section in enumerate(sections, start=1):
            if isinstance(target, dict) and section not in target:
                target[section] = _default_list(result, parts[:depth]) if _number(parts[depth]) is not None else {}
            target = target[_place(target, section, shown)]
            if not isinstance(target, dict | list):
                raise UserError(f"The override '{shown}' goes into '{section}', which is a value: shorten the path.")
        try:
            value = parse(text)
        except NotReadable as problem:
            raise UserError(
                f"The override '{shown}' has no readable value ({problem}): correct it, or quote it."
            ) from None
        if path in NAMED_SECTIONS and isinstance(value, str):  # model=transformer, strategy=ewc
            value = _switch(path, target.get(field, {}), value)
        target[_place(target, field, shown)] = value
    return result


def _place(target: dict[str, Any] | list[Any], key: str, override: str) -> Any:
    """The key or index of one part of a path. An item of a list has a number and may have a name."""
    if isinstance(target, dict):
        return key
    names = [item.get("name") if isinstance(item, dict) else None for item in target]
    indices = {index for index, name in enumerate(names) if name == key}
    number = _number(key)
    if number is not None and number < len(target):
        indices.add(number)
    if len(indices) == 1:
        return indices.pop()
    if indices:
        raise UserError(f"The override '{override}' may mean number {key} or the one called so: rename that one.")
    choices = [str(name) for name in names if name is not None] or [str(index) for index in range(len(target))]
    hint = f"there are {len(target)}, counted from 0." if number is not None else did_you_mean(key, choices)
    raise UserError(f"The override '{override}' names no item '{brief(key, 40)}': {hint}")


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _default_list(values: Mapping[str, Any], path: list[str]) -> Any:
    """A list that only the defaults have, such as train.betas, so that one of its items can be changed."""
    model = values.get("model")
    section: Any = RunConfig
    for name in path[:-1]:
        if section is RunConfig and name == "model":
            section = backbone_class(model.get("name", "trc2") if isinstance(model, dict) else "trc2")
        else:
            section = getattr(getattr(section, "model_fields", {}).get(name), "annotation", None)
    field = getattr(section, "model_fields", {}).get(path[-1])
    default = None if field is None else field.get_default(call_default_factory=True)
    return list(default) if isinstance(default, tuple) else {}


def _switch(section: str, values: Any, name: str) -> dict[str, Any]:
    """The settings of another backbone or strategy, with those of the present one that it can keep."""
    kept = values if isinstance(values, dict) else {}
    try:
        return switch_strategy(kept, name) if section == "strategy" else switch_backbone(kept, name)
    except SettingError as problem:
        raise problem.within(section) from None
