"""Recipes: those of the package by name, others by file, each laid over the one it names as `base`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from trc2.config.models import MODELS
from trc2.config.reader import parse_settings, read_settings
from trc2.config.section import shown
from trc2.config.strategy import switch_strategy
from trc2.errors import UserError, brief, did_you_mean, sentence_of

MAX_BASES = 16


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    folder = resources.files("trc2") / "recipes"
    names = [entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    return sorted(name for name in names if not name.startswith("_"))  # those are parts that recipes share


def recipe_descriptions() -> dict[str, str]:
    """What each recipe of the package is for: the first sentence of the comment it begins with."""
    return {name: first_sentence(_text_of(name)) for name in recipe_names()}


def first_sentence(recipe: str) -> str:
    """Of the comment lines at the top."""
    lines = re.match(r"(?:#[^\n]*\n?)*", recipe)
    comment = " ".join(line.lstrip("# ") for line in (lines.group() if lines else "").splitlines())
    return re.split(r"(?<=[.!?])\s+(?=[^\sa-z])", comment, maxsplit=1)[0]


def family_names(family: str) -> list[str]:
    """The recipes of one family that differ in their backbone: `lab`, one each, or `paper`, every row of its table."""
    names = recipe_names()
    if family == "lab":
        return [f"lab_{model}" for model in MODELS if f"lab_{model}" in names]
    if family == "paper":
        prefixes = ["paper_" if model == "trc2" else f"paper_{model}_" for model in MODELS]
        return [name for prefix in prefixes for name in names if re.fullmatch(rf"{prefix}d\d+_l\d+", name)]
    raise UserError(f"There is no family '{family}': choose lab or paper.")


def recipe_layers(name: str, above: tuple[str, ...] = ()) -> list[tuple[str, dict[str, Any]]]:
    """A recipe and those it names as `base`, the lowest first. `above` are those that led here."""
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
    if base is not None and not isinstance(base, str):
        raise UserError(f"{name} has base={shown(base)}, which is not a name: name a recipe or its file.")
    return [*([] if base is None else recipe_layers(base, chain)), (name, values)]


def merge_layers(layers: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """What all layers say together: the last one wins, field by field."""
    settings: dict[str, Any] = {}
    for _, values in layers:
        strategy = values.get("strategy")
        if isinstance(settings.get("strategy"), dict) and isinstance(strategy, dict) and "name" in strategy:
            settings["strategy"] = switch_strategy(settings["strategy"], strategy["name"])
        settings = _merge(settings, values)
    return settings


def _identity(name: str) -> str:
    """What two names of one recipe have in common."""
    return name if _is_packaged(name) else os.path.abspath(name)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Sections are merged field by field. Everything else is replaced."""
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
        return parse_settings(_text_of(name), name)
    try:
        os.stat(name)
    except PermissionError as error:
        raise UserError(sentence_of(error)) from None
    except (OSError, ValueError):  # a name may also be too long for a file, or hold what no name may
        raise UserError(
            f"There is no recipe or file '{name and brief(name, 80)}': {did_you_mean(name, recipe_names())}"
        ) from None
    return read_settings(Path(name), remedy="correct the file")


def _text_of(name: str) -> str:
    return (resources.files("trc2") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
