"""Frozen groups of settings whose validation errors are single sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trc2.errors import UserError, brief, did_you_mean

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Share = Annotated[float, Field(ge=0.0, le=0.9)]  # of a whole to which something is added: 1 would be all of it
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1, le=2**53 - 1)]  # bytes or steps, up to what every JSON reader keeps
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]  # a dimension of a tensor, the length of a list
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # what numpy takes


class Section(BaseModel):
    """A frozen group of settings whose validation errors are single sentences."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _first_problem(error, type(self)) from None

    @model_validator(mode="before")
    @classmethod
    def _reject_bools_and_bad_text(cls, values: Any) -> Any:
        """Reject bools for numbers, and strings with NUL or invalid UTF-8."""
        if isinstance(values, Mapping):
            check_names(values)
            values = {name: _words(cls, name, value) for name, value in values.items()}
            for name, value in values.items():
                parts = value if isinstance(value, list | tuple) else (value,)
                _check_inner_names(name, parts)
                if not all(_is_text(str(part)) for part in parts if isinstance(part, str | Path)):
                    raise SettingError(f"<path>={shown(value)} holds a NUL or is not UTF-8: choose another.", name)
                if any(isinstance(part, bool) for part in parts) and cls._is_number(name):
                    raise SettingError(f"<path>={shown(value)} is not valid: give a number, not true or false.", name)
        return values

    @classmethod
    def _is_number(cls, name: str) -> bool:
        kinds = set(_kinds(cls.model_fields[name].annotation)) if name in cls.model_fields else set()
        return bool(kinds & {int, float}) and bool not in kinds

    def replace(self, **changes: Any) -> Any:
        """A validated copy with some fields changed."""
        return type(self)(**{**self.model_dump(), **changes})


def _kinds(annotation: Any) -> Iterable[type]:
    """The types a field's values may have, also inside tuples and unions."""
    inner = get_args(annotation)
    if not inner:
        return [annotation if isinstance(annotation, type) else type(annotation)]  # of a Literal, its values
    return [kind for part in inner for kind in _kinds(part)]


def _words(section: type[BaseModel], name: str, value: Any) -> Any:
    """A list of names may be written as words: `report_to=tensorboard`, `order=code,prose`."""
    field = section.model_fields.get(name)
    if not isinstance(value, str) or field is None:
        return value
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if get_origin(kind) is tuple]
    is_list = any(Ellipsis in get_args(kind) and set(_kinds(get_args(kind)[0])) == {str} for kind in kinds)
    return [word.strip() for word in value.split(",")] if is_list else value


def _is_text(text: str) -> bool:
    """Whether a file can hold it. File names may come to Python with bytes that are not characters."""
    return "\0" not in text and text == text.encode(errors="replace").decode()


def check_names(values: Mapping[Any, Any]) -> None:
    """Raise if something is called by anything but a name: YAML and Python allow `{1: 2}`."""
    for key in values:
        if not isinstance(key, str):
            raise SettingError(f"There is a setting called {shown(key)}, which is not a name: remove it.")


def _check_inner_names(section: str, parts: Iterable[Any]) -> None:
    """An inner section is built from named arguments, so its names are looked at before."""
    for part in parts:
        if isinstance(part, Mapping):
            try:
                check_names(part)
            except SettingError as problem:
                raise problem.within(section) from None


class SettingError(UserError):
    """A wrong setting. The path is apart from the sentence so that an enclosing section can prefix its own name."""

    def __init__(self, sentence: str, path: str = "") -> None:
        self.sentence, self.path = sentence, path
        where = f"{path}: " if path and "<path>" not in sentence else ""
        super().__init__(where + sentence.replace("<path>", path))

    def within(self, section: str) -> SettingError:
        """The same problem, seen from outside the section."""
        return SettingError(self.sentence, f"{section}.{self.path}".strip("."))


def _first_problem(error: ValidationError, section: type[BaseModel]) -> SettingError:
    """The most telling problem of a pydantic report, as one sentence. A misspelt name comes before what it lacks."""
    problem = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    path = ".".join(brief(part, 80) for part in problem["loc"])
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, SettingError):
        return cause.within(path)
    if isinstance(cause, ValueError):
        return SettingError(str(cause), path)
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(path, section.model_fields)
        return SettingError(f"Unknown setting '<path>': {hint}", path)
    if problem["type"] == "missing":
        return SettingError("The setting '<path>' is missing: add it.", path)
    rule = problem["msg"][0].lower() + problem["msg"][1:]
    if problem["type"] == "string_pattern_mismatch":  # our patterns are those of names
        marks = "'_' and '-'" if "-]" in problem["ctx"]["pattern"] else "'_'"
        rule = f"use lower-case letters and digits, after the first one also {marks}"
    return SettingError(f"<path>={shown(problem['input'])} is not valid: {rule}.", path)


def shown(value: object) -> str:
    """A value in a sentence: not the whole of it if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no whole number of more than 4300 digits
        text = f"a very long {type(value).__name__}"
    return brief(text, 100)


# ------------------------------------------------------------------------------------------------- by dotted path


def flat(values: Mapping[str, Any], prefix: str = "", *, names: bool = False) -> dict[str, Any]:
    """Every value by its dotted path, as in overrides: `train.seed`. Lists and empty mappings are values.

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
    """The items of a list by their names. None if some have none or share one."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and "name" in item for item in value):
        return None
    items = {str(item["name"]): item for item in value}
    return items if items and len(items) == len(value) else None


def is_within(path: str, tops: Iterable[str]) -> bool:
    """Whether a path is one of some paths, or below one."""
    return any(path == top or path.startswith(f"{top}.") for top in tops)
