"""From a row of a dataset to the text a model reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from trc2.errors import UserError, brief, did_you_mean

FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
BY_LINE = "wikitext"  # rows are lines, which `stream/articles.py` joins
NAMED = {"text": "{text}", "gsm8k": "Question: {question}\nAnswer: {answer}", BY_LINE: "{text}"}


class Format(Protocol):
    """Makes the text of a row; one of more characters than `limit` is refused before it is made."""

    def __call__(self, row: Mapping[str, Any], limit: int | None = None) -> str: ...


class BadRow(ValueError):
    """A row that holds no usable text; its message is the kind of fault."""


def text_format(name: str) -> Format:
    """`text`, `gsm8k`, `wikitext`, or a template whose {fields} are filled in; nothing else in it is interpreted."""
    template = NAMED.get(name, name)
    fields = FIELD.findall(template)
    if not fields:
        raise UserError(
            f"format='{brief(name)}' names no field: {did_you_mean(name, NAMED)} A template such as "
            "'{title}: {text}' works too."
        )

    def render(row: Mapping[str, Any], limit: int | None = None) -> str:
        size = 0
        for field in fields:
            if field not in row:
                raise BadRow(f"without '{field}'")
            if not isinstance(row[field], str):
                raise BadRow(f"where '{field}' is not a string")
            size += len(row[field])
        if limit is not None and size > limit:  # a template may name a field a thousand times
            raise BadRow("over-long")
        text = FIELD.sub(lambda match: row[match.group(1)], template)
        if not text.strip() and name != BY_LINE:
            raise BadRow("empty")
        return text

    return render
