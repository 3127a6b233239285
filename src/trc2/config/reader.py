"""YAML 1.2 scalars, with limits on size and nesting.

PyYAML follows version 1.1, which reads `off` as false, `2024-01-02` as a date and `010` as eight. Here only `true` and
`false` are booleans, and a word that is not a boolean, a number or null is text.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from trc2.errors import UserError, brief
from trc2.system.files import reading

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

# We use only its events and build the values ourselves. The C version is ten times as fast.
PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# What an unquoted word means: the first pattern that matches all of it decides, and a word that matches none is text.
PLAIN_VALUES: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"|~|null|Null|NULL"), lambda word: None),
    (re.compile(r"true|True|TRUE"), lambda word: True),
    (re.compile(r"false|False|FALSE"), lambda word: False),
    (re.compile(r"[-+]?[0-9]+"), int),
    (OCTAL_OR_HEX, lambda word: int(word, 0)),
    (FLOAT, float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda word: float(word.replace(".", ""))),
)


class NotReadable(ValueError):
    """The reason why a text cannot be read, as a part of a sentence."""


def parse(text: str) -> Any:
    """The value a YAML text stands for. None if it is empty."""
    try:
        return _document(yaml.parse(text, Loader=PARSER))
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise NotReadable(f"{where}{brief(error.problem or error)}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise NotReadable(brief(error)) from None


def _document(events: Iterator[Any]) -> Any:
    value, num_documents = None, 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            num_documents += 1
            if num_documents > 1:
                raise _refused(event, "a second document begins: keep one")
        elif isinstance(event, yaml.NodeEvent):
            value = _node(event, events, 0)
    return value


def _node(event: Any, events: Iterator[Any], depth: int) -> Any:
    """The value that begins with an event. Takes all events that belong to it."""
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise _refused(event, "anchors (&) and aliases (*) are not read: write the value out, or share it by `base:`")
    if event.tag is not None:
        raise _refused(event, f"the tag {brief(event.tag, 40)} is not read: write the plain value")
    if depth > MAX_DEPTH:
        raise _refused(event, f"settings lie more than {MAX_DEPTH} levels deep")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_node(event, events, depth + 1))
        return items
    values: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _node(event, events, depth + 1)
        if not isinstance(key, str):
            raise _refused(event, f"{brief(key, 40)} is not a name of a setting: quote it, or remove it")
        if key in values:
            raise _refused(event, f"'{brief(key, 40)}' is set twice: keep one")
        values[key] = _node(next(events), events, depth + 1)
    return values


def _scalar(event: Any) -> Any:
    is_plain, word = event.implicit[0], str(event.value)
    read = next((read for pattern, read in PLAIN_VALUES if is_plain and pattern.fullmatch(word)), str)
    try:
        return read(word)
    except ValueError:  # Python does not read whole numbers of more than 4300 digits
        raise _refused(event, f"a number of {len(word)} digits is too long") from None


def _refused(event: Any, reason: str) -> NotReadable:
    return NotReadable(f"line {event.start_mark.line + 1}: {reason}")


def read_settings(path: Path, remedy: str = "restore it from a copy") -> dict[str, Any]:
    """The settings in a YAML file. Raises UserError if it holds none."""
    return parse_settings(_read_text(path, remedy), str(path), remedy)


def parse_settings(text: str, name: str, remedy: str = "correct it") -> dict[str, Any]:
    """The settings in a text. `name` says where it came from."""
    try:
        values = parse(text)
    except NotReadable as problem:
        raise UserError(f"{name} is not valid YAML ({problem}): {remedy}.") from None
    if not isinstance(values, dict):
        kind = "nothing" if values is None else type(values).__name__
        raise UserError(f"{name} holds {kind}, not settings: write `model:` and its fields.")
    return values


def _read_text(path: Path, remedy: str) -> str:
    """Only regular files of modest size are read: a device or a disk image would never end."""
    with reading(str(path), remedy):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{path} is a folder: name a file.")
        if not stat.S_ISREG(mode):
            raise UserError(f"{path} is not a regular file: copy what it holds into one.")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UserError(f"{path} is larger than {MAX_BYTES:,} bytes, too large for settings: {remedy}.")
        try:
            return content.decode("utf-8-sig")  # some editors begin with a mark
        except UnicodeDecodeError:
            raise UserError(f"{path} is not UTF-8 text: {remedy}.") from None


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would read as something else, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # Unless it is quoted, PyYAML writes some line separators as they are, and they come back as spaces.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _text)
for _pattern in (FLOAT, OCTAL_OR_HEX):
    _Dumper.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(f"^({_pattern.pattern})$"), list("-+.0123456789")
    )


def settings_text(values: dict[str, Any]) -> str:
    """Settings as YAML that `read_settings`, and any other reader, gives back as they are."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
