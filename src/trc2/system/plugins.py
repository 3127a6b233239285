"""Backbones, strategies and metrics by name that packages add by entry points, and scripts by registering them.

docs/plugins.md. Finding those of packages reads the installed packages' lists and imports nothing. One is imported when
it is used by name, and only through its entry point: a recipe, a run or a model folder can name an installed plug-in,
never a module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trc2.errors import UserError, brief

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pydantic import BaseModel

Settings = TypeVar("Settings", bound="BaseModel")
Kind = Literal["backbone", "strategy", "metric"]
GROUPS: dict[Kind, str] = {"backbone": "trc2.backbones", "strategy": "trc2.strategies", "metric": "trc2.metrics"}
NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


@dataclass(frozen=True)
class MetricPlugin:
    """A score that another package brings, as the object of an entry point in `trc2.metrics`.

    `score(predictions, references)` gets two lists of strings: the likeliest next tokens of every position, decoded,
    and the text they predict. With `reads="tokens"` it gets two tensors (rows, tokens) of ids instead, in which −100
    marks references that do not count. Forgetting is the loss in the better direction: of logarithms with `is_log`,
    divided by what the task's training gained where that is at least `min_gain`.
    """

    score: Callable[..., float]
    higher_is_better: bool
    reads: Literal["text", "tokens"] = "text"
    is_log: bool = False
    min_gain: float | None = None


@dataclass(frozen=True)
class Plugin:
    """One entry point, and whose it is, or, without an entry point, what this process registered."""

    kind: Kind
    name: str
    entry: EntryPoint | None
    offered: Any = None

    @property
    def owner(self) -> str:
        if self.entry is None:
            return "registered by this process"
        dist = self.entry.dist
        return "of an unknown package" if dist is None else f"of package {dist.name} {dist.version}"

    def __str__(self) -> str:
        return f"The {self.kind} '{self.name}' {self.owner}"

    def broken(self, reason: str) -> UserError:
        return UserError(f"{self} cannot be used ({brief(reason)}): repair it, or use another {self.kind}.")


_registered: dict[tuple[Kind, str], Plugin] = {}


def register(kind: Kind, name: str, offered: Any) -> Plugin:
    """Make an object known by name in this process, in place of an earlier one of this name."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UserError(
            f"A {kind} cannot be called {brief(repr(name), 80)}: use small letters, digits and underscores."
        )
    plugin = Plugin(kind, name, None, offered)
    _registered[kind, name] = plugin
    return plugin


def missing_hint(kind: Kind) -> str:
    """The hint for a name that may belong to a missing plug-in."""
    return f"If it is a {kind} of your own, install its package, or register it again in this process."


def installed(kind: Kind) -> list[Plugin]:
    """What installed packages offer and this process registered, by name. Nothing of packages is imported."""
    from importlib.metadata import entry_points  # `trc2 --help` need not wait for it

    packaged = [Plugin(kind, entry.name, entry) for entry in entry_points(group=GROUPS[kind])]
    registered = [plugin for plugin in _registered.values() if plugin.kind == kind]
    return sorted([*packaged, *registered], key=lambda plugin: plugin.name)


def installed_names(kind: Kind) -> list[str]:
    return [plugin.name for plugin in installed(kind)]


def find(kind: Kind, name: str) -> Plugin | None:
    """The plug-in of this name. None if no package brings one."""
    matches = [plugin for plugin in installed(kind) if plugin.name == name]
    if len(matches) > 1:
        owners = " and ".join(sorted(plugin.owner for plugin in matches))
        raise UserError(f"There are several {kind} plug-ins called '{name}' ({owners}): remove all but one.")
    return matches[0] if matches else None


_loaded: dict[str, Plugin] = {}  # by the top module each came from


def load(plugin: Plugin) -> Any:
    """Import the object of an entry point. Any error in it becomes one sentence."""
    if plugin.entry is None:
        return plugin.offered
    if not NAME.fullmatch(plugin.name):
        raise plugin.broken("its name must be small letters, digits and underscores")
    _loaded[plugin.entry.module.partition(".")[0]] = plugin
    try:
        return plugin.entry.load()
    except (Exception, SystemExit, GeneratorExit) as error:
        raise plugin.broken(f"{type(error).__name__}: {error}") from error


def load_settings(plugin: Plugin, attribute: str, parent: type[Settings], functions: Sequence[str]) -> type[Settings]:
    """The settings that a plug-in has as `attribute`, with the functions it must have beside them."""
    offered = load(plugin)
    settings = getattr(offered, attribute, None)
    if not (isinstance(settings, type) and issubclass(settings, parent)):
        raise plugin.broken(f"it has no {attribute} that is a subclass of {parent.__name__}")
    if settings.model_fields["name"].default != plugin.name:
        raise plugin.broken(f"the default of name in its {attribute} is not '{plugin.name}'")
    for function in functions:
        if not callable(getattr(offered, function, None)):
            raise plugin.broken(f"it has no function {function}")
    return settings


def blamed(error: BaseException) -> str | None:
    """The sentence for an error that was raised in a plug-in's own code. None if it was not."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        plugin = _loaded.get(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        if plugin is not None:
            where = f"{Path(frame.f_code.co_filename).name}:{line}"
            reason = brief(f"{type(error).__name__}: {error}")
            return f"{plugin} failed at {where} ({reason}): tell its authors, or use another {plugin.kind}."
    return None
