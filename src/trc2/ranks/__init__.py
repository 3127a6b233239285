"""The processes that train together: how they find each other, and what they may say."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trc2.ranks.group import ALONE, Ranks
    from trc2.ranks.join import joined

__all__ = ["ALONE", "Ranks", "joined"]

# Imported at first use: the command asks `ranks.torchrun` who may speak, and its help must not wait for torch.
_HOMES = {"ALONE": "group", "Ranks": "group", "joined": "join"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trc2.ranks' has no attribute {name!r}")
    return getattr(import_module(f"trc2.ranks.{_HOMES[name]}"), name)
