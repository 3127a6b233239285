"""Typed, frozen configuration: a YAML recipe, then dotted overrides; an unknown key is an error with a hint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trc2.errors import UserError, did_you_mean

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A frozen group of settings whose validation errors are single sentences."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _first_problem(error, type(self)) from None

    def replace(self, **changes: Any) -> Any:
        """A validated copy with some fields changed."""
        return type(self)(**{**self.model_dump(), **changes})


class TRC2Config(Section):
    """Everything that defines a TRC² network; `docs/fidelity.md` says where each default comes from."""

    name: Literal["trc2"] = "trc2"

    # cortex
    vocab_size: Count = 50257
    d_model: Count = 768
    num_columns: Count = 4
    num_heads: Count = 8
    num_kv_heads: Count = 4
    max_positions: Count = 1024
    rotary_base: Annotated[float, Field(gt=0.0)] = 10_000.0
    dropout: Decay = 0.0
    num_experts: Count = 8
    num_active_experts: Count = 2
    num_shared_experts: Literal[0, 1] = 1
    d_ff: Count | None = Field(None, description="expert width; None means 8·d_model/3 rounded up to a multiple of 256")
    norm_eps: Annotated[float, Field(gt=0.0)] = 1e-6

    # thalamus
    thalamus: bool = True
    thalamic_rank: Count | None = Field(None, description="bottleneck width r; None means d_model // 8")
    thalamic_groups: Count = Field(1, description="groups of the divisive competition; must divide the rank")
    thalamic_inhibition: NonNegative = Field(0.5, description='η; the paper calls it "TRN sparsity"')

    # hippocampal memory
    memory: bool = True
    memory_slots: Count = 32_768
    memory_key_dim: Count = 128
    memory_top_k: Count = 4
    memory_read_chunk: Count = 2048
    memory_read_window: Count = Field(8192, description="S_max: only this many most recent slots are searched")
    writes_per_sequence: Count = Field(8, description="k_W: candidates a sequence may offer")
    target_writes_per_sequence: Count = Field(2, description="n_target: writes a sequence should end up with")
    threshold_decay: Decay = 0.99
    discount: Fraction = 0.95
    td_clip: Annotated[float, Field(gt=0.0)] = 1.0
    slow_decay: Decay = 0.9995
    gate_top_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = Field(0.125, description="1 keeps every channel")
    max_pending: Count = Field(256, description="micro-batches the write queue holds before the oldest is dropped")

    # replay
    replay: bool = True
    replay_recent_chunks: Count = 2048
    replay_long_chunks: Count = 16_384
    replay_chunk_length: Annotated[int, Field(ge=2)] = 128
    replay_batch_size: Count = 4
    replay_coefficient: NonNegative = 0.05
    replay_long_fraction: Fraction = 0.5
    replay_path: Literal["full", "cortex"] = "full"
    replay_seed: Annotated[int, Field(ge=0)] = 0

    # objective
    lambda_router: NonNegative = 1.0
    lambda_load_balance: NonNegative = 0.01
    lambda_td: NonNegative = 0.1
    lambda_predictor: NonNegative = 0.1

    @model_validator(mode="after")
    def _shapes_fit(self) -> TRC2Config:
        _divides("d_model", self.d_model, "num_heads", self.num_heads)
        _divides("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads)
        if self.head_dim % 2:
            raise ValueError(
                f"d_model={self.d_model} with num_heads={self.num_heads} gives odd heads of width {self.head_dim}: "
                "rotary positions need an even width, so change num_heads."
            )
        if self.num_active_experts > self.num_experts:
            raise ValueError(
                f"num_active_experts={self.num_active_experts} is more than num_experts={self.num_experts}: "
                "choose at most as many."
            )
        if self.thalamus:
            if self.rank < 1:
                raise ValueError(f"d_model={self.d_model} gives a thalamic rank of 0: set thalamic_rank to 1 or more.")
            _divides("thalamic_rank", self.rank, "thalamic_groups", self.thalamic_groups)
        return self

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def rank(self) -> int:
        return self.d_model // 8 if self.thalamic_rank is None else self.thalamic_rank

    @property
    def expert_dim(self) -> int:
        return round_up(8 * self.d_model / 3, 256) if self.d_ff is None else self.d_ff

    @property
    def num_early_columns(self) -> int:
        """ℓ_inj = max(1, ⌊2L/3⌋): memory is read after this many columns."""
        return max(1, 2 * self.num_columns // 3)

    @property
    def num_late_columns(self) -> int:
        return self.num_columns - self.num_early_columns

    @property
    def has_router(self) -> bool:
        """A router is built only if some column comes after another one."""
        return self.thalamus and self.num_columns > 1

    @property
    def has_readout(self) -> bool:
        """Memory is read only if some late column can hear it."""
        return self.memory and self.num_late_columns > 0

    def has_query_shift(self, column: int) -> bool:
        """Whether the column (counted from 0) owns a thalamic query map.

        With the thalamus every column has one, the first too although it hears only zeros: the paper's counts need it.
        """
        return self.thalamus or (self.has_readout and column >= self.num_early_columns)


class TrainConfig(Section):
    """The shape of one training step."""

    sequence_length: Count = 128
    batch_size: Count = Field(8, description="sequences per micro-batch and rank")
    accumulation: Count = Field(1, description="micro-batches per optimizer step and rank")


class RunConfig(Section):
    """One run: what is trained and how."""

    model: TRC2Config
    train: TrainConfig = TrainConfig()

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


def round_up(value: float, multiple: int) -> int:
    """The smallest multiple that is not below the value."""
    return math.ceil(value / multiple) * multiple


# ---------------------------------------------------------------------------------------------------------- recipes


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    folder = resources.files("trc2") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name_or_path: str, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a recipe by name or path and apply overrides such as `model.d_model=256`."""
    return RunConfig(**_apply_overrides(_read_recipe(name_or_path), overrides))


