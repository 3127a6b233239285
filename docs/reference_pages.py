"""The reference pages of the documentation, made from the code: every setting, every command, every public name."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from trc2.config import MODELS, BackboneConfig, RunConfig, Section, StrategyConfig, strategy_names
from trc2.config.explain import REQUIRED, default_of, meaning_of
from trc2.config.strategy import SHORTHANDS, strategy_class

NUMBERS: dict[object, str] = {int: "a whole number", float: "a number"}
WORDS: dict[object, str] = {**NUMBERS, bool: "`true` or `false`", str: "text", Path: "a path", NoneType: "`null`"}
HUGE = 10_000  # a limit beyond this only says that memory ends somewhere
FIRST = (
    "train",
    "Run",
    "load_run",
    "continue_from",
    "load_model",
    "SavedModel",
    "RunConfig",
    "TaskConfig",
    "load_recipe",
)  # looked for most
NAMES: dict[type[Section], str] = {
    BackboneConfig: ", ".join(f"`{name}`" for name in MODELS),
    StrategyConfig: ", ".join(f"`{name}`" for name in (*strategy_names(), *SHORTHANDS)),
}


@dataclass(frozen=True)
class Group:
    """Settings of one class: where they are written, and what they are for."""

    path: str
    title: str
    section: type[Section]
    names: tuple[str, ...]


# --------------------------------------------------------------------------------------------------- settings


def settings_page() -> str:
    """Every setting: where it is written, its type, its default, its meaning."""
    parts = [
        "# Settings",
        "Made from the code: these are all settings there are. `trc2 config RECIPE` shows them with the values of a "
        "recipe and says which layer set them. [The first hour](../first-hour.md#settings) says how overrides are "
        "written.",
        "A dash as default means that the setting must be given.",
    ]
    for group in groups():
        parts += [f"## {group.title}", _first_paragraph(group.section)]
        rows = [_row(group, name) for name in group.names]
        parts.append("\n".join(["| setting | takes | default | meaning |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def groups() -> Iterator[Group]:
    """All sections of a run, in the order of `RunConfig`. Backbones and strategies one by one."""
    for name in RunConfig.model_fields:
        if name == "model":
            yield Group("model.", "`model`, every backbone", BackboneConfig, tuple(BackboneConfig.model_fields))
            for backbone, section in MODELS.items():
                yield from _below(section, "model.", f"`model={backbone}`", _own(section, BackboneConfig))
        elif name == "strategy":
            yield Group("strategy.", "`strategy`", StrategyConfig, tuple(StrategyConfig.model_fields))
            for strategy in strategy_names():
                found = strategy_class(strategy)
                yield from _below(found, "strategy.", f"`strategy={strategy}`", _own(found, StrategyConfig))
        else:
            (plain,) = _sections(RunConfig.model_fields[name].annotation)
            yield from _below(plain, f"{name}.", f"`{name}`", tuple(plain.model_fields))


def _own(section: type[Section], common: type[Section]) -> tuple[str, ...]:
    """Settings that only this backbone or strategy has, or that have another default there. The title has its name."""
    return tuple(
        name
        for name in section.model_fields
        if name != "name" and (name not in common.model_fields or default_of(section, name) != default_of(common, name))
    )


def _below(section: type[Section], path: str, title: str, names: tuple[str, ...]) -> Iterator[Group]:
    """A section, then those inside it."""
    inner = {name: _sections(section.model_fields[name].annotation) for name in names}
    if plain := tuple(name for name in names if not isinstance(section.model_fields[name].annotation, type(Section))):
        yield Group(path, title, section, plain)
    for name in names:
        for child in inner[name]:
            where = f"{path}{name}."
            is_list = get_origin(section.model_fields[name].annotation) is tuple
            where += "NAME." if is_list else ""
            yield from _below(child, where, f"`{where.rstrip('.')}`", tuple(child.model_fields))


def _sections(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [found for part in get_args(annotation) for found in _sections(part)]


def _first_paragraph(section: type[Section]) -> str:
    """The description of a section, from its docstring or from its module's."""
    text = section.__doc__ or sys.modules[section.__module__].__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())


