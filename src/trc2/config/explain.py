"""Every setting of a recipe: its value, its default, what it means, and who set it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trc2.config.flat import flat, items_by_name
from trc2.config.recipes import merge_layers, recipe_layers
from trc2.config.run import RunConfig, apply_overrides
from trc2.config.section import Section, SettingError
from trc2.config.strategy import expand_shorthands

DEFAULT, FOLLOWS = "default", "follows from others"
REQUIRED = "–"
UNNAMED = {"model.name": "trc2", "strategy.name": "none"}  # what a run has that does not name its own


@dataclass(frozen=True)
class Setting:
    """One setting as a run would use it. `origin` is a recipe, its base, an override, or one of the words above."""

    path: str
    value: Any
    default: Any
    meaning: str
    origin: str


def explain(name: str, overrides: Iterable[str] = ()) -> list[Setting]:
    """All settings of a recipe with overrides, in the order of their sections; also those of a run folder."""
    config_file = Path(name) / "config.yaml"
    layers = recipe_layers(str(config_file) if config_file.is_file() else name)
    overrides = list(overrides)
    values = apply_overrides(merge_layers(layers), overrides)
    config = RunConfig(**values)
    found = _origins(layers, overrides)
    settings = []
    for path, value, default, meaning in _leaves(config, config.model_dump(mode="json"), ""):
        origin = next((found[part] for part in _and_above(path) if part in found), DEFAULT)
        if origin == DEFAULT and default not in (value, REQUIRED):
            origin = FOLLOWS
        settings.append(Setting(path, value, default, meaning, origin))
    return settings


def _origins(layers: list[tuple[str, dict[str, Any]]], overrides: list[str]) -> dict[str, str]:
    """Who set what last, by path. What a layer means by a shorthand such as `strategy: replay` counts as set by it."""
    found: dict[str, str] = {}
    before: dict[str, Any] = {}
    steps = [
        (
            f"base {name}" if number < len(layers) else name,
            merge_layers(layers[:number]),
            set(flat(values, names=True)),
        )
        for number, (name, values) in enumerate(layers, start=1)
    ]
    for number, override in enumerate(overrides, start=1):
        path, _, _ = override.partition("=")
        so_far = apply_overrides(merge_layers(layers), overrides[:number])
        steps.append((f"override {path}", so_far, _below(path, so_far)))
    for label, so_far, said in steps:
        with suppress(SettingError):  # half of a change may be wrong where the whole is right
            so_far = expand_shorthands(so_far)
        now = flat(so_far, names=True)
        for path, value in now.items():
            if path in said or path not in before or before[path] != value:
                found[path] = label
        before = now
    return found


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


def _and_above(path: str) -> Iterator[str]:
    """A path and all it lies in: `stream: null` sets everything below it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


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
    return REQUIRED if field.is_required() else _plain(field.get_default(call_default_factory=True))


def _plain(value: Any) -> Any:
    """A default as YAML would write it."""
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


def meaning_of(section: type[Section], name: str) -> str:
    """What a field is for; one that only narrows an inherited field means what that does."""
    for kind in section.__mro__:
        field = getattr(kind, "model_fields", {}).get(name)
        if field is not None and field.description:
            return str(field.description)
    return ""
