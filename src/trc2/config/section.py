"""Frozen groups of settings whose validation errors are single sentences."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trc2.errors import UserError, did_you_mean

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]
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