def _row(group: Group, name: str) -> str:
    field = group.section.model_fields[name]
    default = default_of(group.section, name)
    written = REQUIRED if default == REQUIRED else f"`{json.dumps(default, ensure_ascii=False)}`"
    is_named = name == "name" and group.section in NAMES
    kinds = NAMES[group.section] if is_named else takes(field.annotation) + _limits(tuple(field.metadata))
    meaning = meaning_of(group.section, name).replace("None", "`null`").replace("*", r"\*")
    cells = (f"`{group.path}{name}`", kinds, written, meaning)
    return "| " + " | ".join(cell.replace("|", r"\|").replace("<", "&lt;") for cell in cells) + " |"


def takes(annotation: Any) -> str:
    """The values that a setting may have, in words."""
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return takes(inner[0]) + _limits(inner[1:])
    if kind is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if kind in (Union, UnionType):
        return ", or ".join(takes(part) for part in inner)
    if kind is tuple:
        several = "a list of " if Ellipsis in inner else f"{len(inner)} values, each "
        return several + ", ".join(dict.fromkeys(takes(part) for part in inner if part is not Ellipsis))
    if kind is dict:
        return "a mapping"
    if isinstance(annotation, type(Section)):
        return "settings of their own, below"
    return WORDS[annotation]


def _limits(metadata: tuple[Any, ...]) -> str:
    """Limits such as ≥ 0 or < 1, without those that only bound memory."""
    found = []
    for rule in (part for entry in metadata for part in getattr(entry, "metadata", None) or [entry]):
        for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
            limit = getattr(rule, name, None)
            if limit is not None and abs(limit) <= HUGE:
                found.append(f"{sign} {limit:g}")
    return f" {', '.join(found)}" if found else ""


# --------------------------------------------------------------------------------------------------- commands


def commands_page() -> str:
    """Every command with its arguments and options, as `--help` shows them."""
    import typer

    from trc2.cli import app
    from trc2.cli.app import EXIT_CODES

    group = typer.main.get_group(app)
    parts = ["# Commands", "Made from the code: what `trc2 COMMAND --help` says.", EXIT_CODES]
    parts.append("`trc2 --install-completion` teaches the shell commands and recipes.")
    for name, command in group.commands.items():
        parts += _command(f"trc2 {name}", command)
    return "\n\n".join(parts) + "\n"


def _command(path: str, command: Any) -> list[str]:
    nested = getattr(command, "commands", None)
    if nested:
        return [part for name, child in nested.items() for part in _command(f"{path} {name}", child)]
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    usage = " ".join([path, *(_argument(argument) for argument in arguments), "[OPTIONS]"])
    rows = [
        f"| `{_argument(p) if p in arguments else ', '.join([*p.opts, *p.secondary_opts])}` | {_help(p)} |"
        for p in parameters
        if p.name != "help"
    ]
    return [
        f"## {path}",
        f"```text\n{usage}\n```",
        _text(command.help),
        "\n".join(["| argument or option | meaning |", "|---|---|", *rows]),
    ]


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name).upper()
    name += "…" if parameter.nargs == -1 else ""
    return name if parameter.required else f"[{name}]"


def _text(help_: str | None) -> str:
    """A help text on one line. Brackets are escaped there, since the terminal would read them as markup."""
    return " ".join((help_ or "").split()).replace(r"\[", "[")


def _help(parameter: Any) -> str:
    text = _text(parameter.help).replace("|", r"\|").replace("<", "&lt;")
    default = parameter.default
    is_said = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    return f"{text} Default: `{default}`." if is_said else text


# --------------------------------------------------------------------------------------------------- names


def names_page(before: str) -> str:
    """The public names of the package, each a directive that the site's generator fills in from its docstrings."""
    import trc2

    names = [name for name in trc2.__all__ if not name.startswith("__")]
    names.sort(key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name.lower()))
    return before + "\n" + "\n".join(f"::: trc2.{name}\n" for name in names)
