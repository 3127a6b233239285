"""What Python callers hand over, in the words recipes use: tasks and settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from trc2.config import RunConfig, Section, TaskConfig
from trc2.config.recipes import merge_layers, recipe_layers
from trc2.config.run import NAMED_SECTIONS, apply_overrides
from trc2.config.section import flat, shown
from trc2.errors import UserError, did_you_mean
from trc2.stream.texts import Texts, keep_texts

Given: TypeAlias = Texts | Mapping[str, Texts] | str | Path | TaskConfig
"""A task's text: documents, documents by split, a folder or file, or all settings of the task."""

Tasks: TypeAlias = Mapping[str, Given]
Steps: TypeAlias = int | Mapping[str, int] | None


def task_configs(tasks: Tasks, steps: Steps, cache: Path) -> list[TaskConfig]:
    """The tasks in the order they are given. Documents are written into the cache, see `stream/texts.py`."""
    if not isinstance(tasks, Mapping) or not tasks:
        raise UserError(f"tasks={shown(tasks)} names no task: give a dictionary such as {{'news': list_of_strings}}.")
    if isinstance(steps, Mapping):
        for name in steps:
            if name not in tasks:
                hint = did_you_mean(str(name), map(str, tasks))
                raise UserError(f"steps names '{name}', which is not a task: {hint}")
    return [_task(name, given, steps, cache) for name, given in tasks.items()]


def _task(name: str, given: Given, steps: Steps, cache: Path) -> TaskConfig:
    wanted = steps.get(name) if isinstance(steps, Mapping) else steps
    steps_setting: dict[str, Any] = {} if wanted is None else {"steps": wanted}
    if isinstance(given, TaskConfig):
        return TaskConfig(**{**given.model_dump(), "name": name, **steps_setting})
    if isinstance(given, str | Path):
        if not os.path.exists(given):  # False for a text too long to be a path, of which Path.exists() complains
            raise UserError(
                f"Task '{name}' is {shown(str(given))}, which is not a folder or file: name one, or list the texts."
            )
        return TaskConfig(name=name, folder=str(Path(given).resolve()), **steps_setting)
    # Name and steps are checked before anything is written.
    config = TaskConfig(name=name, folder=".", **steps_setting)
    return TaskConfig(**{**config.model_dump(), "folder": str(keep_texts(name, given, cache))})


def listed(overrides: Iterable[str]) -> list[str]:
    """One override may come without a list around it."""
    return [overrides] if isinstance(overrides, str) else list(overrides)


def as_overrides(settings: Mapping[str, object]) -> list[str]:
    """Sections given by name, `train={"seed": 3}` or `model="transformer"`, as `section.field=value`."""
    values = flat(settings)
    # The name of a backbone or a strategy comes first, because it decides which settings there are.
    named = [section for section in NAMED_SECTIONS if isinstance(values.get(f"{section}.name"), str)]
    return [
        *(f"{section}={values.pop(f'{section}.name')}" for section in named),
        *(_override(path, value) for path, value in values.items()),
    ]


def _override(path: str, value: object) -> str:
    plain = value.model_dump(mode="json") if isinstance(value, Section) else value
    try:
        return f"{path}={json.dumps(plain, default=_written)}"
    except (TypeError, ValueError):
        raise UserError(
            f"{path}={shown(value)} is not a setting: give a number, a word, a list or a dictionary."
        ) from None


def _written(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(type(value).__name__)


def run_config(
    recipe: str | Path | RunConfig, tasks: Tasks | None, steps: Steps, overrides: Iterable[str]
) -> RunConfig:
    """A recipe with other tasks and other settings: what `trc2 train` would make of the same words."""
    values = _values(recipe)
    chosen = listed(overrides)
    if tasks is None:
        if steps is not None:
            chosen = [*_steps_of(values, steps), *chosen]
        return RunConfig(**apply_overrides(values, chosen))
    # The cache may be among the overrides, and texts are written before the tasks that name them can be set.
    without_tasks = apply_overrides(values, [o for o in chosen if not o.startswith("stream.tasks")])
    stream = without_tasks.get("stream") or {}
    cache = stream.get("cache", "~/.cache/trc2") if isinstance(stream, dict) else "~/.cache/trc2"
    given = [task.model_dump(mode="json") for task in task_configs(tasks, steps, Path(str(cache)))]
    stream = dict(values.get("stream") or {})
    values["stream"] = {**stream, "tasks": given, "order": None, "only": None}
    return RunConfig(**apply_overrides(values, chosen))


def _values(recipe: str | Path | RunConfig) -> dict[str, Any]:
    if not isinstance(recipe, RunConfig):
        if not isinstance(recipe, str | Path):
            raise UserError(f"{shown(recipe)} is not a recipe: give its name or file, or a RunConfig.")
        return merge_layers(recipe_layers(str(recipe)))
    values: dict[str, Any] = recipe.model_dump(mode="json")
    if recipe.model.replay_seed == recipe.train.seed:
        values["model"]["replay_seed"] = None  # it followed train.seed, which may be about to change
    return values


def _steps_of(values: Mapping[str, Any], steps: Steps) -> list[str]:
    """Other steps for the tasks a recipe has."""
    stream = values.get("stream")
    names = [task["name"] for task in (stream or {}).get("tasks", [])]
    if isinstance(steps, Mapping):
        return [f"stream.tasks.{name}.steps={json.dumps(count)}" for name, count in steps.items()]
    return [f"stream.tasks.{name}.steps={json.dumps(steps)}" for name in names]
