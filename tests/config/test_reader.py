"""YAML 1.2's plain values, and the limits."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trc2.config import read_settings, reader, settings_text
from trc2.config.reader import NotReadable, parse
from trc2.errors import UserError

PARSERS = {name: getattr(yaml, name) for name in ("SafeLoader", "CSafeLoader") if hasattr(yaml, name)}


@pytest.fixture(params=PARSERS, autouse=True)
def _either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PARSER", PARSERS[request.param])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("true", True), ("FALSE", False), ("off", "off"), ("yes", "yes"), ("y", "y"),
        ("2024-13-45", "2024-13-45"), ("12:30:45", "12:30:45"), ("010", 10), ("0o17", 15), ("0x1F", 31), ("-3", -3),
        ("1e-3", 0.001), (".5", 0.5), ("5.", 5.0), ("1_000", "1_000"), ("-.inf", -math.inf), ("'1'", "1"),
        ('"off"', "off"), ("=", "="), ("{a: [1, {b: }]}", {"a": [1, {"b": None}]}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}), ("<<: {a: 1}", {"<<": {"a": 1}}),
    ],
)  # fmt: skip
def test_plain_words_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    found = parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: 'a' is set twice"),
        ("a: {b: 1, b: 1}", "line 1: 'b' is set twice"),
        ("{1: 2}", "line 1: 1 is not a name of a setting"),
        ("a: {b: {true: 2}}", "line 1: True is not a name"),
        ("? [a]\n: 1", "is not a name of a setting"),
        ("a: &x 1", "anchors"),
        ("a: *x", "anchors"),
        ("!!python/object/apply:os.system [ls]", "the tag"),
        ("a: !!str 1", "the tag"),
        ("a: [", "line"),
        ("a\n---\nb", "line 2: a second document"),
        ("[" * 100_000, "levels deep"),
        ("- " * 100_000, "levels deep"),
        ("9" * 5000, "a number of 5000 digits"),
        ("a: \0", "unacceptable character"),
        ("a: \udcff", "dcff"),
    ],
)
def test_what_is_refused_is_told_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(NotReadable) as caught:
        parse(text)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bomb_of_aliases_does_not_go_off() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 15)]
    begun = time.monotonic()
    with pytest.raises(NotReadable, match="aliases"):
        parse("\n".join(rows))
    assert time.monotonic() - begun < 1


def test_only_regular_files_of_modest_size_are_read(tmp_path: Path) -> None:
    settings = tmp_path / "a.yaml"
    settings.write_bytes("\ufeffa: größe".encode())  # as some editors save it
    assert read_settings(settings) == {"a": "größe"}
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"a: \xff")
    (tmp_path / "list").write_text("- 1")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**30)
    for name, sentence in (
        ("latin", "is not UTF-8 text"),
        ("large", "larger than 1,000,000 bytes"),
        (".", "is a folder"),
        ("pipe", "is not a regular file"),
        ("missing.yaml", "No such file"),
        ("a\0b", "null byte"),
        ("a" * 5000, "too long"),
        ("list", "holds list, not settings"),
    ):
        with pytest.raises(UserError, match=sentence):
            read_settings(tmp_path / name)


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.from_regex(reader.FLOAT),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4))
def test_what_is_written_is_read_back_by_us_and_by_others(values: dict[str, Any]) -> None:
    text = settings_text(values)
    assert parse(text) == values
    assert yaml.safe_load(text) == values


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet=st.sampled_from("ab01&*!?:-,[]{}'\"|>#%~. \n\t<=@`\0é\ud800")))
def test_any_text_is_a_value_or_not_readable(text: str) -> None:
    told = ""
    try:
        parse(text)
    except NotReadable as problem:
        told = str(problem)
    assert "\n" not in told
