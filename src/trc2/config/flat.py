"""Settings by their dotted path, as overrides call them: `train.seed`, `stream.tokenizer.vocab_size`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def flat(values: Mapping[str, Any], prefix: str = "", *, names: bool = False) -> dict[str, Any]:
    """Every value by its path; lists and empty mappings are values.

    With `names`, items of a list that all have a name are reached by it: `stream.tasks.prose.steps`.
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        items = items_by_name(value) if names else None
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{path}.", names=names)
        elif items is not None:
            result |= flat(items, f"{path}.", names=names)
        else:
            result[path] = value
    return result


def items_by_name(value: Any) -> dict[str, Any] | None:
    """The items of a list by their names; None if some have none or share one."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and "name" in item for item in value):
        return None
    items = {str(item["name"]): item for item in value}
    return items if items and len(items) == len(value) else None


def is_within(path: str, tops: Iterable[str]) -> bool:
    """Whether a path is one of some paths, or below one."""
    return any(path == top or path.startswith(f"{top}.") for top in tops)