def _read_recipe(name_or_path: str) -> dict[str, Any]:
    if name_or_path in recipe_names():
        text = (resources.files("trc2") / "recipes" / f"{name_or_path}.yaml").read_text(encoding="utf-8")
    elif (path := Path(name_or_path)).is_file():
        text = path.read_text(encoding="utf-8")
    else:
        raise UserError(f"There is no recipe or file '{name_or_path}': {did_you_mean(name_or_path, recipe_names())}")
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{name_or_path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{name_or_path} holds {type(values).__name__}, not settings: write `model:` and its fields.")
    return values


def _apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
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
        target[field] = yaml.safe_load(text)
    return result


# ---------------------------------------------------------------------------------------------------------- messages


def _divides(name: str, value: int, divisor_name: str, divisor: int) -> None:
    if value % divisor:
        raise ValueError(
            f"{name}={value} is not divisible by {divisor_name}={divisor}: choose a multiple of {divisor}."
        )


class SettingError(UserError):
    """A wrong setting; keeps its path apart from the sentence so that an enclosing section can prefix its own name."""

    def __init__(self, sentence: str, path: str = "") -> None:
        self.sentence, self.path = sentence, path
        where = f"{path}: " if path and "<path>" not in sentence else ""
        super().__init__(where + sentence.replace("<path>", path))


def _first_problem(error: ValidationError, section: type[BaseModel]) -> SettingError:
    """The most telling problem of a pydantic report, as one sentence; a misspelt name comes before what it lacks."""
    problem = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    path = ".".join(str(part) for part in problem["loc"])
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, SettingError):
        return SettingError(cause.sentence, f"{path}.{cause.path}".strip("."))
    if isinstance(cause, ValueError):
        return SettingError(str(cause), path)
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(str(problem["loc"][-1]), _fields_at(section, problem["loc"][:-1]))
        return SettingError(f"Unknown setting '<path>': {hint}", path)
    if problem["type"] == "missing":
        return SettingError("The setting '<path>' is missing: add it.", path)
    rule = problem["msg"][0].lower() + problem["msg"][1:]
    return SettingError(f"<path>={problem['input']!r} is not valid: {rule}.", path)


def _fields_at(section: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    for part in loc:
        field = section.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        section = field.annotation
    return list(section.model_fields)
