"""Every setting of a recipe: its value, its default, its meaning, and which layer set it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trc2.config.recipes import merge_layers, recipe_layers
from trc2.config.run import RunConfig, apply_overrides
from trc2.config.section import Section, SettingError, flat, items_by_name
from trc2.config.strategy import expand_shorthands

DEFAULT, FOLLOWS = "default", "follows from others"
REQUIRED = "–"
UNNAMED = {"model.name": "trc2", "strategy.name": "none"}  # what a run has that does not name its own


@dataclass(frozen=True)
class Setting:
    """One setting as a run would use it. `origin` names a recipe, its base, an override, or is DEFAULT or FOLLOWS."""

    path: str
    value: Any
    default: Any
    meaning: str
    origin: str


def explain(name: str, overrides: Iterable[str] = ()) -> list[Setting]:
    """All settings of a recipe with overrides, in the order of their sections. Also those of a run folder."""
    config_file = Path(name) / "config.yaml"
    layers = recipe_layers(str(config_file) if config_file.is_file() else name)
    overrides = list(overrides)
    values = apply_overrides(merge_layers(layers), overrides)
    config = RunConfig(**values)
    origins = _origins(layers, overrides)
    settings = []
    for path, value, default, meaning in _leaves(config, config.model_dump(mode="json"), ""):
        parts = path.split(".")
        enclosing = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]  # `stream: null` sets all below
        origin = next((origins[outer] for outer in enclosing if outer in origins), DEFAULT)
        if origin == DEFAULT and default not in (value, REQUIRED):
            origin = FOLLOWS
        settings.append(Setting(path, value, default, meaning, origin))
    return settings


def _origins(layers: list[tuple[str, dict[str, Any]]], overrides: list[str]) -> dict[str, str]:
    """The last layer or override that set each path. It also sets what a shorthand such as `strategy: replay` means."""
    origins: dict[str, str] = {}
    before: dict[str, Any] = {}
    settings = merge_layers(layers)
    steps = []
    for number, (name, values) in enumerate(layers, start=1):
        label = name if number == len(layers) else f"base {name}"
        steps.append((label, merge_layers(layers[:number]), set(flat(values, names=True))))
    for number, override in enumerate(overrides, start=1):
        path, _, _ = override.partition("=")
        changed = apply_overrides(settings, overrides[:number])
        steps.append((f"override {path}", changed, _below(path, changed)))
    for label, values, named in steps:
        with suppress(SettingError):  # half of a change may be wrong where the whole is right
            values = expand_shorthands(values)
        after = flat(values, names=True)
        for path, value in after.items():
            if path in named or path not in before or before[path] != value:
                origins[path] = label
        before = after
    return origins


def _below(path: str, values: Mapping[str, Any]) -> set[str]:
    """The settings an override such as `stream.tasks.0=…` reaches, under the names of `flat`."""
    parts: list[str] = []
    inner: Any = values
    for part in path.split("."):
        items = items_by_name(inner)
        if items is not None and part not in items:
            part = list(items)[int(part)]
        parts.append(part)
        inner = items[part] if items is not None else inner.get(part, {}) if isinstance(inner, Mapping) else {}
    reached = ".".join(parts)
    return {leaf for leaf in flat(values, names=True) if leaf == reached or leaf.startswith(f"{reached}.")}


def _leaves(section: Section, values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any, Any, str]]:
    for name in type(section).model_fields:
        path, inner, value = f"{prefix}{name}", getattr(section, name), values[name]
        if isinstance(inner, Section):
            yield from _leaves(inner, value, f"{path}.")
        elif isinstance(inner, tuple) and inner and all(isinstance(item, Section) for item in inner):
            for item, written in zip(inner, value, strict=True):
                yield from _leaves(item, written, f"{path}.{written['name']}.")
        else:
            default = UNNAMED.get(path) or default_of(type(section), name)
            yield path, value, default, meaning_of(type(section), name)


def default_of(section: type[Section], name: str) -> Any:
    """The default of a field as YAML would write it, or a dash where there is none."""
    field = section.model_fields[name]
    if field.is_required():
        return REQUIRED
    default = field.get_default(call_default_factory=True)
    return list(default) if isinstance(default, tuple) else str(default) if isinstance(default, Path) else default


def meaning_of(section: type[Section], name: str) -> str:
    """The description of a field. A field that only narrows an inherited one has that one's description."""
    for kind in section.__mro__:
        field = getattr(kind, "model_fields", {}).get(name)
        if field is not None and field.description:
            return str(field.description)
    return ""
